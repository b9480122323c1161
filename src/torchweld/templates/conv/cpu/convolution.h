// Convolutions of float32 images,  y[n, o, z, h, w] = sum over c, i, j, k of x[n, c, z', h', w'] * weight[o, c, i, j, k],
// as products without a copy of the windows: x and y stay as they lie in memory.
//
//   for groups of channels, blocks of output channels, panels (PANEL pixels of y):   shared out, done in batches
//     for blocks of channels:                               up to CHAIN terms in one chain
//       pack the weights: [c, i, j, k][BLOCK]               second-level cache; read in order by all panels
//       for panels:
//         gather the pixels' windows: [c, i, j, k][PANEL]   first-level cache
//         for GROUPs of output channels:                    tiles of product.h, rows are weights
//     finish(n, o, pixel, count, sums)                      what the caller does with the sums
//
// Transposed: the pixels of y whose places are equal modulo the strides are a convolution at stride one,
// with some of the weights. Those of a row are worked on together, and written side by side.
//
// oneDNN, in eager, has chains of 16 channels and all points of the window, unless that is one point: for
// windows of few points chains are as short here, or the error against float64 is twice eager's.
//
// Measured on Zen 5, one thread: tiles reach 285 GFLOP/s, and 163 where they read 256 rows of weights in
// place that are a multiple of 4 KB apart.
#pragma GCC push_options
#pragma GCC optimize("fp-contract=fast")
enum {
  TW_CHAIN = 144, TW_CHANNELS = 24, TW_PANELS = 24, TW_FEW_PIXELS = 4,
  TW_PIXEL_SUMS = 10 * TW_RESULTS * TW_PANEL
};

// Where the weights of a group lie: strides of output channels, channels and points of the window.
struct tw_weights {
  const float* first;
  int64_t result, channel, d, h, w;
};

// From output channel `result` of the group on.
static tw_weights tw_weights_of(const tw_convolution& a, int64_t group, int64_t result) {
  int64_t row = a.w.taps, plane = a.h.taps * row, taps = a.d.taps * plane;
  if (a.transposed)
    return {a.weight + (group * a.channels * a.results + result) * taps, taps, a.results * taps, plane, row, 1};
  return {a.weight + (group * a.results + result) * a.channels * taps, a.channels * taps, taps, plane, row, 1};
}

// Of each vector of pixels: its runs, and the lanes that are inside x at each point of the window.
struct tw_pixels {
  int count, vectors, runs[TW_VECTORS];
  tw_run run[TW_VECTORS][TW_WIDTH];
  uint16_t inside[TW_VECTORS][TW_TAPS];
};

TW bool tw_is_inside(const tw_side& side, int64_t at, int64_t tap) {
  return (uint64_t)(at + tap * side.dilation) < (uint64_t)side.size;
}

static void tw_locate(const tw_convolution& a, int64_t first, int64_t count, tw_pixels& to) {
  to.count = count, to.vectors = (count + TW_WIDTH - 1) / TW_WIDTH;
  int64_t points = a.d.taps * a.h.taps * a.w.taps;
  for (int v = 0; v < to.vectors; ++v) to.runs[v] = 0, __builtin_memset(to.inside[v], 0, sizeof(uint16_t) * points);
  int64_t w = first % a.w.out, h = first / a.w.out % a.h.out;
  int64_t d = first / (a.w.out * a.h.out) % a.d.out, n = first / (a.w.out * a.h.out * a.d.out);
  for (int64_t at = 0, length; at < count; at += length) {
    int v = at / TW_WIDTH, lane = at % TW_WIDTH;
    length = TW_WIDTH - lane;
    if (length > a.w.out - w) length = a.w.out - w;
    if (length > count - at) length = count - at;
    int64_t z = d * a.d.stride - a.d.padding, y = h * a.h.stride - a.h.padding, x = w * a.w.stride - a.w.padding;
    to.run[v][to.runs[v]++] = {n * a.x_image + z * a.x_plane + y * a.x_row + x - lane * a.w.stride,
                               ((1u << length) - 1) << lane};
    for (int64_t j = 0; j < a.w.taps; ++j) {
      uint16_t lanes = tw_inside(x + j * a.w.dilation, a.w.stride, length, a.w.size) << lane;
      for (int64_t t = 0; t < a.d.taps * a.h.taps; ++t)
        if (tw_is_inside(a.d, z, t / a.h.taps) && tw_is_inside(a.h, y, t % a.h.taps))
          to.inside[v][t * a.w.taps + j] |= lanes;
    }
    w += length;
    if (w < a.w.out) continue;
    w = 0;
    if (++h < a.h.out) continue;
    h = 0;
    if (++d == a.d.out) d = 0, ++n;
  }
}

