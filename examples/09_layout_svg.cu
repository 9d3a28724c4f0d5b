// SPDX-License-Identifier: MIT
// Draws layouts of shared tiles and fragment maps as SVG.
//
//   nvcc -std=c++20 -O3 -Iinclude examples/09_layout_svg.cu -o 09_layout_svg
//   ./09_layout_svg                        lists the pictures
//   ./09_layout_svg swizzled_128 > a.svg   draws one
//   ./09_layout_svg all docs/pictures      draws all into an existing folder
//
// Run from the root of the repository.
//
// What it teaches: a layout is a function from (row, column) to an offset in memory; a map is a function from (thread,
// register) to (row, column). Both are constexpr, so that the host can draw and test the index arithmetic of the GPU. In the
// pictures of layouts the colour is the bank: a column with all colours is read without bank conflicts.
//
// Expected output without arguments:
//   row_major        fp16 (8, 64), row-major: the 16-byte chunks of a column share their banks
//   …
//   check: 11 pictures, each position of each layout and map drawn once
#include <giwa/tile.cuh>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace {

/// A table of coloured cells, each with a text.
class picture {
 public:
  picture(std::string title, int rows, int columns, int cell_width)
      : title_(std::move(title)), rows_(rows), columns_(columns), width_(cell_width) {}

  /// `shade` of `shades` is the position of the cell on the colour circle.
  void cell(int row, int column, const std::string& text, int shade, int shades) {
    const int x = margin + column * width_, y = top + row * height;
    body_ << "<rect x=\"" << x << "\" y=\"" << y << "\" width=\"" << width_ << "\" height=\"" << height
          << "\" fill=\"hsl(" << 360 * shade / shades << ",65%,82%)\" stroke=\"#666\" stroke-width=\"0.5\"/>"
          << "<text x=\"" << x + width_ / 2 << "\" y=\"" << y + height - 5 << "\" text-anchor=\"middle\">" << text
          << "</text>\n";
  }

  std::string svg() const {
    std::ostringstream out;
    const int w = 2 * margin + columns_ * width_, h = top + rows_ * height + 6;
    out << "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " << w << ' ' << h << "\" width=\"" << w
        << "\" height=\"" << h << "\" font-family=\"monospace\" font-size=\"10\">\n"
        << "<rect width=\"" << w << "\" height=\"" << h << "\" fill=\"white\"/>\n"
        << "<text x=\"" << margin << "\" y=\"14\" font-size=\"12\">" << title_ << "</text>\n";
    for (int r = 0; r < rows_; ++r)
      out << "<text x=\"" << margin - 4 << "\" y=\"" << top + r * height + height - 5 << "\" text-anchor=\"end\">" << r
          << "</text>\n";
    out << body_.str() << "</svg>\n";
    return out.str();
  }

 private:
  static constexpr int margin = 28, top = 22, height = 16;
  std::string title_;
  int rows_, columns_, width_;
  std::ostringstream body_;
};

/// A picture, and whether it contains every position once.
struct drawing {
  std::string name, title;
  picture (*draw)(const std::string& title, bool& complete);
};

/// Marks positions and checks that each was marked once.
class places {
 public:
  explicit places(int count) : seen_(static_cast<std::size_t>(count)) {}
  void mark(int place) { ++seen_[static_cast<std::size_t>(place)]; }
  bool once() const {
    for (const int s : seen_)
      if (s != 1) return false;
    return true;
  }

 private:
  std::vector<int> seen_;
};

/// A layout with `Run` contiguous elements in each cell; the text is the first byte of the cell, the colour its bank.
template <class T, class Shape, class Layout, int Run>
picture draw_layout(const std::string& title, bool& complete) {
  using layout = typename Layout::template of<T, Shape>;
  picture p(title, Shape::rows, Shape::columns / Run, 34);
  places met(layout::elements);
  constexpr int banks = 32, bank_bytes = 4;
  for (int row = 0; row < Shape::rows; ++row)
    for (int column = 0; column < Shape::columns; ++column) {
      const int offset = layout::offset(row, column);
      met.mark(offset);
      const int byte = offset * static_cast<int>(sizeof(T));
      if (column % Run == 0) p.cell(row, column / Run, std::to_string(byte), byte / bank_bytes % banks, banks);
    }
  constexpr bool padding = layout::elements != Shape::size;  // padding is not marked
  complete = complete && (padding || met.once());
  return p;
}

