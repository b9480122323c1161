// Convolutions of float32 images,  y[n, o, h, w] = sum over c, i, j of x[n, c, h', w'] * weight[o, c, i, j],
// as products without a copy of the windows: x, y and the weights stay as they lie in memory.
//
//   for groups of output channels, for PANEL pixels of y:   shared out among threads
//     for blocks of channels:                               about DEPTH terms in one chain, as eager's
//       gather the pixels' windows: [c, i, j][PANEL]         fits the first-level cache
//       for GROUPs of output channels:                      tiles of product.h, rows are weights
//     finish(n, o, pixel, count, sums)                      what the caller does with the sums
//
// Measured on Zen 5, one thread, ResNet-50's shapes: 210-260 GFLOP/s where oneDNN, in eager's order,
// reaches 250 for 3 x 3 and 110 for 1 x 1; the error against float64 is eager's.
#pragma GCC push_options
#pragma GCC optimize("fp-contract=fast")
enum { TW_CHAIN = 144, TW_SIDE = 16, TW_TAPS = 192, TW_RESULTS = 256 };

struct tw_convolution {
  const float *x, *weight;
  int64_t images, channels, height, width, x_image, x_channel, x_row;  // columns of x are adjacent
  int64_t results, out_height, out_width;
  int64_t taps_h, taps_w, stride_h, stride_w, dilation_h, dilation_w, padding_h, padding_w;
};

// Lanes of a vector that lie in one row of y; `start`: the element of x, from the start of a channel,
// that lane 0 would have at the first tap.
struct tw_run {
  int64_t start;
  uint32_t lanes;
};
// Of each vector of pixels: its runs, and the lanes that are inside x at each tap.
struct tw_pixels {
  int vectors, runs[TW_VECTORS];
  tw_run run[TW_VECTORS][TW_WIDTH];
  uint32_t rows[TW_VECTORS][TW_SIDE], columns[TW_VECTORS][TW_SIDE];
};

// Bits of the `count` positions from, from + step, ... that are inside [0, size).
TW uint32_t tw_inside(int64_t from, int64_t step, int64_t count, int64_t size) {
  int64_t below = from < 0 ? -from : 0, above = from < size ? size - from : 0;
  int64_t low = step == 1 ? below : (below + step - 1) / step;
  int64_t high = step == 1 ? above : (above + step - 1) / step;
  if (high > count) high = count;
  return low < high ? (1u << high) - (1u << low) : 0;
}

static void tw_locate(const tw_convolution& a, int64_t first, int64_t count, tw_pixels& to) {
  to.vectors = (count + TW_WIDTH - 1) / TW_WIDTH;
  memset(to.runs, 0, sizeof to.runs);
  memset(to.rows, 0, sizeof to.rows);
  memset(to.columns, 0, sizeof to.columns);
  int64_t w = first % a.out_width, h = first / a.out_width % a.out_height;
  int64_t n = first / (a.out_width * a.out_height);
  for (int64_t at = 0, length; at < count; at += length) {
    int v = at / TW_WIDTH, lane = at % TW_WIDTH;
    length = TW_WIDTH - lane;
    if (length > a.out_width - w) length = a.out_width - w;
    if (length > count - at) length = count - at;
    int64_t y = h * a.stride_h - a.padding_h, x = w * a.stride_w - a.padding_w;
    uint32_t lanes = ((1u << length) - 1) << lane;
    to.run[v][to.runs[v]++] = {n * a.x_image + y * a.x_row + x - lane * a.stride_w, lanes};
    for (int64_t i = 0; i < a.taps_h; ++i)
      if ((uint64_t)(y + i * a.dilation_h) < (uint64_t)a.height) to.rows[v][i] |= lanes;
    for (int64_t j = 0; j < a.taps_w; ++j)
      to.columns[v][j] |= tw_inside(x + j * a.dilation_w, a.stride_w, length, a.width) << lane;
    w += length;
    if (w == a.out_width) {
      w = 0;
      if (++h == a.out_height) h = 0, ++n;
    }
  }
}

