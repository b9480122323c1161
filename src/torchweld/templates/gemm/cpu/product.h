// Products of matrices in float32,  C[r, p] = sum over k of R[r, k] * Q[p, k],  made for -march=native by
// gcc's vector types; 16-bit elements become float32 ones where they are packed. R's rows are broadcast, Q's columns lie along the vectors:
//
//   for blocks of columns, for stretches of the depth:
//     all threads pack that part of Q into panels of [k][PANEL]
//     for chunks of rows and shares of the block's columns, by whichever thread is free:
//       for DEPTH terms of the stretch:    one chain, added to C: as exact as MKL
//         pack the rows into blocks of [k][BLOCK], unless they are floats adjacent along the depth
//         for panels, for GROUPs of rows:  GROUP x PANEL accumulators in registers
//       finish(rows, columns, C)           after the last stretch: what the caller does with the sums
//
// A panel's terms stay in L1 while all rows of a chunk pass by; the rows' terms and C stay in L2, of
// which C takes an eighth. TW_CACHE: bytes of a core's L2. While a tile is worked on, a share of the next panel is
// fetched into L2.
#pragma GCC push_options
#pragma GCC optimize("fp-contract=fast")
#if defined(__AVX512F__)
#define TW_WIDTH 16
#define TW_GROUP 8
#elif defined(__AVX__)
#define TW_WIDTH 8
#define TW_GROUP 4
#else
#define TW_WIDTH 4
#define TW_GROUP 8
#endif
enum {
  TW_VECTORS = 3, TW_PANEL = TW_VECTORS * TW_WIDTH, TW_DEPTH = 192,
  TW_BLOCK = TW_WIDTH < TW_GROUP ? TW_GROUP : TW_WIDTH,  // rows that are packed side by side
  TW_ROWS = 256, TW_MOST = 16 * 48 * TW_ROWS, TW_LEAST = TW_MOST / 8, TW_EIGHTH = TW_CACHE / 8 / sizeof(float),
  TW_SUMS = TW_EIGHTH < TW_LEAST ? TW_LEAST : TW_EIGHTH < TW_MOST ? TW_EIGHTH : TW_MOST,  // of C in a chunk
  TW_CHUNK = 64, TW_COLUMNS = 384,  // the most rows that finish takes, and columns of few rows
  TW_FEWEST = 288                   // rows of a thread below which columns are shared instead
};
typedef float tw_vector __attribute__((vector_size(4 * TW_WIDTH)));
typedef float tw_memory __attribute__((vector_size(4 * TW_WIDTH), aligned(4)));
typedef int32_t tw_order __attribute__((vector_size(4 * TW_WIDTH)));
TW tw_vector tw_read(const float* p) { return *(const tw_memory*)p; }
TW void tw_write(float* p, tw_vector v) { *(tw_memory*)p = v; }

struct tw_f16 { uint16_t bits; };
struct tw_bf16 { uint16_t bits; };
TW float tw_wide(float v) { return v; }
TW float tw_wide(tw_f16 v) { return tw_from_f16(v.bits); }
TW float tw_wide(tw_bf16 v) { return tw_from_bf16(v.bits); }
// to[i] = from[i]
template <class E> TW void tw_widen(const E* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = tw_wide(from[i]);
}
#if defined(__AVX512F__)
TW void tw_widen(const tw_f16* from, int64_t count, float* to) {
  typedef int16_t halves __attribute__((vector_size(2 * TW_WIDTH)));
  int64_t i = 0;
  for (halves v; i + TW_WIDTH <= count; i += TW_WIDTH) {
    __builtin_memcpy(&v, from + i, sizeof v);
    tw_write(to + i, (tw_vector)__builtin_ia32_vcvtph2ps512_mask(v, (tw_vector){}, -1, 4));
  }
  for (; i < count; ++i) to[i] = tw_wide(from[i]);
}
#endif
// tw_turn, widened
TW void tw_turn_wide(const float* from, int64_t from_row, float* to, int64_t to_row) {
  tw_turn(from, from_row, to, to_row);
}
template <class E> TW void tw_turn_wide(const E* from, int64_t from_row, float* to, int64_t to_row) {
  alignas(64) float square[TW_WIDTH * TW_WIDTH];
  for (int i = 0; i < TW_WIDTH; ++i) tw_widen(from + i * from_row, TW_WIDTH, square + i * TW_WIDTH);
  tw_turn(square, TW_WIDTH, to, to_row);
}
template <class R, class Q> struct tw_product {
  int64_t rows, columns, depth;
  const R* r;
  const Q* q;
  int64_t r_row, r_depth, q_column, q_depth;  // strides; in each pair one is 1
  int64_t block, stretch;                     // columns and terms that are packed together
  float* packed;                              // block * stretch elements, shared by the threads
  float* sums;                                // rows * block elements; unused if stretch is the depth
};