/// A fragment: the text is lane:element, the colour the lane's group of four.
template <class Fragment>
picture draw_fragment(const std::string& title, bool& complete) {
  picture p(title, Fragment::rows, Fragment::columns, 40);
  places met(Fragment::rows * Fragment::columns);
  for (int lane = 0; lane < Fragment::lanes; ++lane)
    for (int element = 0; element < Fragment::elements; ++element) {
      const giwa::tile_position at = Fragment::position(lane, element);
      met.mark(at.row * Fragment::columns + at.column);
      p.cell(at.row, at.column, std::to_string(lane) + ":" + std::to_string(element), lane / 4 % 8, 8);
    }
  complete = complete && met.once();
  return p;
}

/// A register map: thread:register.
template <class Map>
picture draw_map(const std::string& title, bool& complete) {
  using shape = typename Map::shape;
  picture p(title, shape::rows, shape::columns, 40);
  places met(shape::size);
  for (int thread = 0; thread < Map::threads; ++thread)
    for (int i = 0; i < Map::registers; ++i) {
      const int row = Map::row(thread, Map::slot(i)), column = Map::column(thread, i);
      met.mark(row * shape::columns + column);
      p.cell(row, column, std::to_string(thread) + ":" + std::to_string(i), thread % 16, 16);
    }
  complete = complete && met.once();
  return p;
}

template <int Rows, int Columns>
using shape = giwa::tile_shape<Rows, Columns>;
using giwa::swizzle, giwa::swizzled;

const drawing drawings[] = {
    {"row_major", "fp16 (8, 64), row-major: the 16-byte chunks of a column share their banks",
     draw_layout<giwa::fp16, shape<8, 64>, giwa::row_major, 8>},
    {"padded", "fp16 (8, 64), padded by 16 bytes a row", draw_layout<giwa::fp16, shape<8, 64>, giwa::padded<8>, 8>},
    {"swizzled_32", "fp16 (8, 64), swizzle of 32 bytes: four slabs of 16 columns",
     draw_layout<giwa::fp16, shape<8, 64>, swizzled<swizzle::bytes_32>, 8>},
    {"swizzled_64", "fp16 (8, 64), swizzle of 64 bytes: two slabs of 32 columns",
     draw_layout<giwa::fp16, shape<8, 64>, swizzled<swizzle::bytes_64>, 8>},
    {"swizzled_128", "fp16 (8, 64), swizzle of 128 bytes: each column meets all banks",
     draw_layout<giwa::fp16, shape<8, 64>, swizzled<swizzle::bytes_128>, 8>},
    {"transposable", "fp32 (32, 32), transposable: rows and columns meet all banks",
     draw_layout<float, shape<32, 32>, giwa::transposable, 1>},
    {"mma_a", "A of mma m16n8k16, 16-bit: lane:element", draw_fragment<giwa::mma_a_fragment>},
    {"mma_b", "B of mma m16n8k16, 16-bit: lane:element", draw_fragment<giwa::mma_b_fragment>},
    {"mma_accumulator", "C and D of mma m16n8, fp32: lane:element", draw_fragment<giwa::mma_accumulator_fragment>},
    {"warpgroup_map", "accumulator of wgmma m64n16, fp32: thread:register", draw_map<giwa::warpgroup_map<16>>},
    {"thread_map", "(16, 32) by 8 x 8 threads, runs of 2 columns: thread:register",
     draw_map<giwa::thread_map<shape<16, 32>, 8, 8, 2>>},
};

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "all") == 0) {
    for (const drawing& d : drawings) {
      bool complete = true;
      std::ofstream file(std::string(argv[2]) + "/" + d.name + ".svg");
      file << d.draw(d.title, complete).svg();
      if (!file || !complete) {
        std::cerr << d.name << (complete ? ": cannot be written\n" : ": a position is missing or drawn twice\n");
        return 1;
      }
    }
    return 0;
  }
  if (argc == 2) {
    for (const drawing& d : drawings) {
      bool complete = true;
      if (d.name == argv[1]) {
        std::cout << d.draw(d.title, complete).svg();
        return complete ? 0 : 1;
      }
    }
    std::cerr << "there is no picture of that name\n";
    return 1;
  }
  int count = 0;
  bool complete = true;
  for (const drawing& d : drawings) {
    d.draw(d.title, complete);
    std::printf("%-16s %s\n", d.name.c_str(), d.title.c_str());
    ++count;
  }
  std::printf("check: %d pictures, %s\n", count,
              complete ? "each position of each layout and map drawn once" : "a position is missing or drawn twice");
  return complete ? 0 : 1;
}