// `v` with p[lane * STRIDE] in the lanes of the mask; nothing is read elsewhere.
TW tw_vector tw_lanes_of(const float* p, int64_t stride, uint32_t mask, tw_vector v) {
  for (int lane = 0; lane < TW_WIDTH; ++lane)
    if (mask >> lane & 1) v[lane] = p[lane * stride];
  return v;
}
#if defined(__AVX512F__) && defined(__BMI2__)
TW tw_vector tw_masked(const float* p, uint32_t mask, tw_vector v) {
  return (tw_vector)__builtin_ia32_loadups512_mask(p, v, mask);
}
template <int STRIDE>
TW tw_vector tw_gather(const float* p, int64_t stride, const tw_run* run, int runs, uint32_t inside,
                       tw_vector outside = (tw_vector){}) {
  tw_vector low = outside, high = outside;
  for (int r = 0; r < runs; ++r) {
    uint32_t mask = run[r].lanes & inside;
    const float* from = p + run[r].start;
    if (STRIDE == 1) {
      low = tw_masked(from, mask, low);
    } else if (STRIDE == 2) {
      uint32_t even = __builtin_ia32_pdep_si(mask, 0x55555555);
      low = tw_masked(from, even & 0xffff, low);
      high = tw_masked(from + TW_WIDTH, even >> 16, high);
    } else {
      low = tw_lanes_of(from, stride, mask, low);
    }
  }
  if (STRIDE != 2) return low;
  return __builtin_shuffle(low, high, (tw_order){0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30});
}
#else
template <int STRIDE>
TW tw_vector tw_gather(const float* p, int64_t stride, const tw_run* run, int runs, uint32_t inside,
                       tw_vector outside = (tw_vector){}) {
  tw_vector v = outside;
  for (int r = 0; r < runs; ++r) v = tw_lanes_of(p + run[r].start, stride, run[r].lanes & inside, v);
  return v;
}
#endif

// How the windows of V vectors of pixels lie: anyhow, each vector within a row of y, or that and inside x.
enum tw_shape { TW_ANY, TW_ROW, TW_INSIDE };
template <int STRIDE, int V, tw_shape SHAPE>
static __attribute__((noinline)) void tw_windows(
    const tw_convolution& a, const tw_pixels& pixels, int64_t channel, int64_t channels, float* to) {
  for (int64_t c = channel; c < channel + channels; ++c)
    for (int64_t i = 0; i < a.taps_h; ++i) {
      const float* row = a.x + c * a.x_channel + i * a.dilation_h * a.x_row;
      // What the next pixels need. One thread, ResNet-50: 168 ms with it, 188 without.
#pragma GCC unroll 3
      for (int v = 0; v < V; ++v) __builtin_prefetch(row + pixels.run[v][0].start + a.stride_w * TW_PANEL, 0, 2);
      for (int64_t j = 0; j < a.taps_w; ++j)
#pragma GCC unroll 3
        for (int v = 0; v < V; ++v, to += TW_WIDTH)
          if (SHAPE == TW_INSIDE && STRIDE == 1)
            tw_write(to, tw_read(row + j * a.dilation_w + pixels.run[v][0].start));
          else
            tw_write(to, tw_gather<STRIDE>(row + j * a.dilation_w, a.stride_w, pixels.run[v],
                                           SHAPE == TW_ANY ? pixels.runs[v] : 1,
                                           pixels.rows[v][i] & pixels.columns[v][j]));
    }
}
template <int STRIDE>
static void tw_windows_of(
    const tw_convolution& a, const tw_pixels& pixels, int64_t channel, int64_t channels, float* to) {
  uint32_t inside = ~0u;
  bool in_rows = true;
  for (int v = 0; v < pixels.vectors; ++v) {
    in_rows = in_rows && pixels.runs[v] == 1;
    inside &= pixels.run[v][0].lanes & pixels.rows[v][0] & pixels.rows[v][a.taps_h - 1];
    inside &= pixels.columns[v][0] & pixels.columns[v][a.taps_w - 1];
  }
  bool whole = inside == (1ull << TW_WIDTH) - 1;
  if (pixels.vectors == 1) tw_windows<STRIDE, 1, TW_ANY>(a, pixels, channel, channels, to);
  else if (pixels.vectors == 2) tw_windows<STRIDE, 2, TW_ANY>(a, pixels, channel, channels, to);
  else if (!in_rows) tw_windows<STRIDE, 3, TW_ANY>(a, pixels, channel, channels, to);
  else if (!whole) tw_windows<STRIDE, 3, TW_ROW>(a, pixels, channel, channels, to);
  else tw_windows<STRIDE, 3, TW_INSIDE>(a, pixels, channel, channels, to);
}