// How the windows of a vector of pixels lie: anyhow, all in one row of y, or that and inside x.
enum tw_shape { TW_ANY, TW_ROW, TW_INSIDE };
// A window: where its points are in x, from the first one on.
struct tw_window {
  int64_t points, row;  // points in a row
  int64_t offset[TW_TAPS];
};
static tw_window tw_window_of(const tw_convolution& a) {
  tw_window to = {0, a.w.taps};
  for (int64_t d = 0; d < a.d.taps; ++d)
    for (int64_t i = 0; i < a.h.taps; ++i)
      for (int64_t j = 0; j < a.w.taps; ++j)
        to.offset[to.points++] = d * a.d.dilation * a.x_plane + i * a.h.dilation * a.x_row + j * a.w.dilation;
  return to;
}

// to[k * step] = the vector `v` of the pixels at each channel and point of the window.
template <int STRIDE, tw_shape SHAPE>
static __attribute__((noinline)) void tw_gather_windows(
    const tw_convolution& a, const float* x, const tw_window& window, const tw_pixels& pixels, int v, int64_t channels,
    float* to, int64_t step) {
  const tw_run* run = pixels.run[v];
  for (int64_t c = 0; c < channels; ++c, x += a.x_channel) {
    // What the next pixels need. One thread, ResNet-50: 168 ms with it, 188 without.
    for (int64_t t = 0; t < window.points; t += window.row)
      __builtin_prefetch(x + window.offset[t] + run[0].start + a.w.stride * TW_PANEL, 0, 2);
    for (int64_t t = 0; t < window.points; ++t, to += step)
      if (SHAPE == TW_INSIDE && STRIDE == 1)
        tw_write(to, tw_read(x + window.offset[t] + run[0].start));
      else
        tw_write(to, tw_gather<STRIDE>(x + window.offset[t], a.w.stride, run, SHAPE == TW_ANY ? pixels.runs[v] : 1,
                                       pixels.inside[v][t]));
  }
}
// The same for all vectors of pixels that lie one after the other, and windows of one pixel.
static void tw_copy_pixels(const tw_convolution& a, const float* x, int64_t channels, float* to) {
  for (int64_t c = 0; c < channels; ++c, x += a.x_channel)
#pragma GCC unroll 3
    for (int v = 0; v < TW_VECTORS; ++v, to += TW_WIDTH) {
      __builtin_prefetch(x + TW_PANEL + v * TW_WIDTH, 0, 2);
      tw_write(to, tw_read(x + v * TW_WIDTH));
    }
}
// Whether a vector of pixels lies in one row of y, and its windows inside x.
TW bool tw_is_whole(const tw_window& window, const tw_pixels& pixels, int v) {
  uint32_t inside = pixels.run[v][0].lanes & pixels.inside[v][0] & pixels.inside[v][window.points - 1];
  return inside == (1ull << TW_WIDTH) - 1;
}
template <int STRIDE>
static void tw_windows(const tw_convolution& a, const float* x, const tw_window& window, const tw_pixels& pixels,
                       int64_t channels, float* to) {
  int64_t step = pixels.vectors * TW_WIDTH, start = pixels.run[0][0].start;
  bool row = STRIDE == 1 && window.points == 1 && pixels.count == TW_PANEL;
  for (int v = 0; v < TW_VECTORS && row; ++v)
    row = tw_is_whole(window, pixels, v) && pixels.run[v][0].start == start + v * TW_WIDTH;
  if (row) return tw_copy_pixels(a, x + start, channels, to);
  for (int v = 0; v < pixels.vectors; ++v, to += TW_WIDTH) {
    if (tw_is_whole(window, pixels, v))
      tw_gather_windows<STRIDE, TW_INSIDE>(a, x, window, pixels, v, channels, to, step);
    else if (pixels.runs[v] == 1)
      tw_gather_windows<STRIDE, TW_ROW>(a, x, window, pixels, v, channels, to, step);
    else
      tw_gather_windows<STRIDE, TW_ANY>(a, x, window, pixels, v, channels, to, step);
  }
}

