// Depthwise convolutions of images.h: a vector has the same pixel of WIDTH channels. Blocks of planes and rows are
// turned to that, with zeros around them, added up window by window, and turned back.
//
// Transposed, the pixels of y of a phase (images.h) are a convolution at stride one, with some of the weights: their
// windows are side by side in x, and they are `stride` apart in y. A plain convolution has one phase.
#pragma GCC push_options
#pragma GCC optimize("fp-contract=fast")
enum { TW_ROOM = 3072, TW_ABREAST = 8 };  // vectors of x, and of y: 192 KB; sums at a time

// The windows of one phase along one side: how many zeros before x the first begins, and its taps among the weights.
struct tw_kind {
  int64_t padding, taps, dilation, tap, step;
};
static tw_kind tw_kind_of(const tw_convolution& a, const tw_side& side, int64_t phase) {
  int64_t tap = 0, step = 1;
  const tw_side of = a.transposed ? tw_phase(side, phase, tap, step) : side;
  return {of.padding, of.taps, of.dilation, tap, step};
}
// One side of a block: the nth pixels of all phases are adjacent in y, and their windows begin n * step behind those
// of the first.
struct tw_span {
  int64_t phases, step, before, reach;  // zeros before x; pixels from there to the end of the first windows
  int64_t out, inputs;                  // pixels of y, a multiple of the phases, and of x
};
static tw_span tw_span_of(const tw_convolution& a, const tw_side& side) {
  tw_span to = {a.transposed ? side.stride : 1, a.transposed ? 1 : side.stride};
  for (int64_t phase = 0; phase < to.phases; ++phase) {
    const tw_kind kind = tw_kind_of(a, side, phase);
    if (kind.taps && kind.padding > to.before) to.before = kind.padding;
  }
  for (int64_t phase = 0; phase < to.phases; ++phase) {
    const tw_kind kind = tw_kind_of(a, side, phase);
    int64_t reach = to.before - kind.padding + (kind.taps - 1) * kind.dilation + 1;
    if (kind.taps && reach > to.reach) to.reach = reach;
  }
  return to;
}
// As many pixels as there is room for in x and in y.
static void tw_cut(const tw_side& side, int64_t x, int64_t y, tw_span& to) {
  int64_t count = (x - to.reach) / to.step + 1, most = (side.out + to.phases - 1) / to.phases;
  if (count > y / to.phases) count = y / to.phases;
  if (count > most) count = most;
  if (count < 1) count = 1;
  to.out = count * to.phases, to.inputs = (count - 1) * to.step + to.reach;
}
struct tw_block {
  tw_span d, h, w;        // `w` is whole
  int64_t area;           // pixels of y, in vectors
  float *x, *y, *turned;  // vectors, vectors, [channel][area]
  void* memory;
};
static tw_block tw_block_of(const tw_convolution& a) {
  tw_block to = {tw_span_of(a, a.d), tw_span_of(a, a.h), tw_span_of(a, a.w)};
  tw_cut(a.w, INT64_MAX / 2, INT64_MAX / 2, to.w);
  if (to.w.inputs < to.w.before + a.w.size) to.w.inputs = to.w.before + a.w.size;
  tw_cut(a.h, TW_ROOM / (to.w.inputs * to.d.reach), TW_ROOM / (a.w.out * to.d.phases), to.h);
  tw_cut(a.d, TW_ROOM / (to.w.inputs * to.h.inputs), TW_ROOM / (a.w.out * to.h.out), to.d);
  int64_t inputs = to.d.inputs * to.h.inputs * to.w.inputs;
  to.area = (to.d.out * to.h.out * a.w.out + TW_WIDTH - 1) / TW_WIDTH * TW_WIDTH;
  // Vectors that cross no lines of the cache: 8 x 384 x 14 x 14, 7 x 7, 1.14 ms, 1.48 from where calloc begins.
  to.memory = calloc((inputs + 2 * to.area + 1) * TW_WIDTH, sizeof(float));
  to.x = (float*)(((uintptr_t)to.memory + sizeof(tw_vector) - 1) / sizeof(tw_vector) * sizeof(tw_vector));
  to.y = to.x + inputs * TW_WIDTH;
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
// `count` pixels that lie one after the other, into rows of a block, from the start of the first one on.
static void tw_turn_in(const tw_convolution& a, const float* x, int64_t channels, int64_t count, const tw_span& w,
                       float* to) {
  alignas(64) float square[TW_WIDTH * TW_WIDTH];
  int64_t column = 0;
  to += w.before * TW_WIDTH;
  for (int64_t p = 0; p < count; p += TW_WIDTH) {
    int64_t pixels = count - p < TW_WIDTH ? count - p : TW_WIDTH;
    float* at = to + column * TW_WIDTH;
    if (pixels == TW_WIDTH && column + pixels <= a.w.size) {
      tw_turn_some(x + p, a.x_channel, channels, pixels, at);
      column += pixels;
      if (column == a.w.size) column = 0, to += w.inputs * TW_WIDTH;
      continue;
    }
    tw_turn_some(x + p, a.x_channel, channels, pixels, square);
    for (int64_t l = 0; l < pixels; ++l, at += TW_WIDTH) {
      tw_write(at, tw_read(square + l * TW_WIDTH));
      if (++column < a.w.size) continue;
      column = 0, to += w.inputs * TW_WIDTH, at += (w.inputs - a.w.size) * TW_WIDTH;
    }
  }
}
// A plane of the block, whose first row is `top` of x.
static void tw_fill_plane(const tw_convolution& a, const float* x, int64_t channels, int64_t top, const tw_block& b,
                          float* to) {
  int64_t low = top < 0 ? 0 : top, high = top + b.h.inputs < a.h.size ? top + b.h.inputs : a.h.size;
  int64_t line = b.w.inputs * TW_WIDTH;
  if (low > high) low = high = top;
  __builtin_memset(to, 0, (low - top) * line * sizeof(float));
  __builtin_memset(to + (high - top) * line, 0, (b.h.inputs - (high - top)) * line * sizeof(float));
  to += (low - top) * line;
  if (a.x_row == a.w.size) return tw_turn_in(a, x + low * a.w.size, channels, (high - low) * a.w.size, b.w, to);
  for (int64_t r = low; r < high; ++r, to += line) tw_turn_in(a, x + r * a.x_row, channels, a.w.size, b.w, to);
}
// `front` and `top`: the plane and row of x that the block begins with.
static void tw_fill(const tw_convolution& a, const float* x, int64_t channels, int64_t front, int64_t top,
                    const tw_block& b) {
  int64_t plane = b.h.inputs * b.w.inputs * TW_WIDTH;
  float* to = b.x;
  for (int64_t d = front; d < front + b.d.inputs; ++d, to += plane)
    if ((uint64_t)d < (uint64_t)a.d.size) tw_fill_plane(a, x + d * a.x_plane, channels, top, b, to);
    else __builtin_memset(to, 0, plane * sizeof(float));
}

// Windows of one phase: taps along depth, height and width, and how far apart they are in x and among the weights, in
// floats.
struct tw_walk {
  int64_t taps[3], x[3], weight[3];
  int64_t start, first;  // from the block and the weights to the first tap of the first window
};
static tw_walk tw_walk_of(const tw_convolution& a, const tw_block& b, int64_t d, int64_t h, int64_t w) {
  const tw_kind kinds[3] = {tw_kind_of(a, a.d, d), tw_kind_of(a, a.h, h), tw_kind_of(a, a.w, w)};
  const tw_span* spans[3] = {&b.d, &b.h, &b.w};
  int64_t x[3] = {b.h.inputs * b.w.inputs, b.w.inputs, 1}, weight[3] = {a.h.taps * a.w.taps, a.w.taps, 1};
  tw_walk to = {};
  for (int k = 0; k < 3; ++k) {
    to.taps[k] = kinds[k].taps;
    to.x[k] = kinds[k].dilation * x[k] * TW_WIDTH, to.weight[k] = kinds[k].step * weight[k] * TW_WIDTH;
    to.start += (spans[k]->before - kinds[k].padding) * x[k] * TW_WIDTH;
    to.first += kinds[k].tap * weight[k] * TW_WIDTH;
  }
  return to;
}
// V sums, `apart` in y, whose windows are STRIDE columns of x apart, 0: `stride`. Inlined, the loops lack registers:
// 8 x 384 x 14 x 14, 7 x 7, 1.1 ms, 1.6 inlined.
template <int STRIDE, int V>
static __attribute__((noinline)) void tw_depthwise_sums(
    const tw_walk& walk, const float* x, int64_t stride, const float* weight, float* y, int64_t apart) {
  int64_t step = (STRIDE ? STRIDE : stride) * TW_WIDTH;
  tw_vector sums[V];
#pragma GCC unroll 8
  for (int v = 0; v < V; ++v) sums[v] = (tw_vector){};
  for (int64_t k = 0; k < walk.taps[0]; ++k)
    for (int64_t i = 0; i < walk.taps[1]; ++i) {
      const float* from = x + k * walk.x[0] + i * walk.x[1];
      const float* by = weight + k * walk.weight[0] + i * walk.weight[1];
      for (int64_t j = 0; j < walk.taps[2]; ++j, from += walk.x[2], by += walk.weight[2]) {
        tw_vector factor = tw_read(by);
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) sums[v] += factor * tw_read(from + v * step);
      }
    }
#pragma GCC unroll 8
  for (int v = 0; v < V; ++v) tw_write(y + v * apart, sums[v]);
}
template <int STRIDE, int V>
static void tw_depthwise_some(const tw_walk& walk, const float* x, int64_t stride, const float* weight, int64_t count,
                              float* y, int64_t apart) {
  if constexpr (V > 1) {
    if (count < V) return tw_depthwise_some<STRIDE, V - 1>(walk, x, stride, weight, count, y, apart);
  }
  tw_depthwise_sums<STRIDE, V>(walk, x, stride, weight, y, apart);
}
// The planes and rows of the block that are `d` and `h` modulo the phases.
template <int STRIDE>
static void tw_depthwise_rows(const tw_convolution& a, const float* weight, int64_t d, int64_t planes, int64_t h,
                              int64_t rows, const tw_block& b) {
  const int64_t line = b.w.inputs * TW_WIDTH, stride = b.w.step, phases = b.w.phases, apart = phases * TW_WIDTH;
  tw_walk walks[TW_STEPS];
  for (int64_t w = 0; w < phases; ++w) walks[w] = tw_walk_of(a, b, d, h, w);
  for (int64_t z = d; z < planes; z += b.d.phases)
    for (int64_t r = h; r < rows; r += b.h.phases) {
      const float* x = b.x + (z / b.d.phases * b.d.step * b.h.inputs + r / b.h.phases * b.h.step) * line;
      float* y = b.y + (z * rows + r) * a.w.out * TW_WIDTH;
      for (int64_t w = 0; w < phases; ++w, y += TW_WIDTH) {
        const float *from = x + walks[w].start, *by = weight + walks[w].first;
        for (int64_t n = 0, count = (a.w.out - w + phases - 1) / phases; n < count; n += TW_ABREAST)
          tw_depthwise_some<STRIDE, TW_ABREAST>(walks[w], from + n * stride * TW_WIDTH, stride, by, count - n,
                                                y + n * apart, apart);
      }
    }
}
// weight[tap][channel]; of channels that are not there, zeros.
static void tw_turn_weights(const tw_convolution& a, int64_t result, int64_t channels, int64_t taps, float* weight) {
  for (int64_t k = 0; k < taps; ++k)
    for (int64_t c = 0; c < TW_WIDTH; ++c)
      weight[k * TW_WIDTH + c] = c < channels ? a.weight[(result + c) * taps + k] : 0;
}