// c[result][PANEL] = the sums of `results` output channels, from `result` on, at the pixels.
static void tw_sums(const tw_convolution& a, const tw_pixels& pixels, int64_t result, int64_t results, float* c) {
  alignas(64) float panel[TW_TAPS * TW_PANEL], rest[TW_TAPS * TW_GROUP];
  int64_t taps = a.taps_h * a.taps_w, row = a.channels * taps, whole = results / TW_GROUP * TW_GROUP;
  int64_t step = taps > TW_CHAIN ? 1 : TW_CHAIN / taps;
  for (int64_t channel = 0; channel < a.channels; channel += step) {
    int64_t channels = a.channels - channel < step ? a.channels - channel : step, depth = channels * taps;
    if (a.stride_w == 1) tw_windows_of<1>(a, pixels, channel, channels, panel);
    else if (a.stride_w == 2) tw_windows_of<2>(a, pixels, channel, channels, panel);
    else tw_windows_of<0>(a, pixels, channel, channels, panel);
    const float* weight = a.weight + result * row + channel * taps;
    for (int64_t o = 0; o < whole; o += TW_GROUP)
      tw_tiles<false>(pixels.vectors, depth, weight + o * row, row, panel, c + o * TW_PANEL, TW_PANEL, channel == 0);
    if (whole == results) continue;
    for (int64_t k = 0; k < depth; ++k)
      for (int64_t o = 0; o < TW_GROUP; ++o)
        rest[k * TW_GROUP + o] = whole + o < results ? weight[(whole + o) * row + k] : 0;
    tw_tiles<true>(pixels.vectors, depth, rest, 0, panel, c + whole * TW_PANEL, TW_PANEL, channel == 0);
  }
}