// to[block][k][BLOCK]: the weights of `results` output channels, the rest of the last block zeros; k runs over
// `channels` channels and the window.
static void tw_pack_weights(
    const tw_convolution& a, const tw_weights& weights, int64_t channels, int64_t results, float* to) {
  int64_t depth = channels * a.d.taps * a.h.taps * a.w.taps;
  bool adjacent = weights.w == 1 && weights.h == a.w.taps && weights.d == a.h.taps * weights.h;
  for (int64_t o = 0; o < results; o += TW_BLOCK, to += depth * TW_BLOCK) {
    const float* from = weights.first + o * weights.result;
    int64_t some = results - o < TW_BLOCK ? results - o : TW_BLOCK, k = 0;
    if (adjacent && some == TW_BLOCK && depth >= TW_WIDTH)
      for (; k < depth; k += TW_WIDTH) {
        int64_t l = k < depth - TW_WIDTH ? k : depth - TW_WIDTH;
        for (int64_t r = 0; r < TW_BLOCK; r += TW_WIDTH)
          tw_turn(from + r * weights.result + l, weights.result, to + l * TW_BLOCK + r, (int64_t)TW_BLOCK);
      }
    if (some < TW_BLOCK) __builtin_memset(to, 0, depth * TW_BLOCK * sizeof(float));
    if (adjacent) {
      for (; k < depth; ++k)
        for (int64_t r = 0; r < some; ++r) to[k * TW_BLOCK + r] = from[r * weights.result + k];
      continue;
    }
    for (int64_t c = 0; c < channels; ++c)
      for (int64_t d = 0; d < a.d.taps; ++d)
        for (int64_t i = 0; i < a.h.taps; ++i)
          for (int64_t j = 0; j < a.w.taps; ++j, ++k) {
            const float* at = from + c * weights.channel + d * weights.d + i * weights.h + j * weights.w;
            for (int64_t r = 0; r < some; ++r) to[k * TW_BLOCK + r] = at[r * weights.result];
          }
  }
}

// c[result][pixel] for few pixels, the panel's first, and one BLOCK of output channels, which lie along the
// vectors here.
static void tw_few_pixels(int64_t depth, const float* packed, const float* panel, int64_t pixels, float* c, bool first) {
  enum { CHAINS = 8, V = TW_BLOCK / TW_WIDTH };
  for (int64_t p = 0; p < pixels; ++p) {
    tw_vector sums[CHAINS][V] = {};
    int64_t k = 0;
    for (; k + CHAINS <= depth; k += CHAINS)
#pragma GCC unroll 8
      for (int l = 0; l < CHAINS; ++l)
        for (int v = 0; v < V; ++v)
          sums[l][v] += panel[(k + l) * TW_WIDTH + p] * tw_read(packed + (k + l) * TW_BLOCK + v * TW_WIDTH);
    for (; k < depth; ++k)
      for (int v = 0; v < V; ++v) sums[0][v] += panel[k * TW_WIDTH + p] * tw_read(packed + k * TW_BLOCK + v * TW_WIDTH);
    for (int l = 1; l < CHAINS; ++l)
      for (int v = 0; v < V; ++v) sums[0][v] += sums[l][v];
    for (int o = 0; o < TW_BLOCK; ++o) {
      float* at = c + o * TW_PANEL + p;
      *at = (first ? 0 : *at) + sums[0][o / TW_WIDTH][o % TW_WIDTH];
    }
  }
}

// Channels whose terms are one chain.
TW int64_t tw_together(int64_t points) {
  int64_t channels = points > TW_CHAIN ? 1 : points > 1 ? TW_CHAIN / points : TW_CHAIN;
  return points > 1 && channels > TW_CHANNELS ? TW_CHANNELS : channels;
}

