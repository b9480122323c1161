// Max pooling of float32 images,
// y[p, h, w] = the maximum of x[p, h', w'] over a window, NaN if there is one. Planes are dense.
#pragma GCC push_options
#pragma GCC optimize("fp-contract=fast")
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