// finish(image, result, nth, pixel, count, sums) for runs of pixels of one image; `nth` of the group.
template <class Finish>
TW void tw_finish(const tw_convolution& a, int64_t first, int64_t count, int64_t result, int64_t results,
                  const float* c, Finish finish) {
  int64_t area = a.out_height * a.out_width;
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

// prepare(result, results): what finish needs of a group of output channels.
template <class Prepare, class Finish>
static void tw_convolve(const tw_convolution& a, int64_t tid, int64_t parts, Prepare prepare, Finish finish) {
  alignas(64) float c[TW_RESULTS * TW_PANEL];
  int64_t all = a.images * a.out_height * a.out_width, tiles = (all + TW_PANEL - 1) / TW_PANEL;
  int64_t group = TW_RESULTS;
  if (tiles * ((a.results + group - 1) / group) < 4 * parts) group /= 2;
  int64_t work = tiles * ((a.results + group - 1) / group), ready = -1;
  for (int64_t t = work * tid / parts; t < work * (tid + 1) / parts; ++t) {
    int64_t first = t % tiles * TW_PANEL, result = t / tiles * group;
    int64_t count = all - first < TW_PANEL ? all - first : TW_PANEL;
    int64_t results = a.results - result < group ? a.results - result : group;
    if (result != ready) prepare(result, results), ready = result;
    tw_pixels pixels;
    tw_locate(a, first, count, pixels);
    tw_sums(a, pixels, result, results, c);
    tw_finish(a, first, count, result, results, c, finish);
  }
}

// Depthwise: a vector has the same pixel of WIDTH channels. Blocks of rows are turned to that, with zeros
// around them, added up window by window, and turned back.
struct tw_block {
  int64_t pitch, rows, inputs, area;  // vectors in a row of x; rows of y and of x; pixels of y, in vectors
  float *x, *y, *turned;              // vectors, vectors, [channel][area]
};
enum { TW_ROOM = 3072, TW_ABREAST = 8 };  // vectors of x: 192 KB; sums at a time
static tw_block tw_block_of(const tw_convolution& a) {
  tw_block to;
  int64_t high = (a.taps_h - 1) * a.dilation_h + 1, wide = (a.taps_w - 1) * a.dilation_w + 1;
  to.pitch = (a.out_width - 1) * a.stride_w + wide;
  if (to.pitch < a.padding_w + a.width) to.pitch = a.padding_w + a.width;
  to.rows = (TW_ROOM / to.pitch - high) / a.stride_h + 1;
  if (to.rows < 1) to.rows = 1;
  if (to.rows > a.out_height) to.rows = a.out_height;
  to.inputs = (to.rows - 1) * a.stride_h + high;
  to.area = (to.rows * a.out_width + TW_WIDTH - 1) / TW_WIDTH * TW_WIDTH;
  to.x = (float*)calloc((to.inputs * to.pitch + 2 * to.area) * TW_WIDTH, sizeof(float));
  to.y = to.x + to.inputs * to.pitch * TW_WIDTH;
  to.turned = to.y + to.area * TW_WIDTH;
  return to;
}

// to[pixel][channel] = from[channel][pixel]; channels that are not there are zero.
TW void tw_turn_some(const float* from, int64_t row, int64_t channels, int64_t pixels, float* to) {
  if (channels == TW_WIDTH && pixels == TW_WIDTH) return tw_turn(from, row, to, (int64_t)TW_WIDTH);
  alignas(64) float lines[TW_WIDTH * TW_WIDTH];
  for (int64_t c = 0; c < TW_WIDTH; ++c)
    tw_write(lines + c * TW_WIDTH,
             tw_lanes_of(from + c * row, 1, c < channels ? (1u << pixels) - 1 : 0, (tw_vector){}));
  tw_turn(lines, (int64_t)TW_WIDTH, to, (int64_t)TW_WIDTH);
}
// `count` pixels that lie one after the other, from the start of row `row` of the block on.
static void tw_turn_in(const tw_convolution& a, const float* x, int64_t channels, int64_t count, int64_t row,
                       const tw_block& to) {
  alignas(64) float square[TW_WIDTH * TW_WIDTH];
  int64_t column = 0;
  for (int64_t p = 0; p < count; p += TW_WIDTH) {
    int64_t pixels = count - p < TW_WIDTH ? count - p : TW_WIDTH;
    float* at = to.x + (row * to.pitch + a.padding_w + column) * TW_WIDTH;
    if (pixels == TW_WIDTH && column + pixels <= a.width) {
      tw_turn_some(x + p, a.x_channel, channels, pixels, at);
      column += pixels;
      if (column == a.width) column = 0, ++row;
      continue;
    }
    tw_turn_some(x + p, a.x_channel, channels, pixels, square);
    for (int64_t l = 0; l < pixels; ++l, at += TW_WIDTH) {
      tw_write(at, tw_read(square + l * TW_WIDTH));
      if (++column == a.width) column = 0, ++row, at += (to.pitch - a.width) * TW_WIDTH;
    }
  }
}
static void tw_fill(const tw_convolution& a, const float* x, int64_t channels, int64_t top, const tw_block& to) {
  int64_t low = top < 0 ? 0 : top, high = top + to.inputs < a.height ? top + to.inputs : a.height;
  int64_t line = to.pitch * TW_WIDTH;
  if (low > high) low = high = top;
  memset(to.x, 0, (low - top) * line * sizeof(float));
  memset(to.x + (high - top) * line, 0, (to.inputs - (high - top)) * line * sizeof(float));
  if (a.x_row == a.width) return tw_turn_in(a, x + low * a.width, channels, (high - low) * a.width, low - top, to);
  for (int64_t r = low; r < high; ++r) tw_turn_in(a, x + r * a.x_row, channels, a.width, r - top, to);
}

// V neighbouring outputs, STRIDE columns of x apart; 0: a.stride_w
template <int STRIDE, int V>
TW void tw_depthwise_sums(const tw_convolution& a, const float* x, int64_t pitch, const float* weight, float* y) {
  int64_t step = (STRIDE ? STRIDE : a.stride_w) * TW_WIDTH;
  tw_vector sums[V];
#pragma GCC unroll 8
  for (int v = 0; v < V; ++v) sums[v] = (tw_vector){};
  for (int64_t i = 0; i < a.taps_h; ++i)
    for (int64_t j = 0; j < a.taps_w; ++j, weight += TW_WIDTH) {
      const float* from = x + (i * a.dilation_h * pitch + j * a.dilation_w) * TW_WIDTH;
      tw_vector factor = tw_read(weight);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) sums[v] += factor * tw_read(from + v * step);
    }
#pragma GCC unroll 8
  for (int v = 0; v < V; ++v) tw_write(y + v * TW_WIDTH, sums[v]);
}
template <int STRIDE, int V>
static void tw_depthwise_some(const tw_convolution& a, const float* x, int64_t pitch, const float* weight,
                              int64_t count, float* y) {
  if constexpr (V > 1) {
    if (count < V) return tw_depthwise_some<STRIDE, V - 1>(a, x, pitch, weight, count, y);
  }
  tw_depthwise_sums<STRIDE, V>(a, x, pitch, weight, y);
}
template <int STRIDE>
static void tw_depthwise_rows(const tw_convolution& a, const float* weight, int64_t rows, const tw_block& b) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t w = 0; w < a.out_width; w += TW_ABREAST)
      tw_depthwise_some<STRIDE, TW_ABREAST>(
          a, b.x + (r * a.stride_h * b.pitch + w * a.stride_w) * TW_WIDTH, b.pitch, weight, a.out_width - w,
          b.y + (r * a.out_width + w) * TW_WIDTH);
}

