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
TW tw_vector tw_pool_over(const float* const* row, int64_t rows, int64_t at, int64_t ahead) {
  tw_vector best = (tw_vector){} - TW_INF, nan = (tw_vector){};
  for (int64_t r = 0; r < rows; ++r) {
    __builtin_prefetch(row[r] + at + ahead, 0, 2);
    tw_pool_join(best, nan, tw_read(row[r] + at));
  }
  return tw_pool_merged(best, nan);
}
// Columns from `at` to `end`; `ahead`: where those of the next row are.
static __attribute__((noinline)) void tw_pool_rows(const float* const* row, int64_t rows, int64_t at, int64_t end,
                                                    int64_t ahead, float* to) {
  int64_t first = at;
  for (; at + TW_WIDTH <= end; at += TW_WIDTH) tw_write(to + at, tw_pool_over(row, rows, at, ahead));
  if (at == end) return;
  if (end - first >= TW_WIDTH) return tw_write(to + end - TW_WIDTH, tw_pool_over(row, rows, end - TW_WIDTH, ahead));
  const tw_run some = {0, (1u << (end - at)) - 1};
  tw_vector lowest = (tw_vector){} - TW_INF, best = lowest, nan = (tw_vector){};
  for (int64_t r = 0; r < rows; ++r) tw_pool_join(best, nan, tw_gather<1>(row[r] + at, 1, &some, 1, some.lanes, lowest));
  tw_write(to + at, tw_pool_merged(best, nan));
}
// The maxima of a vector of windows, the first of which begins at `line`.
template <int STRIDE> TW tw_vector tw_pool_taps(const tw_side& w, const float* line) {
  tw_vector best = (tw_vector){} - TW_INF, nan = (tw_vector){};
  for (int64_t j = 0; j < w.taps; ++j, line += w.dilation) {
    tw_vector v = tw_read(line);
#if TW_WIDTH == 16
    if (STRIDE == 2)
      v = __builtin_shuffle(v, tw_read(line + TW_WIDTH),
                            (tw_order){0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30});
#endif
    tw_pool_join(best, nan, v);
  }
  return tw_pool_merged(best, nan);
}
// The maxima from `at` to `end`, of a line whose first element is where the first window begins. In longer
// steps, those of windows at every element: they are read side by side, and gathering takes longer.
template <int STRIDE>
static __attribute__((noinline)) void tw_pool_columns(const tw_side& w, const float* line, int64_t at, int64_t end,
                                                       float* to) {
  if (STRIDE) {
    for (; at < end; at += TW_WIDTH) tw_write(to + at, tw_pool_taps<STRIDE>(w, line + at * STRIDE));
    return;
  }
  alignas(64) float all[w.stride * TW_WIDTH];
  for (; at < end; at += TW_WIDTH) {
    for (int64_t i = 0; i < w.stride * (TW_WIDTH - 1) + 1; i += TW_WIDTH)
      tw_write(all + i, tw_pool_taps<1>(w, line + at * w.stride + i));
    for (int l = 0; l < TW_WIDTH; ++l) to[at + l] = all[l * w.stride];
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
// Elements that a vector of maxima reads.
TW int64_t tw_pool_reach(const tw_side& w) { return (w.taps - 1) * w.dilation + w.stride * TW_WIDTH; }
// Windows within a single row of x read that, where a vector of them is inside it; others a line.
template <int STRIDE>
static void tw_pool_row(const tw_side& w, const float* row, int64_t ahead, float* line, float* maxima) {
  int64_t reach = tw_pool_reach(w), step = w.stride * TW_WIDTH;
  int64_t low = (w.padding + step - 1) / step * TW_WIDTH, inside = w.size + w.padding - reach;
  int64_t high = inside < 0 ? 0 : (inside / step + 1) * TW_WIDTH;
  if (high > w.out) high = w.out / TW_WIDTH * TW_WIDTH;
  if (high < low) high = low;
  int64_t before = low ? low * w.stride - step - w.padding + reach : 0, after = high * w.stride - w.padding;
  float* image = line + w.padding;
  tw_pool_rows(&row, 1, 0, before < w.size ? before : w.size, ahead, image);
  tw_pool_columns<STRIDE>(w, line, 0, low < w.out ? low : w.out, maxima);
  tw_pool_columns<STRIDE>(w, row - w.padding, low, high, maxima);
  if (after < w.size) tw_pool_rows(&row, 1, after, w.size, ahead, image);
  tw_pool_columns<STRIDE>(w, line, high, w.out, maxima);
}
// Lines of a few rows at a time: reading what was just written, at other places, would wait for it.
enum { TW_POOL_ROWS = 4 };
template <int STRIDE, class Finish>
static void tw_pool_in(const tw_pooling& a, int64_t tid, int64_t parts, Finish finish) {
  int64_t out = (a.w.out + TW_WIDTH - 1) / TW_WIDTH * TW_WIDTH, read = out * a.w.stride + tw_pool_reach(a.w);
  int64_t length = (read > a.w.padding + a.w.size ? read : a.w.padding + a.w.size) / TW_WIDTH * TW_WIDTH + 2 * TW_WIDTH;
  int64_t points = a.d.taps * a.h.taps, ahead = a.h.stride * a.w.size;
  const float* row[points];
  float* lines = (float*)malloc(sizeof(float) * (TW_POOL_ROWS * length + out));
  float* maxima = lines + TW_POOL_ROWS * length;
  for (int64_t i = 0; i < TW_POOL_ROWS * length; ++i) lines[i] = -TW_INF;
  int64_t work = a.planes * a.d.out * a.h.out, t = work * tid / parts, last = work * (tid + 1) / parts;
  tw_pool_place at = {t / (a.d.out * a.h.out), t / a.h.out % a.d.out, t % a.h.out}, from = at;
  for (int64_t count; t < last; t += count) {
    count = last - t < TW_POOL_ROWS ? last - t : TW_POOL_ROWS;
    for (int64_t r = 0; r < count && points > 1; ++r, tw_pool_next(a, from))
      tw_pool_rows(row, tw_pool_find(a, from, row), 0, a.w.size, TW_POOL_ROWS * ahead, lines + r * length + a.w.padding);
    for (int64_t r = 0; r < count; ++r, tw_pool_next(a, at)) {
      if (points > 1) tw_pool_columns<STRIDE>(a.w, lines + r * length, 0, a.w.out, maxima);
      else tw_pool_find(a, at, row), tw_pool_row<STRIDE>(a.w, row[0], ahead, lines, maxima);
      finish(at, maxima);
    }
  }
  free(lines);
}
template <class Finish> static void tw_pool(const tw_pooling& a, int64_t tid, int64_t parts, Finish finish) {
  if (a.w.stride == 1) tw_pool_in<1>(a, tid, parts, finish);
  else if (a.w.stride == 2 && TW_WIDTH == 16) tw_pool_in<2>(a, tid, parts, finish);
  else tw_pool_in<0>(a, tid, parts, finish);
}
#pragma GCC pop_options