// What is fetched into L2 while a tile is worked on: for each term `step` elements of a panel.
struct tw_ahead { const float* panel; int64_t step; };
// GROUP rows by V vectors of columns. Rows `r_row` apart (r_depth 1), or packed as [k][r_row].
template <int V, bool PACKED>
static __attribute__((noinline)) void tw_tile(int64_t depth, const float* r, int64_t r_row, const float* q, float* c,
                                              int64_t c_row, bool first, tw_ahead next) {
  tw_vector sums[TW_GROUP][V];
#pragma GCC unroll 8
  for (int i = 0; i < TW_GROUP; ++i)
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) sums[i][v] = (tw_vector){};
  const float *r3 = r + 3 * r_row, *r6 = r + 6 * r_row;
  for (int64_t k = 0; k < depth; ++k) {
    tw_vector columns[V];
    __builtin_prefetch(next.panel + k * next.step, 0, 2);
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) tw_keep(columns[v] = tw_read(q + (k * V + v) * TW_WIDTH));
#pragma GCC unroll 8
    for (int i = 0; i < TW_GROUP; ++i) {
      const float* row = i < 3 ? r + i * r_row : i < 6 ? r3 + (i - 3) * r_row : r6 + (i - 6) * r_row;
      float factor = PACKED ? r[k * r_row + i] : row[k];
#pragma GCC unroll 3
      for (int v = 0; v < V; ++v) sums[i][v] += factor * columns[v];
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < TW_GROUP; ++i)
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) {
      float* at = c + i * c_row + v * TW_WIDTH;
      tw_write(at, first ? sums[i][v] : tw_read(at) + sums[i][v]);
    }
}
template <bool PACKED>
static void tw_tiles(int vectors, int64_t depth, const float* r, int64_t r_row, const float* q, float* c,
                     int64_t c_row, bool first, tw_ahead next) {
  if (vectors == 1) tw_tile<1, PACKED>(depth, r, r_row, q, c, c_row, first, next);
  else if (vectors == 2) tw_tile<2, PACKED>(depth, r, r_row, q, c, c_row, first, next);
  else tw_tile<3, PACKED>(depth, r, r_row, q, c, c_row, first, next);
}

// to[k * width + j] = from[j, k] for `columns` of them, zeros up to a multiple of WIDTH
template <class E>
static void tw_pack_panel(const E* from, int64_t column, int64_t step, int64_t columns, int64_t depth, float* to,
                          int64_t width) {
  int64_t padded = (columns + TW_WIDTH - 1) / TW_WIDTH * TW_WIDTH, k = 0;
  if (step == 1)
    for (; k + TW_WIDTH <= depth && columns == padded; k += TW_WIDTH)
      for (int64_t j = 0; j < padded; j += TW_WIDTH)
        tw_turn_wide(from + j * column + k, column, to + k * width + j, width);
  for (; k < depth; ++k) {
    if (column == 1) tw_widen(from + k * step, columns, to + k * width);
    else for (int64_t j = 0; j < columns; ++j) to[k * width + j] = tw_wide(from[j * column + k * step]);
    for (int64_t j = columns; j < padded; ++j) to[k * width + j] = 0;
  }
}

// The nth of `parts` shares of `count`, in whole units.
struct tw_range { int64_t from, end; };
TW tw_range tw_share(int64_t count, int64_t unit, int64_t nth, int64_t parts) {
  int64_t units = (count + unit - 1) / unit, end = units * (nth + 1) / parts * unit;
  return {units * nth / parts * unit, end < count ? end : count};
}
TW int64_t tw_least(int64_t a, int64_t b) { return a < b ? a : b; }