template <class Prepare, class Finish>
static void tw_depthwise(const tw_convolution& a, int64_t tid, int64_t parts, Prepare prepare, Finish finish) {
  alignas(64) float weight[TW_TAPS * TW_WIDTH];
  tw_block b = tw_block_of(a);
  int64_t taps = a.taps_h * a.taps_w, groups = (a.results + TW_WIDTH - 1) / TW_WIDTH;
  int64_t blocks = (a.out_height + b.rows - 1) / b.rows, work = a.images * groups * blocks, ready = -1;
  for (int64_t t = work * tid / parts; t < work * (tid + 1) / parts; ++t) {
    int64_t image = t / (groups * blocks), result = t / blocks % groups * TW_WIDTH, h = t % blocks * b.rows;
    int64_t channels = a.results - result < TW_WIDTH ? a.results - result : TW_WIDTH;
    int64_t rows = a.out_height - h < b.rows ? a.out_height - h : b.rows, first = result / TW_RESULTS * TW_RESULTS;
    if (first != ready) prepare(first, a.results - first < TW_RESULTS ? a.results - first : TW_RESULTS), ready = first;
    for (int64_t k = 0; k < taps; ++k)
      for (int64_t c = 0; c < TW_WIDTH; ++c) weight[k * TW_WIDTH + c] = c < channels ? a.weight[(result + c) * taps + k] : 0;
    tw_fill(a, a.x + image * a.x_image + result * a.x_channel, channels, h * a.stride_h - a.padding_h, b);
    if (a.stride_w == 1) tw_depthwise_rows<1>(a, weight, rows, b);
    else if (a.stride_w == 2) tw_depthwise_rows<2>(a, weight, rows, b);
    else tw_depthwise_rows<0>(a, weight, rows, b);
    for (int64_t p = 0; p < rows * a.out_width; p += TW_WIDTH)
      tw_turn(b.y + p * TW_WIDTH, (int64_t)TW_WIDTH, b.turned + p, b.area);
    for (int64_t c = 0; c < channels; ++c)
      finish(image, result + c, result + c - first, h * a.out_width, rows * a.out_width, b.turned + c * b.area);
  }
  free(b.x);
}

// y[p, h, w] = the maximum of x[p, h', w'] over a window, NaN if there is one. Planes are dense.
struct tw_pooling {
  const float* x;
  float* y;
  int64_t planes, height, width, out_height, out_width;
  int64_t taps_h, taps_w, stride_h, stride_w, dilation_h, dilation_w, padding_h, padding_w;
};
template <int STRIDE>
static __attribute__((noinline)) void tw_pool_row(const tw_pooling& a, const float* x, int64_t h, float* y) {
  int64_t top = h * a.stride_h - a.padding_h, stride = STRIDE ? STRIDE : a.stride_w;
  for (int64_t w = 0; w < a.out_width; w += TW_WIDTH) {
    int64_t count = a.out_width - w < TW_WIDTH ? a.out_width - w : TW_WIDTH;
    tw_vector lowest = (tw_vector){} - TW_INF, best = lowest;
    for (int64_t j = 0; j < a.taps_w; ++j) {
      int64_t from = w * stride - a.padding_w + j * a.dilation_w;  // column of lane 0
      tw_run run = {top * a.width + from, tw_inside(from, stride, count, a.width)};
      for (int64_t i = 0; i < a.taps_h; ++i)
        if ((uint64_t)(top + i * a.dilation_h) < (uint64_t)a.height) {
          const float* row = x + i * a.dilation_h * a.width;
          tw_vector v = tw_gather<STRIDE>(row, stride, &run, 1, run.lanes, lowest);
          best = (v > best) | (v != v) ? v : best;
        }
    }
    if (count == TW_WIDTH) tw_write(y + w, best);
    else for (int64_t lane = 0; lane < count; ++lane) y[w + lane] = best[lane];
  }
}
static void tw_pool(const tw_pooling& a, int64_t tid, int64_t parts) {
  int64_t work = a.planes * a.out_height;
  for (int64_t t = work * tid / parts; t < work * (tid + 1) / parts; ++t) {
    const float* x = a.x + t / a.out_height * a.height * a.width;
    int64_t h = t % a.out_height;
    if (a.stride_w == 1) tw_pool_row<1>(a, x, h, a.y + t * a.out_width);
    else if (a.stride_w == 2) tw_pool_row<2>(a, x, h, a.y + t * a.out_width);
    else tw_pool_row<0>(a, x, h, a.y + t * a.out_width);
  }
}
#pragma GCC pop_options
