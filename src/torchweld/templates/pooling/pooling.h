// Max pooling of float32 images: the maximum of x[p, d', h', w'] over a window, NaN if there is one. Planes are
// dense. Rows of a window first, along which x is adjacent, then columns of what is left, a line:
//
//   for rows of the result:
//     line[w'] = the maximum over d', h' of x[p, d', h', w']     -inf beside the image
//     maxima[w] = the maximum over the taps of line[w * stride + tap * dilation]
//     finish(row, maxima)                                        what the caller does with them
#pragma GCC push_options
#pragma GCC optimize("fp-contract=fast")
struct tw_pooling {
  const float* x;
  int64_t planes;
  tw_side d, h, w;
};
// `v` joins: a maximum passes over NaN, which `nan` has.
TW void tw_pool_join(tw_vector& best, tw_vector& nan, tw_vector v) {
  nan = v != v ? v : nan;
  best = v > best ? v : best;
}
TW tw_vector tw_pool_merged(tw_vector best, tw_vector nan) { return nan != nan ? nan : best; }
TW tw_vector tw_pool_over(const float* const* row, int64_t rows, int64_t at) {
  tw_vector best = (tw_vector){} - TW_INF, nan = (tw_vector){};
  for (int64_t r = 0; r < rows; ++r) tw_pool_join(best, nan, tw_read(row[r] + at));
  return tw_pool_merged(best, nan);
}
static __attribute__((noinline)) void tw_pool_rows(const float* const* row, int64_t rows, int64_t width, float* to) {
  int64_t at = 0;
  for (; at + TW_WIDTH <= width; at += TW_WIDTH) tw_write(to + at, tw_pool_over(row, rows, at));
  if (at == width) return;
  if (width >= TW_WIDTH) return tw_write(to + width - TW_WIDTH, tw_pool_over(row, rows, width - TW_WIDTH));
  for (; at < width; ++at) {
    float best = -TW_INF;
    for (int64_t r = 0; r < rows; ++r) best = tw_maximum(best, row[r][at]);
    to[at] = best;
  }
}
// Every STRIDE-th element; 0: every stride-th.
template <int STRIDE> TW tw_vector tw_pool_column(const float* from, int64_t stride) {
  if (STRIDE == 1) return tw_read(from);
#if TW_WIDTH == 16
  if (STRIDE == 2)
    return __builtin_shuffle(tw_read(from), tw_read(from + TW_WIDTH),
                             (tw_order){0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30});
#endif
  const tw_run all = {0, (uint32_t)((1ull << TW_WIDTH) - 1)};
  return tw_gather<0>(from, stride, &all, 1, all.lanes);
}
template <int STRIDE>
static __attribute__((noinline)) void tw_pool_columns(const tw_side& w, const float* line, float* to) {
  for (int64_t at = 0; at < w.out; at += TW_WIDTH) {
    tw_vector best = (tw_vector){} - TW_INF, nan = (tw_vector){};
    for (int64_t j = 0; j < w.taps; ++j)
      tw_pool_join(best, nan, tw_pool_column<STRIDE>(line + at * w.stride + j * w.dilation, w.stride));
    tw_write(to + at, tw_pool_merged(best, nan));
  }
}
// A row of the result, and where its windows begin.
struct tw_pool_place {
  int64_t plane, d, h;
};
TW void tw_pool_next(const tw_pooling& a, tw_pool_place& at) {
  if (++at.h < a.h.out) return;
  at.h = 0;
  if (++at.d < a.d.out) return;
  at.d = 0, ++at.plane;
}
// The rows of x that its windows have.
static int64_t tw_pool_find(const tw_pooling& a, const tw_pool_place& at, const float** row) {
  int64_t h = at.h * a.h.stride - a.h.padding, d = at.d * a.d.stride - a.d.padding, rows = 0;
  const float* x = a.x + at.plane * a.d.size * a.h.size * a.w.size;
  for (int64_t i = 0; i < a.d.taps; ++i)
    for (int64_t j = 0; j < a.h.taps; ++j) {
      int64_t z = d + i * a.d.dilation, y = h + j * a.h.dilation;
      if ((uint64_t)z < (uint64_t)a.d.size && (uint64_t)y < (uint64_t)a.h.size)
        row[rows++] = x + (z * a.h.size + y) * a.w.size;
    }
  return rows;
}
// Lines of a few rows at a time: reading what was just written, at other places, would wait for it.
enum { TW_POOL_ROWS = 4 };
template <class Finish> static void tw_pool(const tw_pooling& a, int64_t tid, int64_t parts, Finish finish) {
  int64_t out = (a.w.out + TW_WIDTH - 1) / TW_WIDTH * TW_WIDTH;
  int64_t length = out * a.w.stride + a.w.taps * a.w.dilation + 2 * TW_WIDTH + a.w.padding + a.w.size;
  const float* row[a.d.taps * a.h.taps];
  float* lines = (float*)malloc(sizeof(float) * (TW_POOL_ROWS * length + out));
  float* maxima = lines + TW_POOL_ROWS * length;
  for (int64_t i = 0; i < TW_POOL_ROWS * length; ++i) lines[i] = -TW_INF;
  int64_t work = a.planes * a.d.out * a.h.out, t = work * tid / parts, last = work * (tid + 1) / parts;
  tw_pool_place at = {t / (a.d.out * a.h.out), t / a.h.out % a.d.out, t % a.h.out}, from = at;
  for (int64_t count; t < last; t += count) {
    count = last - t < TW_POOL_ROWS ? last - t : TW_POOL_ROWS;
    for (int64_t r = 0; r < count; ++r, tw_pool_next(a, from))
      tw_pool_rows(row, tw_pool_find(a, from, row), a.w.size, lines + r * length + a.w.padding);
    for (int64_t r = 0; r < count; ++r, tw_pool_next(a, at)) {
      const float* line = lines + r * length;
      if (a.w.stride == 1) tw_pool_columns<1>(a.w, line, maxima);
      else if (a.w.stride == 2) tw_pool_columns<2>(a.w, line, maxima);
      else tw_pool_columns<0>(a.w, line, maxima);
      finish(at, maxima);
    }
  }
  free(lines);
}
#pragma GCC pop_options