// c[panel][result][PANEL] = the sums of one block of output channels at the pixels of some panels, from `start`
// on, of `all`; x and the weights start at the first channel of the group.
static void tw_sums(const tw_convolution& a, const float* x, tw_weights weights, int64_t start, int64_t all,
                    int64_t panels, int64_t results, float* c) {
  tw_pixels pixels[TW_PANELS];
  for (int64_t p = 0, first = start; p < panels; ++p, first += TW_PANEL)
    tw_locate(a, first, all - first < TW_PANEL ? all - first : TW_PANEL, pixels[p]);
  alignas(64) float panel[TW_TAPS * TW_PANEL], packed[TW_TAPS * TW_RESULTS];
  const tw_window window = tw_window_of(a);
  int64_t taps = window.points, rows = (results + TW_BLOCK - 1) / TW_BLOCK * TW_BLOCK, step = tw_together(taps);
  for (int64_t channel = 0; channel < a.channels; channel += step) {
    int64_t channels = a.channels - channel < step ? a.channels - channel : step, depth = channels * taps;
    tw_pack_weights(a, weights, channels, results, packed);
    for (int64_t p = 0; p < panels; ++p) {
      if (depth == 0) ;
      else if (a.w.stride == 1) tw_windows<1>(a, x, window, pixels[p], channels, panel);
      else if (a.w.stride == 2) tw_windows<2>(a, x, window, pixels[p], channels, panel);
      else tw_windows<0>(a, x, window, pixels[p], channels, panel);
      float* to = c + p * rows * TW_PANEL;
      if (pixels[p].count <= TW_FEW_PIXELS)
        for (int64_t o = 0; o < results; o += TW_BLOCK)
          tw_few_pixels(depth, packed + o * depth, panel, pixels[p].count, to + o * TW_PANEL, channel == 0);
      else
        for (int64_t o = 0; o < results; o += TW_GROUP)
          tw_tiles<true>(pixels[p].vectors, depth, packed + o / TW_BLOCK * TW_BLOCK * depth + o % TW_BLOCK, TW_BLOCK,
                         panel, to + o * TW_PANEL, TW_PANEL, channel == 0, {panel, 0});
    }
    x += channels * a.x_channel, weights.first += channels * weights.channel;
  }
}

// finish(image, result, nth, pixel, count, sums) for runs of pixels of one image; `nth` of the block.
template <class Finish>
TW void tw_finish(const tw_convolution& a, int64_t first, int64_t count, int64_t result, int64_t results,
                  const float* c, Finish finish) {
  int64_t area = a.d.out * a.h.out * a.w.out;
  for (int64_t at = 0; at < count;) {
    int64_t image = (first + at) / area, pixel = (first + at) % area;
    int64_t run = area - pixel < count - at ? area - pixel : count - at;
    for (int64_t o = 0; o < results; ++o) {
      const float* sums = c + o * TW_PANEL + at;
      if (run == TW_PANEL) finish(image, result + o, o, pixel, TW_PANEL, sums);  // a loop of known length
      else finish(image, result + o, o, pixel, run, sums);
    }
    at += run;
  }
}
// to[l * phases + p] = sums[p * apart + l], for whole vectors of l
TW void tw_side_by_side(const float* sums, int64_t count, int64_t phases, int64_t apart, float* to) {
  if (phases != 2) {
    for (int64_t l = 0; l < count; ++l)
      for (int64_t p = 0; p < phases; ++p) to[l * phases + p] = sums[p * apart + l];
    return;
  }
  for (int64_t l = 0; l < count; l += TW_WIDTH)
    for (int64_t i = 0; i < TW_WIDTH; ++i) {
      to[2 * (l + i)] = sums[l + i];
      to[2 * (l + i) + 1] = sums[apart + l + i];
    }
}
// Pixels as they are worked on: of y, of a phase of it, or those and what lies beyond its edges (below).
struct tw_grid {
  int64_t columns, rows, planes, reach, pixels;  // `reach`: from the first to the last point of a window
};
// finish row by row for the pixels of a transposed convolution's grid, of one phase along depth and height, whose
// phases along the width are `apart` sums apart.
template <class Finish>
static void tw_finish_rows(const tw_convolution& a, const tw_grid& g, int64_t d_phase, int64_t h_phase, int64_t first,
                           int64_t count, int64_t result, int64_t results, const float* c, int64_t apart, Finish finish) {
  alignas(64) float line[TW_PANEL * TW_STEPS];
  const int64_t stride = a.w.stride;
  for (int64_t at = 0, run; at < count; at += run) {
    int64_t w = (first + at) % g.columns * stride, row = (first + at) / g.columns, image = row / (g.rows * g.planes);
    int64_t h = row % g.rows * a.h.stride + h_phase, d = row / g.rows % g.planes * a.d.stride + d_phase;
    run = g.columns - w / stride < count - at ? g.columns - w / stride : count - at;
    if (w >= a.w.out || h >= a.h.out || d >= a.d.out || image >= a.images) continue;
    int64_t length = a.w.out - w < run * stride ? a.w.out - w : run * stride;
    for (int64_t o = 0; o < results; ++o) {
      const float* sums = c + o * TW_PANEL + at;
      if (stride > 1) tw_side_by_side(sums, run, stride, apart, line);
      finish(image, result + o, o, (d * a.h.out + h) * a.w.out + w, length, stride > 1 ? line : sums);
    }
  }
}

