// SPDX-License-Identifier: MIT
// Draws layouts of shared tiles, fragment maps, a grid of threads, a GPU and a split batch as SVG.
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
// pictures of layouts the colour is the bank: a column with all colours is read without bank conflicts. The number of
// blocks of a grid and the parts of a batch are computed by the library too.
//
// Expected output without arguments:
//   grid             a grid of 3 blocks of 8 threads, for an array of 20 elements
//   …
//   check: 14 pictures, each position drawn once, each text inside its picture
#include <giwa/device.hpp>
#include <giwa/tile.cuh>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace {

/// Rectangles and texts in SVG. Texts are monospaced; the canvas knows how wide they are, and whether all are inside.
class canvas {
 public:
  canvas(int width, int height) : width_(width), height_(height) {}

  void rectangle(int x, int y, int width, int height, const std::string& fill,
                 const char* more = "stroke=\"#666\" stroke-width=\"0.5\"") {
    body_ << "<rect x=\"" << x << "\" y=\"" << y << "\" width=\"" << width << "\" height=\"" << height << "\" fill=\""
          << fill << "\" " << more << "/>";
  }

  /// `anchor` is what is at x: "start", "middle" or "end" of the text.
  void text(int x, int y, const std::string& letters, const char* anchor = "start", int size = 10) {
    const int half = static_cast<int>(letters.size()) * size * 31 / 100;  // a letter is at most 0.62 of the size wide
    const int left = *anchor == 's' ? x : *anchor == 'm' ? x - half : x - 2 * half;
    inside_ = inside_ && left >= 0 && left + 2 * half <= width_ && y <= height_;
    body_ << "<text x=\"" << x << "\" y=\"" << y << '"';
    if (*anchor != 's') body_ << " text-anchor=\"" << anchor << '"';
    if (size != 10) body_ << " font-size=\"" << size << '"';
    body_ << '>' << letters << "</text>\n";
  }

  void raw(const std::string& svg) { body_ << svg; }
  bool inside() const { return inside_; }

  std::string svg() const {
    std::ostringstream out;
    out << "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " << width_ << ' ' << height_ << "\" width=\""
        << width_ << "\" height=\"" << height_ << "\" font-family=\"monospace\" font-size=\"10\">\n"
        << "<style>@media (prefers-color-scheme: dark) { :root { filter: invert(0.9) hue-rotate(180deg) } }</style>\n"
        << "<rect width=\"" << width_ << "\" height=\"" << height_ << "\" rx=\"8\" fill=\"white\"/>\n"
        << body_.str() << "</svg>\n";
    return out.str();
  }

 private:
  int width_, height_;
  bool inside_ = true;
  std::ostringstream body_;
};

/// `shade` of `shades` on the colour circle.
std::string colour(int shade, int shades) { return "hsl(" + std::to_string(360 * shade / shades) + ",65%,82%)"; }

/// A table of coloured cells, each with a text. What follows the colon of the title is its second line.
class picture : public canvas {
 public:
  picture(const std::string& title, int rows, int columns, int cell_width)
      : picture(title, title.find(": "), rows, columns, cell_width) {}

  void cell(int row, int column, const std::string& letters, int shade, int shades) {
    const int x = margin + column * width_, y = top_ + row * height;
    rectangle(x, y, width_, height, colour(shade, shades));
    text(x + width_ / 2, y + height - 5, letters, "middle");
  }

 private:
  picture(const std::string& title, std::size_t colon, int rows, int columns, int cell_width)
      : canvas(2 * margin + columns * cell_width, (colon == title.npos ? 22 : 36) + rows * height + 6),
        top_(colon == title.npos ? 22 : 36),
        width_(cell_width) {
    text(margin, 14, title.substr(0, colon), "start", 12);
    if (colon != title.npos) text(margin, 29, title.substr(colon + 2), "start", 11);
    for (int r = 0; r < rows; ++r) text(margin - 4, top_ + r * height + height - 5, std::to_string(r), "end");
  }

  static constexpr int margin = 28, height = 16;
  int top_, width_;
};

/// A picture, and whether it contains every position once.
struct drawing {
  std::string name, title;
  canvas (*draw)(const std::string& title, bool& complete);

