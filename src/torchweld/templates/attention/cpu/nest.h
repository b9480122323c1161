// Score nests in float32 (templates/attention/nest.py), by gcc's vector types. Both products of a tile run
// in the same loops:
//
//   scores[row][key]   = rows[row][depth]   * panels of keys     [depth][PANEL], made by tw_pack_across
//   sums[row][column] += weights[row][key]  * panels of values   [key][PANEL],   made by tw_pack_along
//
// TW_ROWS rows by PANEL columns are in registers. A panel stays in L1 while all rows of a tile pass by. What
// is left of rows and columns is computed too, and not looked at. TW_FEW: there is one group of rows, which
// reads keys and values as they lie in memory, once, and asks for those some 2 KB ahead (which the processor
// alone does not: 7.9 ms for 67 MB, 6.2 with it, as long as summing them up). Both are defined before this.
#pragma GCC push_options
#pragma GCC optimize("fp-contract=fast")
#if defined(__AVX512F__)
enum { TW_WIDTH = 16, TW_VECTORS = 4 };
#elif defined(__AVX__)
enum { TW_WIDTH = 8, TW_VECTORS = 2 };
#else
enum { TW_WIDTH = 4, TW_VECTORS = 2 };
#endif
enum { TW_PANEL = TW_VECTORS * TW_WIDTH, TW_AHEAD = 512 };  // floats
typedef float tw_vector __attribute__((vector_size(4 * TW_WIDTH)));
typedef float tw_memory __attribute__((vector_size(4 * TW_WIDTH), aligned(4)));
TW tw_vector tw_read(const float* p) { return *(const tw_memory*)p; }
TW void tw_write(float* p, tw_vector v) { *(tw_memory*)p = v; }
TW int64_t tw_least(int64_t a, int64_t b) { return a < b ? a : b; }
TW int64_t tw_most(int64_t a, int64_t b) { return a > b ? a : b; }
TW int64_t tw_whole(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
// a place relative to a tile as 32 bits, in whose lanes comparisons with positions are fast
TW int32_t tw_near(int64_t n) { return (int32_t)tw_most(-(1 << 30), tw_least(1 << 30, n)); }

// ROWS rows of c, V vectors each: a * b, added to c * scale if ADD
template <int V, bool ADD>
static __attribute__((noinline)) void tw_rows(int64_t depth, const float* a, int64_t a_row, const float* b,
                                              int64_t b_row, float* c, int64_t c_row, const float* scale) {
  tw_vector sums[TW_ROWS][V];
#pragma GCC unroll 8
  for (int i = 0; i < TW_ROWS; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) sums[i][v] = (tw_vector){};
  const float* a3 = a + 3 * a_row;
  for (int64_t k = 0; k < depth; ++k, b += b_row) {
    tw_vector columns[V];
    if (TW_FEW && ADD)
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) __builtin_prefetch(b + TW_AHEAD / (V * TW_WIDTH) * b_row + v * TW_WIDTH);
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) tw_keep(columns[v] = tw_read(b + v * TW_WIDTH));
#pragma GCC unroll 8
    for (int i = 0; i < TW_ROWS; ++i) {
      const float factor = i < 3 ? a[i * a_row + k] : a3[(i - 3) * a_row + k];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sums[i][v] += factor * columns[v];
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < TW_ROWS; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      float* at = c + i * c_row + v * TW_WIDTH;
      tw_write(at, ADD ? tw_read(at) * scale[i] + sums[i][v] : sums[i][v]);
    }
}
template <bool ADD>
static void tw_panel(int64_t vectors, int64_t depth, const float* a, int64_t a_row, const float* b, int64_t width,
                     float* c, int64_t c_row, const float* scale) {
  if (vectors == TW_VECTORS) tw_rows<TW_VECTORS, ADD>(depth, a, a_row, b, width, c, c_row, scale);
  else if (vectors == 1) tw_rows<1, ADD>(depth, a, a_row, b, width, c, c_row, scale);
  else if constexpr (TW_VECTORS > 2) {
    if (vectors == 2) tw_rows<2, ADD>(depth, a, a_row, b, width, c, c_row, scale);
    else tw_rows<3, ADD>(depth, a, a_row, b, width, c, c_row, scale);
  }
}
// A factor in panels: how many columns and terms were packed, of which a product may use fewer. Or, with
// a `row`, as it lies in memory: terms so far apart, columns adjacent.
struct tw_panels { const float* at; int64_t columns, depth, row; };
// c[rows][columns] = a[rows][depth] * b; c and `scale` have room for whole groups and vectors
template <bool ADD>
static void tw_multiply(int64_t rows, int64_t columns, int64_t depth, const float* a, int64_t a_row, tw_panels b,
                        float* c, int64_t c_row, const float* scale) {
  for (int64_t j = 0; j < columns; j += TW_PANEL) {
    const int64_t vectors = tw_least(TW_VECTORS, (columns - j + TW_WIDTH - 1) / TW_WIDTH);
    const int64_t width = b.row ? b.row : tw_least(TW_PANEL, tw_whole(b.columns - j, TW_WIDTH));
    const float* panel = b.at + j * (b.row ? 1 : b.depth);
    for (int64_t i = 0; i < rows; i += TW_ROWS)
      tw_panel<ADD>(vectors, depth, a + i * a_row, a_row, panel, width, c + i * c_row + j, c_row,
                    ADD ? scale + i : scale);
  }
}