// Q in panels of `columns` columns and `stretch` terms, of which this thread packs a share: of the
// columns where each lies along memory, which is read in long runs then, else of the terms.
template <class R, class Q>
static void tw_pack(const tw_product<R, Q>& a, int64_t column, int64_t columns, int64_t from_depth, int64_t stretch,
                    int64_t tid, int64_t parts) {
  const Q* q = a.q + column * a.q_column + from_depth * a.q_depth;
  auto pack = [&](int64_t j, int64_t some, int64_t k, int64_t depth) {
    int64_t p = j / TW_PANEL * TW_PANEL, width = tw_least(TW_PANEL, (columns - p + TW_WIDTH - 1) / TW_WIDTH * TW_WIDTH);
    tw_pack_panel(q + j * a.q_column + k * a.q_depth, a.q_column, a.q_depth, tw_least(some, columns - j), depth,
                  a.packed + p * stretch + k * width + j - p, width);
  };
  bool along = a.q_depth == 1;
  tw_range mine = tw_share(along ? columns : stretch, TW_WIDTH, tid, parts);
  for (int64_t i = mine.from; i < mine.end; i += TW_WIDTH)
    if (along) pack(i, TW_WIDTH, 0, stretch);
    else for (int64_t j = 0; j < columns; j += TW_PANEL) pack(j, TW_PANEL, i, tw_least(TW_WIDTH, mine.end - i));
}

// Rows, in place or packed, times one panel.
template <bool PACKED>
static void tw_sweep(int64_t rows, int64_t columns, int64_t depth, const float* r, int64_t r_row, const float* q,
                     float* c, int64_t c_row, bool first, const float* panel) {
  int vectors = columns < TW_PANEL ? (columns + TW_WIDTH - 1) / TW_WIDTH : TW_VECTORS;
  int64_t each = rows ? TW_GROUP * TW_PANEL / rows : 0;  // of the next panel, for each term of a tile
  for (int64_t i = 0; i < rows; i += TW_GROUP) {
    const float* at = r + (PACKED ? i / TW_BLOCK * TW_BLOCK * TW_DEPTH + i % TW_BLOCK : i * r_row);
    tw_tiles<PACKED>(vectors, depth, at, PACKED ? TW_BLOCK : r_row, q, c + i * c_row, c_row, first,
                     {panel + i / TW_GROUP * each * depth, each});
  }
}

// One stretch of the depth added to c, which has some rows, and some of the columns that are packed.
template <class R, class Q>
static void tw_chunk(const tw_product<R, Q>& a, tw_range rows, tw_range columns, int64_t from_depth, int64_t stretch,
                     float* c, int64_t c_row) {
  alignas(64) float packed[TW_ROWS * TW_DEPTH];
  int64_t count = rows.end - rows.from;
  int64_t in_place = sizeof(R) == sizeof(float) && a.r_depth == 1 ? count / TW_GROUP * TW_GROUP : 0;
  if (stretch == 0) __builtin_memset(c, 0, sizeof(float) * count * c_row);
  for (int64_t at = 0; at < stretch; at += TW_DEPTH) {
    int64_t k = from_depth + at, depth = tw_least(TW_DEPTH, stretch - at);
    const R* r = a.r + rows.from * a.r_row + k * a.r_depth;
    for (int64_t i = in_place; i < count; i += TW_BLOCK)
      tw_pack_panel(r + i * a.r_row, a.r_row, a.r_depth, tw_least(TW_BLOCK, count - i), depth,
                    packed + (i - in_place) * TW_DEPTH, TW_BLOCK);
    for (int64_t p = columns.from; p < columns.end; p += TW_PANEL) {
      int64_t width = tw_least(TW_PANEL, columns.end - p);
      const float* q = a.packed + p * stretch + at * ((width + TW_WIDTH - 1) / TW_WIDTH * TW_WIDTH);
      const float* next = p + TW_PANEL < columns.end ? q + TW_PANEL * stretch : q + TW_PANEL * depth;
      float* to = c + p - columns.from;
      tw_sweep<false>(in_place, width, depth, (const float*)r, a.r_row, q, to, c_row, k == 0, next);
      tw_sweep<true>(count - in_place, width, depth, packed, 0, q, to + in_place * c_row, c_row, k == 0, next);
    }
  }
}