  canvas drawn(bool& complete) const {
    canvas c = draw(title, complete);
    complete = complete && c.inside();
    return c;
  }
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
canvas draw_layout(const std::string& title, bool& complete) {
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
canvas draw_fragment(const std::string& title, bool& complete) {
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
canvas draw_map(const std::string& title, bool& complete) {
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

/// Blocks of threads above the elements that they work on.
canvas draw_grid(const std::string& title, bool& complete) {
  constexpr int elements = 20, threads = 8, blocks = static_cast<int>(giwa::ceil_div(elements, threads));
  constexpr int cell = 24, gap = 20, left = 24, block_width = threads * cell + gap;
  canvas c(2 * left + blocks * block_width, 232);
  places met(elements);
  c.text(left, 16, title, "start", 12);
  c.rectangle(left - 8, 26, blocks * block_width + 16, 112, "none", "stroke=\"#999\" stroke-dasharray=\"4 3\"");
  c.text(left, 40, "grid: the blocks of one launch, in any order");
  for (int block = 0; block < blocks; ++block) {
    const int x = left + block * block_width + gap / 2;
    c.rectangle(x - 6, 50, threads * cell + 12, 80, "#f4f4f4");
    c.text(x, 64, "block " + std::to_string(block) + " has one shared");
    c.text(x, 76, "memory and one barrier");
    for (int thread = 0; thread < threads; ++thread) {
      const int i = block * threads + thread, at = x + thread * cell;
      const std::string fill = i < elements ? colour(block, blocks) : "white";
      c.rectangle(at, 84, cell, 16, fill);
      c.text(at + cell / 2, 95, std::to_string(thread), "middle");
      c.text(at + cell / 2, 115, std::to_string(i), "middle");
      if (i >= elements) continue;
      met.mark(i);
      c.rectangle(at, 160, cell, 16, fill);
      c.text(at + cell / 2, 171, "x" + std::to_string(i), "middle");
      c.rectangle(at + cell / 2, 120, 1, 38, "#999", "stroke=\"none\"");
    }
  }
  c.text(left, 194,
         "In a cell: the thread's number in its block. Below: its index in the grid, block * " +
             std::to_string(threads) + " + thread.");
  c.text(left, 208,
         "The last " + std::to_string(blocks * threads - elements) + " threads have no element: index_in(" +
             std::to_string(elements) + ") is empty for them.");
  c.text(left, 222, "Blocks of real launches have 32 to 1024 threads, of which each 32 are a warp.");
  complete = complete && met.once();
  return c;
}

/// The cores of a processor and the lanes of a GPU, one small square each.
canvas draw_cores(const std::string& title, bool&) {
  constexpr int cores = 16, multiprocessors = 132, lanes = 128;  // of an H200: cudaDeviceProp, and 9.0 in CUDA's guide
  constexpr int left = 24, cpu = 44, sm = 36, columns = 12;
  canvas c(690, 480);
  c.text(left, 16, title, "start", 12);
  c.raw(
      "<defs><pattern id=\"lanes\" width=\"2\" height=\"4\" patternUnits=\"userSpaceOnUse\"><rect width=\"2\" "
      "height=\"4\" fill=\"white\"/><rect width=\"1.4\" height=\"3.2\" fill=\"#0072B2\"/></pattern></defs>\n");
  c.text(left, 38, "a CPU: " + std::to_string(cores) + " cores");
  for (int i = 0; i < cores; ++i) c.rectangle(left + i % 4 * cpu, 46 + i / 4 * cpu, cpu - 4, cpu - 4, "#E69F00");
  const char* const about_cores[] = {"each core: one thread or two,", "fast one by one, with SIMD",
                                     "units and much cache"};
  for (int i = 0; i < 3; ++i) c.text(left, 240 + 14 * i, about_cores[i]);
  const int x = left + 4 * cpu + 30;
  c.text(x, 38,
         "an H200: " + std::to_string(multiprocessors) + " multiprocessors of " + std::to_string(lanes) +
             " fp32 lanes, " + std::to_string(multiprocessors * lanes) + " lanes");
  for (int i = 0; i < multiprocessors; ++i)
    c.rectangle(x + i % columns * sm, 46 + i / columns * sm, sm - 4, sm - 4, "url(#lanes)");
  c.text(x, 458, "each multiprocessor: up to 2048 threads at once, in warps of 32, so that");
  c.text(x, 472, "others compute while some wait for memory");
  return c;
}

/// What split_batch gives to each of two GPUs.
canvas draw_batch(const std::string& title, bool& complete) {
  constexpr int batch = 10, gpus = 2, cell = 40, left = 24, in = 50, box = 92, out = 166;
  const giwa::int64 weights[gpus] = {3, 1};
  giwa::int64 parts[gpus] = {};
  complete = complete && giwa::split_batch(batch, {weights, {gpus}}, {parts, {gpus}}).ok();
  canvas c(2 * left + batch * cell, 212);
  places met(batch);
  c.text(left, 16, title, "start", 12);
  c.text(left, 42, "in: (batch, ...)");
  c.text(left, 198, "out, in the order of in");
  int item = 0;
  for (int gpu = 0; gpu < gpus; ++gpu) {
    const int x = left + item * cell, width = static_cast<int>(parts[gpu]) * cell;
    c.rectangle(x + 3, box, width - 6, 48, "#f4f4f4");
    c.text(x + width / 2, box + 14, "GPU " + std::to_string(gpu), "middle");
    c.text(x + width / 2, box + 28, std::to_string(parts[gpu]) + " items", "middle");
    c.text(x + width / 2, box + 42, "its stream", "middle");
    for (const int y : {in + 16, box + 48}) c.rectangle(x + width / 2, y, 1, 26, "#666", "stroke=\"none\"");
    for (const int last = item + static_cast<int>(parts[gpu]); item < last; ++item) {
      met.mark(item);
      for (const int y : {in, out}) {
        c.rectangle(left + item * cell, y, cell, 16, colour(gpu, gpus));
        c.text(left + item * cell + cell / 2, y + 11, std::to_string(item), "middle");
      }
    }
  }
  complete = complete && met.once();
  return c;
}

template <int Rows, int Columns>
using shape = giwa::tile_shape<Rows, Columns>;
using giwa::swizzle, giwa::swizzled;

const drawing drawings[] = {
    {"grid", "a grid of 3 blocks of 8 threads, for an array of 20 elements", draw_grid},
    {"cores", "few fast cores, or many slow lanes", draw_cores},
    {"split_batch", "a batch of 10 split over two GPUs, weights 3 and 1", draw_batch},
    {"row_major", "fp16 (8, 64), row-major: the chunks of a column share their banks",
     draw_layout<giwa::fp16, shape<8, 64>, giwa::row_major, 8>},
    {"padded", "fp16 (8, 64), padded by 16 bytes a row", draw_layout<giwa::fp16, shape<8, 64>, giwa::padded<8>, 8>},
    {"paired", "fp16 (8, 64), in pairs of rows: 32 bytes of a row stay 32 aligned bytes",
     draw_layout<giwa::fp16, shape<8, 64>, giwa::paired, 8>},
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
  constexpr char wrong[] = ": a position is missing or drawn twice, or a text is cut\n";
  if (argc == 3 && std::strcmp(argv[1], "all") == 0) {
    for (const drawing& d : drawings) {
      bool complete = true;
      std::ofstream file(std::string(argv[2]) + "/" + d.name + ".svg");
      file << d.drawn(complete).svg();
      if (!file || !complete) {
        std::cerr << d.name << (complete ? ": cannot be written\n" : wrong);
        return 1;
      }
    }
    return 0;
  }
  if (argc == 2) {
    for (const drawing& d : drawings) {
      bool complete = true;
      if (d.name == argv[1]) {
        std::cout << d.drawn(complete).svg();
        return complete ? 0 : 1;
      }
    }
    std::cerr << "there is no picture of that name\n";
    return 1;
  }
  int count = 0;
  bool complete = true;
  for (const drawing& d : drawings) {
    d.drawn(complete);
    std::printf("%-16s %s\n", d.name.c_str(), d.title.c_str());
    ++count;
  }
  std::printf("check: %d pictures, %s\n", count,
              complete ? "each position drawn once, each text inside its picture" : wrong);
  return complete ? 0 : 1;
}
