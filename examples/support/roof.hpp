// SPDX-License-Identifier: MIT
// Draws a house with a roof of giwa, Korean tiles: a picture with edges, gradients, repeated details and letters.
#pragma once

#include <cmath>
#include <vector>

namespace example {

struct color {
  float red, green, blue;
};
inline color operator*(color c, float f) { return {c.red * f, c.green * f, c.blue * f}; }
inline color operator+(color a, color b) { return {a.red + b.red, a.green + b.green, a.blue + b.blue}; }
inline color blend(color a, color b, float part_of_b) { return a * (1 - part_of_b) + b * part_of_b; }

/// The distance to the nearest integer, at most 0.5.
inline float to_integer(float x) { return std::fabs(x - std::floor(x + 0.5f)); }

/// The word giwa on the signboard, in Korean letters.
inline bool is_letter(int row, int column) {
  constexpr const char* rows[] = {"#####...#...###....#..", "....#...#..#...#...#..", "....#...#..#...#...#..",
                                  "....#...#...###....###", "...#....#....#.....#..", "..#.....#....#.....#..",
                                  "##......#..#######.#.."};
  return row >= 0 && row < 7 && column >= 0 && column < 22 && rows[row][column] == '#';
}

/// Returns the colour at (x, y), 1 being the picture's height: x from the middle to the right, y from the top down.
inline color roof_at(float x, float y) {
  const float side = std::fabs(x);
  // Sky, sun, two mountain ranges.
  color c = blend({0.20f, 0.33f, 0.62f}, {1.0f, 0.80f, 0.58f}, std::fmin(1.0f, y / 0.5f));
  if (std::hypot(x - 0.56f, y - 0.17f) < 0.075f) c = {1.0f, 0.93f, 0.70f};
  if (y > 0.36f + 0.05f * std::sin(6 * x + 1) + 0.02f * std::sin(17 * x)) c = {0.44f, 0.42f, 0.60f};
  if (y > 0.46f + 0.05f * std::sin(5 * x - 2) + 0.012f * std::sin(23 * x)) c = {0.24f, 0.36f, 0.40f};
  // Ground, and the stones under the walls.
  if (y > 0.90f) c = blend({0.44f, 0.38f, 0.26f}, {0.28f, 0.24f, 0.17f}, (y - 0.90f) / 0.1f);
  if (y > 0.85f && y < 0.94f && side < 0.64f) {
    const bool upper = y < 0.895f;
    const bool joint = to_integer(x / 0.13f + (upper ? 0.5f : 0.0f)) < 0.05f || std::fabs(y - 0.895f) < 0.006f;
    c = color{0.74f, 0.72f, 0.68f} * (joint ? 0.35f : upper ? 1.0f : 0.85f);
  }
  // Wall, columns, lattices with paper behind them, beams with round rafters.
  if (y > 0.5f && y < 0.85f && side < 0.57f) {
    c = {0.95f, 0.90f, 0.78f};
    const bool lattice = y > 0.62f && y < 0.83f && to_integer((x + 0.14f) / 0.28f) < 0.38f;
    if (lattice) {
      c = {0.98f, 0.94f, 0.84f};
      if (to_integer(x / 0.035f) < 0.11f || to_integer(y / 0.035f) < 0.11f) c = {0.40f, 0.26f, 0.16f};
    }
    if (to_integer((x + 0.14f) / 0.28f) > 0.44f)
      c = blend({0.66f, 0.20f, 0.15f}, {0.42f, 0.11f, 0.09f}, to_integer(x / 0.03f));
    if (y < 0.59f) {
      c = {0.13f, 0.45f, 0.38f};
      if (y > 0.575f) c = {0.76f, 0.29f, 0.20f};
      if (std::hypot(to_integer(x / 0.05f) * 0.05f, y - 0.548f) < 0.017f) c = {0.93f, 0.70f, 0.30f};
    }
  }
  // Signboard.
  if (side < 0.125f && y > 0.555f && y < 0.645f) {
    c = {0.80f, 0.58f, 0.22f};
    if (side < 0.118f && y > 0.562f && y < 0.638f) c = {0.10f, 0.11f, 0.14f};
    if (is_letter(static_cast<int>(std::floor((y - 0.568f) / 0.0092f)),
                  static_cast<int>(std::floor((x + 0.101f) / 0.0092f))))
      c = {1.0f, 0.86f, 0.45f};
  }
  // Roof: columns of round tiles from the ridge to the eave, which rises to its ends.
  const float ridge = 0.21f - 0.05f * side * side, eave = 0.545f - 0.16f * side * side * side;
  const float down = (y - ridge) / (eave - ridge), half_width = 0.50f + 0.24f * down * down;
  if (down > 0 && down < 1 && side < half_width) {
    const float across = x / half_width * 11;
    const float round = std::sqrt(1 - 3.9f * to_integer(across) * to_integer(across));  // 1 on top of a tile
    const float light = 0.1f + 0.9f * round + 0.2f * (0.5f - down);
    c = color{0.40f, 0.46f, 0.55f} * light;
    if (to_integer(down * 6) < 0.07f) c = c * 0.6f;
    if (down > 0.945f) c = to_integer(across) < 0.28f ? color{0.62f, 0.66f, 0.70f} : color{0.12f, 0.13f, 0.15f};
  }
  if (side < 0.53f && std::fabs(y - ridge) < 0.022f) {
    c = color{0.30f, 0.34f, 0.40f} * (std::fabs(y - ridge) < 0.004f ? 0.6f : 1.0f);
  }
  return c;
}

/// Returns the picture, (height, width, 3) numbers from 0 to 1, each the average over 4 x 4 points.
inline std::vector<float> draw_roof(int height, int width) {
  std::vector<float> picture;
  for (int row = 0; row < height; ++row)
    for (int column = 0; column < width; ++column) {
      color sum{0, 0, 0};
      for (int point = 0; point < 16; ++point) {
        const float y = static_cast<float>(4 * row + point / 4) + 0.5f;
        const float x = static_cast<float>(4 * column + point % 4 - 2 * width) + 0.5f;
        sum = sum + roof_at(x / static_cast<float>(4 * height), y / static_cast<float>(4 * height));
      }
      picture.insert(picture.end(), {sum.red / 16, sum.green / 16, sum.blue / 16});
    }
  return picture;
}

}  // namespace example