// 16-bit elements
struct tw_f16 { uint16_t bits; };
struct tw_bf16 { uint16_t bits; };
TW float tw_wide(float v) { return v; }
TW float tw_wide(tw_f16 v) { return tw_from_f16(v.bits); }
TW float tw_wide(tw_bf16 v) { return tw_from_bf16(v.bits); }
TW void tw_widen(const tw_f16* from, int64_t count, float* to) { tw_widen_f16((const uint16_t*)from, count, to); }
TW void tw_widen(const tw_bf16* from, int64_t count, float* to) { tw_widen_bf16((const uint16_t*)from, count, to); }
// `count` elements `step` apart as adjacent floats: where they are, or at `spare`
TW const float* tw_line(const float* from, int64_t step, int64_t count, float* spare) {
  if (step == 1) return from;
  for (int64_t i = 0; i < count; ++i) spare[i] = from[i * step];
  return spare;
}
template <class E> TW const float* tw_line(const E* from, int64_t step, int64_t count, float* spare) {
  if (step == 1) tw_widen(from, count, spare);
  else for (int64_t i = 0; i < count; ++i) spare[i] = tw_wide(from[i * step]);
  return spare;
}

// Some keys' depths, which line(key) points to, as panels of [depth][keys]: squares are turned, the last
// ones in a copy with zeros around. `spare`: WIDTH * depth elements for lines that must be made first.
template <class Line>
static void tw_pack_across(int64_t keys, int64_t depth, float* to, Line line) {
  alignas(64) float square[TW_WIDTH * TW_WIDTH];
  for (int64_t j = 0; j < keys; j += TW_WIDTH) {
    const int64_t panel = j / TW_PANEL * TW_PANEL, some = tw_least(TW_WIDTH, keys - j);
    const int64_t width = tw_least(TW_PANEL, tw_whole(keys - panel, TW_WIDTH));
    float* at = to + panel * depth + j - panel;
    const float* lines[TW_WIDTH];
    for (int64_t i = 0; i < some; ++i) lines[i] = line(j + i, i);
    const int64_t row = some > 1 ? lines[1] - lines[0] : 0;
    bool even = some == TW_WIDTH;
    for (int64_t i = 1; i < some; ++i) even &= lines[i] - lines[i - 1] == row;
    int64_t k = 0;
    for (; even && k + TW_WIDTH <= depth; k += TW_WIDTH) tw_turn(lines[0] + k, row, at + k * width, width);
    for (; k < depth; k += TW_WIDTH) {
      const int64_t deep = tw_least(TW_WIDTH, depth - k);
      __builtin_memset(square, 0, sizeof square);
      for (int64_t i = 0; i < some; ++i)
        for (int64_t l = 0; l < deep; ++l) square[l * TW_WIDTH + i] = lines[i][k + l];
      for (int64_t l = 0; l < deep; ++l) tw_write(at + (k + l) * width, tw_read(square + l * TW_WIDTH));
    }
  }
}
// Some keys' columns, which line(key) points to, as panels of [keys][columns], zeros at the end
template <class Line>
static void tw_pack_along(int64_t keys, int64_t columns, float* to, Line line) {
  for (int64_t n = 0; n < keys; ++n) {
    const float* from = line(n, 0);
    for (int64_t p = 0; p < columns; p += TW_PANEL) {
      const int64_t left = tw_least(TW_PANEL, columns - p), width = tw_whole(left, TW_WIDTH);
      float* at = to + p * keys + n * width;
      int64_t l = 0;
      for (; l + TW_WIDTH <= left; l += TW_WIDTH) tw_write(at + l, tw_read(from + p + l));
      for (; l < width; ++l) at[l] = l < left ? from[p + l] : 0.0f;
    }
  }
}
// The same for keys that are adjacent in memory: panels of [depth][keys] from lines of one depth each
template <class Line>
static void tw_pack_columns(int64_t keys, int64_t depth, float* to, Line line) { tw_pack_along(depth, keys, to, line); }