// How many threads share the columns: as few as leave each its rows.
TW int64_t tw_across(int64_t rows, int64_t columns, int64_t parts) {
  int64_t across = 1;
  for (int64_t n = 2; n <= parts && n * TW_PANEL <= columns; ++n)
    if (parts % n == 0 && rows * across < TW_FEWEST * parts) across = n;
  return across;
}

// Threads that work on one product wait for each other; one by itself does not.
TW void tw_meet(int64_t parts) {
  if (parts > 1) {
#pragma omp barrier
  }
}

// work(0 .. count - 1), by whoever is free, and all meet: some cores are slower, or others take them for a while.
template <class Work> TW void tw_each(int64_t count, int64_t parts, Work work) {
  if (parts == 1)
    for (int64_t n = 0; n < count; ++n) work(n);
  else
#pragma omp for schedule(dynamic)
    for (int64_t n = 0; n < count; ++n) work(n);
}

// finish(row, rows, column, columns, c, c_row); pack as tw_pack. Called by all threads of a region, or, with
// `parts` of one, by any of them.
template <class R, class Q, class Finish, class Pack>
static void tw_multiply(const tw_product<R, Q>& a, int64_t tid, int64_t parts, Finish finish, Pack pack) {
  alignas(64) float local[TW_SUMS];
  int64_t most = tw_least(TW_ROWS, TW_SUMS / a.block / TW_BLOCK * TW_BLOCK);  // rows
  for (int64_t column = 0; column < a.columns; column += a.block) {
    int64_t columns = tw_least(a.block, a.columns - column), across = tw_across(a.rows, columns, parts), k = 0;
    int64_t along = parts / across, chunks = (a.rows + along * most - 1) / (along * most) * along;
    do {
      int64_t stretch = tw_least(a.stretch, a.depth - k);
      pack(a, column, columns, k, stretch, tid, parts);
      tw_meet(parts);
      tw_each(chunks * across, parts, [&](int64_t n) {
        tw_range rows = tw_share(a.rows, TW_GROUP, n / across, chunks), side = tw_share(columns, TW_PANEL, n % across, across);
        float* c = a.depth <= a.stretch ? local : a.sums + rows.from * a.block + side.from;
        tw_chunk(a, rows, side, k, stretch, c, a.block);
        for (int64_t i = rows.from; i < rows.end && k + stretch == a.depth; i += TW_CHUNK)
          finish(i, tw_least(TW_CHUNK, rows.end - i), column + side.from, side.end - side.from,
                 c + (i - rows.from) * a.block, a.block);
      });
    } while ((k += a.stretch) < a.depth);
  }
}

template <class R, class Q, class Finish>
static void tw_multiply(const tw_product<R, Q>& a, int64_t tid, int64_t parts, Finish finish) {
  tw_multiply(a, tid, parts, finish, tw_pack<R, Q>);
}