// Windows of one pixel: the pixels of an image are one row.
TW tw_convolution tw_flat(tw_convolution a) {
  const tw_side one = {1, 1, 1, 1, 1, 0}, sides[3] = {a.d, a.h, a.w};
  for (const tw_side& s : sides)
    if (s.taps != 1 || s.stride != 1 || s.padding != 0 || s.out != s.size) return a;
  if (a.x_row != a.w.size || (a.d.size > 1 && a.x_plane != a.h.size * a.w.size)) return a;
  a.w.size = a.w.out = a.d.size * a.h.size * a.w.size, a.d = a.h = one;
  return a;
}
// One phase of a transposed convolution, as one at stride one, and its weights from output channel `o` of a
// group on; any other convolution as it is.
struct tw_part {
  tw_convolution a;
  tw_weights weights;
};
static tw_part tw_part_of(const tw_convolution& a, int64_t group, int64_t o, int64_t d, int64_t h, int64_t w) {
  tw_part to = {a, tw_weights_of(a, group, o)};
  if (!a.transposed) return to;
  int64_t tap[3], step[3];
  to.a.d = tw_phase(a.d, d, tap[0], step[0]);
  to.a.h = tw_phase(a.h, h, tap[1], step[1]);
  to.a.w = tw_phase(a.w, w, tap[2], step[2]);
  to.weights.first += tap[0] * to.weights.d + tap[1] * to.weights.h + tap[2] * to.weights.w;
  to.weights.d *= step[0], to.weights.h *= step[1], to.weights.w *= step[2];
  return to;
}

// How the work is cut: blocks of `block` output channels, `tiles` panels, batches of at most `panels` of them.
struct tw_shares {
  int64_t block, blocks, tiles, panels;
};
static tw_shares tw_share(int64_t pixels, int64_t results, int64_t others, int64_t phases, int64_t parts, int64_t most) {
  tw_shares to;
  to.tiles = (pixels + TW_PANEL - 1) / TW_PANEL, to.block = TW_RESULTS;
  if (others * to.tiles * ((results + to.block - 1) / to.block) < 4 * parts && parts > 1) to.block /= 2;
  while (phases * to.block * TW_PANEL > TW_PIXEL_SUMS) to.block /= 2;
  to.blocks = (results + to.block - 1) / to.block;
  int64_t rows = (results < to.block ? results : to.block) + TW_BLOCK - 1;
  to.panels = TW_PIXEL_SUMS / (rows / TW_BLOCK * TW_BLOCK * TW_PANEL * phases);
  if (to.panels > TW_PANELS) to.panels = TW_PANELS;
  if (to.panels > most) to.panels = most;
  return to;
}