// For one group of rows, when keys are read once: scores[row][key] from the keys as they lie in memory,
// some keys at a time
template <int SOME, class Line>
TW void tw_some_dots(int64_t key, int64_t depth, const float* a, float* scores, int64_t row, Line line) {
  tw_vector sums[TW_ROWS][SOME] = {};
  const float* lines[SOME];
  for (int j = 0; j < SOME; ++j) lines[j] = line(key + j, j);
  const int64_t ahead = SOME > 1 ? (lines[SOME - 1] - lines[0]) / (SOME - 1) * tw_most(1, TW_AHEAD / depth) : 0;
  int64_t k = 0;
  for (; k + TW_WIDTH <= depth; k += TW_WIDTH)
#pragma GCC unroll 4
    for (int j = 0; j < SOME; ++j) {
      __builtin_prefetch(lines[j] + k + ahead);
      const tw_vector terms = tw_read(lines[j] + k);
#pragma GCC unroll 8
      for (int i = 0; i < TW_ROWS; ++i) sums[i][j] += tw_read(a + i * depth + k) * terms;
    }
#pragma GCC unroll 8
  for (int i = 0; i < TW_ROWS; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < SOME; ++j) {
      float sum = tw_halved_sum<float, TW_WIDTH>(sums[i][j]);
      for (int64_t l = k; l < depth; ++l) sum += a[i * depth + l] * lines[j][l];
      scores[i * row + key + j] = sum;
    }
}
template <class Line>
static void tw_dots(int64_t keys, int64_t depth, const float* a, float* scores, int64_t row, Line line) {
  enum { SOME = TW_ROWS > 3 ? 2 : 4 };
  int64_t n = 0;
  for (; n + SOME <= keys; n += SOME) tw_some_dots<SOME>(n, depth, a, scores, row, line);
  for (; n < keys; ++n) tw_some_dots<1>(n, depth, a, scores, row, line);
}

// of `count` scores of a row: the maximum with `top`, NaN if there is any; and the sum
static float tw_largest(const float* x, int64_t count, float top) {
  tw_vector m = (tw_vector){} + top, nan = {};
  int64_t k = 0;
  for (; k + TW_WIDTH <= count; k += TW_WIDTH) {
    const tw_vector v = tw_read(x + k);
    m = v > m ? v : m;
    nan = v != v ? v : nan;
  }
  float most = tw_halved_max<float, TW_WIDTH>(m), off = tw_halved_sum<float, TW_WIDTH>(nan);
  for (; k < count; ++k) {
    most = x[k] > most ? x[k] : most;
    off = x[k] != x[k] ? x[k] : off;
  }
  return off != off ? off : most;
}
static float tw_sum(const float* x, int64_t count) {
  tw_vector sums = {};
  int64_t k = 0;
  for (; k + TW_WIDTH <= count; k += TW_WIDTH) sums += tw_read(x + k);
  float sum = tw_halved_sum<float, TW_WIDTH>(sums);
  for (; k < count; ++k) sum += x[k];
  return sum;
}
// exp(old - now), by which sums are multiplied when a maximum moves; nothing was summed before the first
TW float tw_moved(float old, float now) { return tw_exp_nonpositive(old - (now == -TW_INF ? 0.0f : now)); }
#pragma GCC pop_options
#if defined(__AVX512F__)  // gcc's own choice is half of that: loops over scores took 1.4 times as long
#pragma GCC target("prefer-vector-width=512")
#endif
