// Depthwise convolutions of images.h: a vector has the same pixel of WIDTH channels. Blocks of rows are turned to that, with zeros
// around them, added up window by window, and turned back.
#pragma GCC push_options
#pragma GCC optimize("fp-contract=fast")
struct tw_block {
  int64_t pitch, rows, inputs, area;  // vectors in a row of x; rows of y and of x; pixels of y, in vectors
  float *x, *y, *turned;              // vectors, vectors, [channel][area]
};
enum { TW_ROOM = 3072, TW_ABREAST = 8 };  // vectors of x: 192 KB; sums at a time
static tw_block tw_block_of(const tw_convolution& a) {
  tw_block to;
  int64_t high = (a.h.taps - 1) * a.h.dilation + 1, wide = (a.w.taps - 1) * a.w.dilation + 1;
  to.pitch = (a.w.out - 1) * a.w.stride + wide;
  if (to.pitch < a.w.padding + a.w.size) to.pitch = a.w.padding + a.w.size;
  to.rows = (TW_ROOM / to.pitch - high) / a.h.stride + 1;
  if (to.rows < 1) to.rows = 1;
  if (to.rows > a.h.out) to.rows = a.h.out;
  to.inputs = (to.rows - 1) * a.h.stride + high;
  to.area = (to.rows * a.w.out + TW_WIDTH - 1) / TW_WIDTH * TW_WIDTH;
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
    float* at = to.x + (row * to.pitch + a.w.padding + column) * TW_WIDTH;
    if (pixels == TW_WIDTH && column + pixels <= a.w.size) {
      tw_turn_some(x + p, a.x_channel, channels, pixels, at);
      column += pixels;
      if (column == a.w.size) column = 0, ++row;
      continue;
    }
    tw_turn_some(x + p, a.x_channel, channels, pixels, square);
    for (int64_t l = 0; l < pixels; ++l, at += TW_WIDTH) {
      tw_write(at, tw_read(square + l * TW_WIDTH));
      if (++column == a.w.size) column = 0, ++row, at += (to.pitch - a.w.size) * TW_WIDTH;
    }
  }
}
static void tw_fill(const tw_convolution& a, const float* x, int64_t channels, int64_t top, const tw_block& to) {
  int64_t low = top < 0 ? 0 : top, high = top + to.inputs < a.h.size ? top + to.inputs : a.h.size;
  int64_t line = to.pitch * TW_WIDTH;
  if (low > high) low = high = top;
  __builtin_memset(to.x, 0, (low - top) * line * sizeof(float));
  __builtin_memset(to.x + (high - top) * line, 0, (to.inputs - (high - top)) * line * sizeof(float));
  if (a.x_row == a.w.size) return tw_turn_in(a, x + low * a.w.size, channels, (high - low) * a.w.size, low - top, to);
  for (int64_t r = low; r < high; ++r) tw_turn_in(a, x + r * a.x_row, channels, a.w.size, r - top, to);
}

// V neighbouring outputs, STRIDE columns of x apart; 0: a.w.stride
template <int STRIDE, int V>
TW void tw_depthwise_sums(const tw_convolution& a, const float* x, int64_t pitch, const float* weight, float* y) {
  int64_t step = (STRIDE ? STRIDE : a.w.stride) * TW_WIDTH;
  tw_vector sums[V];
#pragma GCC unroll 8
  for (int v = 0; v < V; ++v) sums[v] = (tw_vector){};
  for (int64_t i = 0; i < a.h.taps; ++i)
    for (int64_t j = 0; j < a.w.taps; ++j, weight += TW_WIDTH) {
      const float* from = x + (i * a.h.dilation * pitch + j * a.w.dilation) * TW_WIDTH;
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
    for (int64_t w = 0; w < a.w.out; w += TW_ABREAST)
      tw_depthwise_some<STRIDE, TW_ABREAST>(
          a, b.x + (r * a.h.stride * b.pitch + w * a.w.stride) * TW_WIDTH, b.pitch, weight, a.w.out - w,
          b.y + (r * a.w.out + w) * TW_WIDTH);
}

template <class Prepare, class Finish>
static void tw_depthwise(const tw_convolution& a, int64_t tid, int64_t parts, Prepare prepare, Finish finish) {
  alignas(64) float weight[TW_TAPS * TW_WIDTH];
  tw_block b = tw_block_of(a);
  int64_t taps = a.h.taps * a.w.taps, groups = (a.groups + TW_WIDTH - 1) / TW_WIDTH;
  int64_t blocks = (a.h.out + b.rows - 1) / b.rows, work = a.images * groups * blocks, ready = -1;
  for (int64_t t = work * tid / parts; t < work * (tid + 1) / parts; ++t) {
    int64_t image = t / (groups * blocks), result = t / blocks % groups * TW_WIDTH, h = t % blocks * b.rows;
    int64_t channels = a.groups - result < TW_WIDTH ? a.groups - result : TW_WIDTH;
    int64_t rows = a.h.out - h < b.rows ? a.h.out - h : b.rows, first = result / TW_RESULTS * TW_RESULTS;
    if (first != ready) prepare(first, a.groups - first < TW_RESULTS ? a.groups - first : TW_RESULTS), ready = first;
    for (int64_t k = 0; k < taps; ++k)
      for (int64_t c = 0; c < TW_WIDTH; ++c) weight[k * TW_WIDTH + c] = c < channels ? a.weight[(result + c) * taps + k] : 0;
    tw_fill(a, a.x + image * a.x_image + result * a.x_channel, channels, h * a.h.stride - a.h.padding, b);
    if (a.w.stride == 1) tw_depthwise_rows<1>(a, weight, rows, b);
    else if (a.w.stride == 2) tw_depthwise_rows<2>(a, weight, rows, b);
    else tw_depthwise_rows<0>(a, weight, rows, b);
    for (int64_t p = 0; p < rows * a.w.out; p += TW_WIDTH)
      tw_turn(b.y + p * TW_WIDTH, (int64_t)TW_WIDTH, b.turned + p, b.area);
    for (int64_t c = 0; c < channels; ++c)
      finish(image, result + c, result + c - first, h * a.w.out, rows * a.w.out, b.turned + c * b.area);
  }
  free(b.x);
}
#pragma GCC pop_options