// Overlapping windows at stride one: for few output channels, gathering each window takes longer than is lost
// by pixels that nobody needs. Here y has the columns and rows of x with zeros around it, and windows are
// vectors of a copy of that, a strip for each channel.
enum { TW_STRIP = 3 << 14 };  // floats
// The most between the first and the last tap of a window, of any phase.
static int64_t tw_reach(const tw_side& side, bool transposed) {
  int64_t reach = transposed ? 0 : (side.taps - 1) * side.dilation, tap, step;
  for (int64_t phase = 0; transposed && phase < side.stride; ++phase) {
    tw_side one = tw_phase(side, phase, tap, step);
    if ((one.taps - 1) * one.dilation > reach) reach = (one.taps - 1) * one.dilation;
  }
  return reach;
}
// With what lies beyond the edges, or without.
static tw_grid tw_grid_of(const tw_convolution& a, bool beyond) {
  const tw_side* sides[3] = {&a.w, &a.h, &a.d};
  int64_t reach[3] = {0, 0, 0}, extent[3];
  for (int k = 0; k < 3; ++k) {
    int64_t step = a.transposed ? sides[k]->stride : 1;
    if (beyond) reach[k] = tw_reach(*sides[k], a.transposed);
    extent[k] = (sides[k]->out + step - 1) / step + reach[k];
  }
  tw_grid to = {extent[0], extent[1], extent[2]};
  to.reach = (reach[2] * to.rows + reach[1]) * to.columns + reach[0];
  to.pixels = a.images * to.planes * to.rows * to.columns - to.reach;
  return to;
}
TW int64_t tw_strip_panels(const tw_convolution& a, const tw_grid& g) {
  int64_t channels = a.transposed ? TW_CHANNELS : tw_together(a.d.taps * a.h.taps * a.w.taps);
  return (TW_STRIP / channels - 2 * TW_WIDTH - g.reach) / TW_PANEL;
}
static bool tw_has_strips(const tw_convolution& a) {
  if (!a.transposed && a.d.stride * a.h.stride * a.w.stride > 1) return false;
  tw_grid g = tw_grid_of(a, true), y = tw_grid_of(a, false);
  int64_t results = a.results < TW_RESULTS ? a.results : TW_RESULTS;
  bool pays = g.reach && (g.pixels - y.pixels) * results <= 5 * y.pixels && y.pixels > 8 * TW_PANEL;
  return pays && tw_strip_panels(a, g) >= 4;
}
// to[c * step + l]: x with zeros around it at the pixels first + l.
static void tw_fill_strip(const tw_convolution& a, const tw_grid& g, const float* x, int64_t channels, int64_t first,
                          int64_t length, float* to, int64_t step) {
  __builtin_memset(to, 0, channels * step * sizeof(float));
  for (int64_t row = first / g.columns; row * g.columns < first + length; ++row) {
    int64_t y = row % g.rows - a.h.padding, z = row / g.rows % g.planes - a.d.padding, image = row / (g.rows * g.planes);
    if (image == a.images || (uint64_t)y >= (uint64_t)a.h.size || (uint64_t)z >= (uint64_t)a.d.size) continue;
    int64_t at = row * g.columns + a.w.padding - first, low = at < 0 ? -at : 0;
    int64_t end = a.w.size < g.columns - a.w.padding ? a.w.size : g.columns - a.w.padding;
    if (low < -a.w.padding) low = -a.w.padding;  // of some phases, windows begin inside x
    int64_t high = at + end > length ? length - at : end;
    const float* from = x + image * a.x_image + z * a.x_plane + y * a.x_row;
    for (int64_t c = 0; c < channels && low < high; ++c)
      __builtin_memcpy(to + c * step + at + low, from + c * a.x_channel + low, (high - low) * sizeof(float));
  }
}
// Pixels of a grid that are one run of y: where pieces of it are in the sums of an output channel, and in the run.
struct tw_piece {
  int32_t from, to, count;
};
struct tw_pieces {
  int64_t count, image, pixel, length;  // `pixel`: of the image, the run's first
  tw_piece piece[TW_PANELS * TW_PANEL];
};
// The run that begins at `at` or behind it, as far as it is in [start, end); returns where it ends. Sums of a panel
// are `apart` from those of the next.
static int64_t tw_pieces_of(const tw_convolution& a, const tw_grid& g, int64_t start, int64_t end, int64_t at,
                            int64_t apart, tw_pieces& to) {
  to.count = to.length = 0;
  for (int64_t run; at < end; at += run) {
    int64_t w = at % g.columns, row = at / g.columns, h = row % g.rows, d = row / g.rows % g.planes;
    int64_t image = row / (g.rows * g.planes), past = g.columns - w;
    run = past < end - at ? past : end - at;
    if (w >= a.w.out || h >= a.h.out || d >= a.d.out || image >= a.images) continue;
    if (to.count == 0) to.image = image, to.pixel = (d * a.h.out + h) * a.w.out + w;
    if (image != to.image) return at;
    int64_t first = at - start, last = first + (a.w.out - w < run ? a.w.out - w : run);
    for (int64_t some; first < last; first += some, to.length += some) {
      some = TW_PANEL - first % TW_PANEL < last - first ? TW_PANEL - first % TW_PANEL : last - first;
      to.piece[to.count++] = {(int32_t)(first / TW_PANEL * apart + first % TW_PANEL), (int32_t)to.length, (int32_t)some};
    }
  }
  return at;
}
// finish(image, result, nth, pixel, count, sums) for runs of y, put together of the pixels of a grid from `start` on.
// Row by row, loops are short and half of each is left to single elements. One thread of a Xeon, 3 to 16 channels,
// 32 images of 32 x 32, leaky ReLU behind: 0.43 ms, row by row 0.95.
template <class Finish>
static void tw_finish_runs(const tw_convolution& a, const tw_grid& g, int64_t start, int64_t end, int64_t result,
                           int64_t results, const float* c, int64_t apart, Finish finish) {
  alignas(64) float line[TW_PANELS * TW_PANEL + TW_WIDTH];  // whole vectors are written behind the last
  tw_pieces run;
  for (int64_t at = start; at < end;) {
    at = tw_pieces_of(a, g, start, end, at, apart, run);
    for (int64_t o = 0; o < results && run.count; ++o) {
      for (int64_t k = 0; k < run.count; ++k)
        for (int64_t l = 0; l < run.piece[k].count; l += TW_WIDTH)
          tw_write(line + run.piece[k].to + l, tw_read(c + o * TW_PANEL + run.piece[k].from + l));
      finish(run.image, result + o, o, run.pixel, run.length, line);
    }
  }
}
// tw_tile of packed rows, with the columns of term k at q + at[k].
static __attribute__((noinline)) void tw_tile_at(int64_t depth, const float* r, const float* q, const int64_t* at,
                                                 float* c, bool first) {
  tw_vector sums[TW_GROUP][TW_VECTORS];
#pragma GCC unroll 8
  for (int i = 0; i < TW_GROUP; ++i)
#pragma GCC unroll 3
    for (int v = 0; v < TW_VECTORS; ++v) sums[i][v] = (tw_vector){};
  for (int64_t k = 0; k < depth; ++k) {
    tw_vector columns[TW_VECTORS];
#pragma GCC unroll 3
    for (int v = 0; v < TW_VECTORS; ++v) tw_keep(columns[v] = tw_read(q + at[k] + v * TW_WIDTH));
#pragma GCC unroll 8
    for (int i = 0; i < TW_GROUP; ++i)
#pragma GCC unroll 3
      for (int v = 0; v < TW_VECTORS; ++v) sums[i][v] += r[k * TW_BLOCK + i] * columns[v];
  }
#pragma GCC unroll 8
  for (int i = 0; i < TW_GROUP; ++i)
#pragma GCC unroll 3
    for (int v = 0; v < TW_VECTORS; ++v) {
      float* to = c + i * TW_PANEL + v * TW_WIDTH;
      tw_write(to, first ? sums[i][v] : tw_read(to) + sums[i][v]);
    }
}
static void tw_strip_sums(const tw_convolution& a, const tw_grid& g, const float* x, tw_weights weights, int64_t first,
                          int64_t panels, int64_t results, float* c) {
  alignas(64) float strip[TW_STRIP], packed[TW_TAPS * TW_RESULTS];
  int64_t points = a.d.taps * a.h.taps * a.w.taps, together = tw_together(points), at[TW_TAPS];
  int64_t length = panels * TW_PANEL + g.reach, step = (length / (2 * TW_WIDTH) * 2 + 1) * TW_WIDTH;  // lines apart
  int64_t rows = (results + TW_BLOCK - 1) / TW_BLOCK * TW_BLOCK;
  step += step < length ? 2 * TW_WIDTH : 0;
  if (together > TW_STRIP / step) together = TW_STRIP / step;
  for (int64_t k = 0; k < together * points; ++k) {
    int64_t t = k % points, row = t / a.w.taps;
    int64_t plane = row / a.h.taps * a.d.dilation * g.rows + row % a.h.taps * a.h.dilation;
    at[k] = k / points * step + plane * g.columns + t % a.w.taps * a.w.dilation;
  }
  for (int64_t channel = 0; channel < a.channels; channel += together) {
    int64_t channels = a.channels - channel < together ? a.channels - channel : together, depth = channels * points;
    tw_pack_weights(a, weights, channels, results, packed);
    tw_fill_strip(a, g, x, channels, first, length, strip, step);
    for (int64_t p = 0; p < panels; ++p)
      for (int64_t o = 0; o < results; o += TW_GROUP)
        tw_tile_at(depth, packed + o / TW_BLOCK * TW_BLOCK * depth + o % TW_BLOCK, strip + p * TW_PANEL, at,
                   c + (p * rows + o) * TW_PANEL, channel == 0);
    x += channels * a.x_channel, weights.first += channels * weights.channel;
  }
}