template <class Prepare, class Finish>
static void tw_depthwise(const tw_convolution& a, int64_t tid, int64_t parts, Prepare prepare, Finish finish) {
  alignas(64) float weight[TW_TAPS * TW_WIDTH];
  tw_block b = tw_block_of(a);
  int64_t taps = a.d.taps * a.h.taps * a.w.taps, groups = (a.groups + TW_WIDTH - 1) / TW_WIDTH, ready = -1;
  int64_t down = (a.h.out + b.h.out - 1) / b.h.out, blocks = (a.d.out + b.d.out - 1) / b.d.out * down;
  int64_t work = a.images * groups * blocks;
  for (int64_t t = work * tid / parts; t < work * (tid + 1) / parts; ++t) {
    int64_t image = t / (groups * blocks), result = t / blocks % groups * TW_WIDTH;
    int64_t d = t % blocks / down * b.d.out, h = t % down * b.h.out;
    int64_t planes = a.d.out - d < b.d.out ? a.d.out - d : b.d.out;
    int64_t rows = a.h.out - h < b.h.out ? a.h.out - h : b.h.out, first = result / TW_RESULTS * TW_RESULTS;
    int64_t channels = a.groups - result < TW_WIDTH ? a.groups - result : TW_WIDTH;
    if (first != ready) prepare(first, a.groups - first < TW_RESULTS ? a.groups - first : TW_RESULTS), ready = first;
    tw_turn_weights(a, result, channels, taps, weight);
    tw_fill(a, a.x + image * a.x_image + result * a.x_channel, channels, d / b.d.phases * b.d.step - b.d.before,
            h / b.h.phases * b.h.step - b.h.before, b);
    for (int64_t phase = 0; phase < b.d.phases * b.h.phases; ++phase) {
      int64_t z = phase / b.h.phases, r = phase % b.h.phases;
      if (b.w.step == 1) tw_depthwise_rows<1>(a, weight, z, planes, r, rows, b);
      else if (b.w.step == 2) tw_depthwise_rows<2>(a, weight, z, planes, r, rows, b);
      else tw_depthwise_rows<0>(a, weight, z, planes, r, rows, b);
    }
    int64_t area = a.h.out * a.w.out, start = d * area + h * a.w.out, pixels = planes * rows * a.w.out;
    int64_t run = rows == a.h.out ? pixels : rows * a.w.out;  // whole planes are one
    for (int64_t p = 0; p < pixels; p += TW_WIDTH) tw_turn(b.y + p * TW_WIDTH, (int64_t)TW_WIDTH, b.turned + p, b.area);
    for (int64_t c = 0; c < channels; ++c)
      for (int64_t p = 0; p < pixels; p += run)
        finish(image, result + c, result + c - first, start + p / run * area, run, b.turned + c * b.area + p);
  }
  free(b.memory);
}
#pragma GCC pop_options