// Few rows: Q is read once, as it lies in memory, and nothing is packed.
enum { TW_FEW = 8 };
TW tw_vector tw_load(const float* p) { return tw_read(p); }
template <class E> TW tw_vector tw_load(const E* p) {
  alignas(64) float wide[TW_WIDTH];
  tw_widen(p, TW_WIDTH, wide);
  return tw_read(wide);
}
TW float tw_total(tw_vector v) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int l = 0; l < TW_WIDTH; ++l) sum += v[l];
  return sum;
}
// The first `count` elements, fewer than a vector has, and zeros.
template <class E> TW tw_vector tw_load_some(const E* p, int64_t count) {
  alignas(64) float wide[TW_WIDTH] = {};
  for (int64_t i = 0; i < count; ++i) wide[i] = tw_wide(p[i]);
  return tw_read(wide);
}
#if defined(__AVX512F__)
TW tw_vector tw_load_some(const float* p, int64_t count) {
  return (tw_vector)__builtin_ia32_loadups512_mask(p, (tw_vector){}, (1 << count) - 1);
}
#endif
// What each of four vectors adds up to.
TW void tw_totals(const tw_vector* v, float* to) {
  tw_order one, other, two, far;
  for (int l = 0; l < TW_WIDTH; ++l) {
    one[l] = (l & ~1) + (l & 1 ? TW_WIDTH : 0), other[l] = one[l] + 1;
    two[l] = (l & ~3) + (l & 1) + (l & 2 ? TW_WIDTH : 0), far[l] = two[l] + 2;
  }
  tw_vector a = __builtin_shuffle(v[0], v[1], one) + __builtin_shuffle(v[0], v[1], other);
  tw_vector b = __builtin_shuffle(v[2], v[3], one) + __builtin_shuffle(v[2], v[3], other);
  a = __builtin_shuffle(a, b, two) + __builtin_shuffle(a, b, far);
#pragma GCC unroll 4
  for (int step = TW_WIDTH / 2; step >= 4; step /= 2) {
    for (int l = 0; l < TW_WIDTH; ++l) one[l] = (l + step) % TW_WIDTH;
    a += __builtin_shuffle(a, one);
  }
  __builtin_memcpy(to, &a, 4 * sizeof(float));
}
// c[i][j] = (first) or += the sums of ROWS rows and COLUMNS columns whose terms are adjacent, from `column` on.
// A lane adds up chains of CHAIN terms, and these: with one thread MKL has as many accumulators.
enum { TW_ROW_CHAIN = 16 * TW_WIDTH };
template <int ROWS, int COLUMNS, class R, class Q>
TW void tw_dots(const tw_product<R, Q>& a, int64_t column, bool first, float* c) {
  const Q* q = a.q + column * a.q_column;
  int64_t whole = a.depth / TW_WIDTH * TW_WIDTH;
  tw_vector totals[ROWS][COLUMNS] = {};
  for (int64_t from = 0; from < whole; from += TW_ROW_CHAIN) {
    tw_vector sums[ROWS][COLUMNS] = {};
    for (int64_t k = from, end = tw_least(whole, from + TW_ROW_CHAIN); k < end; k += TW_WIDTH) {
      tw_vector rows[ROWS];
#pragma GCC unroll 8
      for (int i = 0; i < ROWS; ++i) rows[i] = tw_load(a.r + i * a.r_row + k);
#pragma GCC unroll 4
      for (int j = 0; j < COLUMNS; ++j) {
        tw_vector terms = tw_load(q + j * a.q_column + k);
#pragma GCC unroll 8
        for (int i = 0; i < ROWS; ++i) sums[i][j] += rows[i] * terms;
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < COLUMNS; ++j) totals[i][j] += sums[i][j];
  }
  if (whole < a.depth) {
    tw_vector rows[ROWS];
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; ++i) rows[i] = tw_load_some(a.r + i * a.r_row + whole, a.depth - whole);
#pragma GCC unroll 4
    for (int j = 0; j < COLUMNS; ++j) {
      tw_vector terms = tw_load_some(q + j * a.q_column + whole, a.depth - whole);
#pragma GCC unroll 8
      for (int i = 0; i < ROWS; ++i) totals[i][j] += rows[i] * terms;
    }
  }
  enum { COUNT = ROWS * COLUMNS, FOURS = (COUNT + 3) / 4 * 4 };
  tw_vector flat[FOURS] = {};
  float sums[FOURS];
#pragma GCC unroll 32
  for (int n = 0; n < COUNT; ++n) flat[n] = totals[n / COLUMNS][n % COLUMNS];
#pragma GCC unroll 8
  for (int n = 0; n < FOURS; n += 4) tw_totals(flat + n, sums + n);
#pragma GCC unroll 32
  for (int n = 0; n < COUNT; ++n) {
    float* at = c + n / COLUMNS * TW_COLUMNS + n % COLUMNS;
    *at = first ? sums[n] : *at + sums[n];
  }
}
// The same for V vectors of adjacent columns, the last of which has only `rest` if that is not zero, and some of
// the terms.
template <int ROWS, int V, class R, class Q>
TW void tw_steps(const tw_product<R, Q>& a, int64_t column, int64_t from, int64_t end, float* c, int64_t rest = 0) {
  tw_vector sums[ROWS][V] = {};
  for (int64_t k = from; k < end; ++k)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      const Q* q = a.q + column + v * TW_WIDTH + k * a.q_depth;
      tw_vector columns = rest ? tw_load_some(q, rest) : tw_load(q);
#pragma GCC unroll 8
      for (int i = 0; i < ROWS; ++i) sums[i][v] += tw_wide(a.r[i * a.r_row + k * a.r_depth]) * columns;
    }