// prepare(result, results): what finish needs of a block of output channels.
template <class Prepare, class Finish>
static void tw_convolve(const tw_convolution& a, int64_t tid, int64_t parts, Prepare prepare, Finish finish) {
  alignas(64) float c[TW_PIXEL_SUMS + TW_PANEL];  // whole vectors are read behind the last
  const bool strips = tw_has_strips(a);
  const tw_grid g = tw_grid_of(a, strips);
  int64_t phases = a.transposed ? a.w.stride : 1, others = a.transposed ? a.d.stride * a.h.stride : 1, ready = -1;
  const bool runs = (strips || a.transposed) && a.d.stride * a.h.stride * a.w.stride == 1;
  const int64_t most = strips ? tw_strip_panels(a, g) : TW_PANELS;
  const tw_shares s = tw_share(g.pixels, a.results, a.groups * others, phases, parts, most);
  int64_t work = others * a.groups * s.blocks * s.tiles, end = work * (tid + 1) / parts, panels;
  for (int64_t t = work * tid / parts; t < end; t += panels) {
    int64_t tile = t % s.tiles, o = t / s.tiles % s.blocks * s.block, start = tile * TW_PANEL;
    int64_t group = t / (s.tiles * s.blocks) % a.groups, phase = t / (s.tiles * s.blocks * a.groups);
    int64_t d = phase / a.h.stride, h = phase % a.h.stride;
    int64_t results = a.results - o < s.block ? a.results - o : s.block, result = group * a.results + o;
    panels = s.tiles - tile < end - t ? s.tiles - tile : end - t;
    if (panels > s.panels) panels = s.panels;
    int64_t rows = (results + TW_BLOCK - 1) / TW_BLOCK * TW_BLOCK, apart = panels * rows * TW_PANEL;
    if (result != ready) prepare(result, results), ready = result;
    for (int64_t w = 0; w < phases; ++w) {
      const tw_part part = tw_part_of(a, group, o, d, h, w);
      const float* x = a.x + group * a.channels * a.x_channel;
      if (strips) tw_strip_sums(part.a, g, x, part.weights, start, panels, results, c + w * apart);
      else tw_sums(tw_flat(part.a), x, part.weights, start, g.pixels, panels, results, c + w * apart);
    }
    if (runs) {
      int64_t last = start + panels * TW_PANEL, stop = last < g.pixels ? last : g.pixels;
      tw_finish_runs(a, g, start, stop, result, results, c, rows * TW_PANEL, finish);
      continue;
    }
    for (int64_t p = 0, first = start; p < panels; ++p, first += TW_PANEL) {
      int64_t count = g.pixels - first < TW_PANEL ? g.pixels - first : TW_PANEL;
      const float* sums = c + p * rows * TW_PANEL;
      if (a.transposed) tw_finish_rows(a, g, d, h, first, count, result, results, sums, apart, finish);
      else tw_finish(a, first, count, result, results, sums, finish);
    }
  }
}
#pragma GCC pop_options
