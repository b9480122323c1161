// Images of float32 and windows on them: their geometry, and vectors gathered from them.
#pragma GCC push_options
#pragma GCC optimize("fp-contract=fast")
// The most points of a window; output channels worked on together; the longest stride of a transposed one along w.
enum { TW_TAPS = 192, TW_RESULTS = 256, TW_STEPS = 8 };

// One dimension of images and windows; of an absent one all numbers are 1, the padding 0.
struct tw_side {
  int64_t size, out, taps, stride, dilation, padding;
};
struct tw_convolution {
  const float *x, *weight;
  int64_t groups, images, channels, results;  // channels and results of one group
  int64_t x_image, x_channel, x_plane, x_row;  // columns of x are adjacent
  tw_side d, h, w;
  int64_t transposed;
};
// The pixels of y that are `phase` modulo the stride, along one side, as a convolution at stride one: windows
// that begin at `tap` and take each `step`th.
TW tw_side tw_phase(const tw_side& side, int64_t phase, int64_t& tap, int64_t& step) {
  tw_side to = side;
  to.out = (side.out + side.stride - 1) / side.stride, to.stride = 1, to.taps = 0;
  int64_t lowest = 0, last = -1, next = 0;
  for (int64_t i = side.taps - 1; i >= 0; --i) {  // from the last tap on, places in x ascend
    int64_t place = phase + side.padding - i * side.dilation;
    if (place % side.stride) continue;
    if (to.taps++ == 0) lowest = place / side.stride, last = i;
    else if (to.taps == 2) next = i, to.dilation = place / side.stride - lowest;
  }
  to.padding = -lowest, tap = last < 0 ? 0 : last, step = to.taps > 1 ? next - last : 0;
  return to;
}
// Lanes of a vector that lie in one row of y; `start`: the element of x, from the start of a channel,
// that lane 0 would have at the first tap.
struct tw_run {
  int64_t start;
  uint32_t lanes;
};
// Bits of the `count` positions from, from + step, ... that are inside [0, size).
TW uint32_t tw_inside(int64_t from, int64_t step, int64_t count, int64_t size) {
  int64_t below = from < 0 ? -from : 0, above = from < size ? size - from : 0;
  int64_t low = step == 1 ? below : (below + step - 1) / step;
  int64_t high = step == 1 ? above : (above + step - 1) / step;
  if (high > count) high = count;
  return low < high ? (1u << high) - (1u << low) : 0;
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
TW tw_vector tw_strided(const float* p, int64_t stride, uint32_t mask, tw_vector v) {
  tw_order order = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return (tw_vector)__builtin_ia32_gathersiv16sf(v, p, order * (int32_t)stride, mask, 4);
}
TW tw_vector tw_evens(tw_vector low, tw_vector high) {
  return __builtin_shuffle(low, high, (tw_order){0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30});
}
#elif defined(__AVX2__) && defined(__BMI2__)
TW tw_order tw_lanes_in(uint32_t mask) {
  return ((tw_order){1, 2, 4, 8, 16, 32, 64, 128} & (int32_t)mask) != 0;
}
TW tw_vector tw_masked(const float* p, uint32_t mask, tw_vector v) {
  tw_order lanes = tw_lanes_in(mask);
  return lanes ? (tw_vector)__builtin_ia32_maskloadps256((const tw_vector*)p, lanes) : v;
}
TW tw_vector tw_strided(const float* p, int64_t stride, uint32_t mask, tw_vector v) {
  tw_order order = {0, 1, 2, 3, 4, 5, 6, 7};
  return (tw_vector)__builtin_ia32_gathersiv8sf(v, p, order * (int32_t)stride, (tw_vector)tw_lanes_in(mask), 4);
}
TW tw_vector tw_evens(tw_vector low, tw_vector high) {
  return __builtin_shuffle(low, high, (tw_order){0, 2, 4, 6, 8, 10, 12, 14});
}
#endif
#if defined(__AVX2__) && defined(__BMI2__)
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
      low = tw_masked(from, even & ((1u << TW_WIDTH) - 1), low);
      high = tw_masked(from + TW_WIDTH, even >> TW_WIDTH, high);
    } else {
      low = tw_strided(from, stride, mask, low);
    }
  }
  return STRIDE == 2 ? tw_evens(low, high) : low;
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
#pragma GCC pop_options