#pragma GCC unroll 8
  for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      float* at = c + i * TW_COLUMNS + v * TW_WIDTH;
      tw_write(at, from ? tw_read(at) + sums[i][v] : sums[i][v]);
    }
}
// All columns of one block, whose terms are adjacent in both factors.
template <int ROWS, class R, class Q>
static void tw_all_dots(const tw_product<R, Q>& a, int64_t column, int64_t columns, bool first, float* c) {
  enum { DOTS = ROWS > 4 ? 2 : 4 };
  int64_t j = 0;
  for (; j + DOTS <= columns; j += DOTS) tw_dots<ROWS, DOTS>(a, column + j, first, c + j);
  for (; j < columns; ++j) tw_dots<ROWS, 1>(a, column + j, first, c + j);
}
// How the factors lie: the columns of Q adjacent, the terms of both, or those of Q alone: a stretch of R's
// rows is copied then.
enum { TW_BY_STEPS, TW_BY_DOTS, TW_BY_GATHER };
// HOW is known when the kernel is generated, as ROWS is: all of them together take gcc 24 times as long as one.
template <int ROWS, int HOW, class R, class Q>
static void tw_few_rows(const tw_product<R, Q>& a, int64_t column, int64_t columns, float* c) {
  enum { V = ROWS > 4 ? 3 : ROWS > 2 ? 6 : 8, STRETCH = TW_DEPTH * TW_WIDTH };
  int64_t j = 0, whole = columns / TW_WIDTH * TW_WIDTH;
  if constexpr (HOW == TW_BY_DOTS) tw_all_dots<ROWS>(a, column, columns, true, c);
  else if constexpr (HOW == TW_BY_GATHER) for (int64_t from = 0; from == 0 || from < a.depth; from += STRETCH) {
    alignas(64) float rows[ROWS * STRETCH];
    int64_t depth = tw_least(STRETCH, a.depth - from);
    for (int64_t k = 0; k < depth; ++k)
      for (int i = 0; i < ROWS; ++i) rows[i * STRETCH + k] = tw_wide(a.r[i * a.r_row + (from + k) * a.r_depth]);
    tw_product<float, Q> b = {a.rows, a.columns, depth, rows, a.q + from, STRETCH, 1, a.q_column, 1};
    tw_all_dots<ROWS>(b, column, columns, from == 0, c);
  } else for (int64_t from = 0; from < a.depth; from += TW_DEPTH) {
    int64_t end = a.depth - from < TW_DEPTH ? a.depth : from + TW_DEPTH;
    for (j = 0; j + V * TW_WIDTH <= whole; j += V * TW_WIDTH) tw_steps<ROWS, V>(a, column + j, from, end, c + j);
    for (; j < whole; j += TW_WIDTH) tw_steps<ROWS, 1>(a, column + j, from, end, c + j);
    if (j < columns) tw_steps<ROWS, 1>(a, column + j, from, end, c + j, columns - j);
  }
}
// As tw_multiply, for up to FEW rows.
template <int ROWS, int HOW, class R, class Q, class Finish>
static void tw_multiply_few(const tw_product<R, Q>& a, int64_t tid, int64_t parts, Finish finish) {
  alignas(64) float c[2 * TW_FEW * TW_COLUMNS];  // turned in squares: more rows are read
  int64_t shares = (a.columns + TW_PANEL - 1) / TW_PANEL, end = shares * (tid + 1) / parts * TW_PANEL;
  end = end < a.columns ? end : a.columns;
  for (int64_t column = shares * tid / parts * TW_PANEL; column < end; column += TW_COLUMNS) {
    int64_t columns = end - column < TW_COLUMNS ? end - column : TW_COLUMNS;
    tw_few_rows<ROWS, HOW>(a, column, columns, c);
    finish(0, a.rows, column, columns, c, TW_COLUMNS);
  }
}
#pragma GCC pop_options
