// Vectors of gcc's own kind, in registers of this width: squares turned in them, and reductions of many
// lanes abreast.
#if defined(__AVX512F__)
#define TW_BYTES 64
#elif defined(__AVX__)
#define TW_BYTES 32
#else
#define TW_BYTES 16
#endif
template <class T, int N> struct tw_some { typedef T type __attribute__((vector_size(N * sizeof(T)))); };
// `v` stays in a register. Without this, gcc 12 for AVX2 reads a vector that several multiply-adds share from memory
// in each of them, and a tile of products waits for loads: 73 GFLOP/s for 102 in one thread of a Zen 3.
template <class V> TW void tw_keep(V& v) {
#if defined(__x86_64__)
  asm("" : "+v"(v));
#elif defined(__aarch64__)
  asm("" : "+w"(v));
#endif
}

// Squares of elements turned in registers, N rows and columns: to[j][i] = from[i][j], by perfect
// shuffles of all rows, log2(N) times. Only bits are moved.
template <class T> struct tw_square { enum { FIT = TW_BYTES / sizeof(T), N = FIT < 16 ? FIT : 16 }; };
template <int N, class V> TW V tw_low(V a, V b) {
  if constexpr (N == 16)
    return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  else if constexpr (N == 8) return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
  else if constexpr (N == 4) return __builtin_shufflevector(a, b, 0, 4, 1, 5);
  else return __builtin_shufflevector(a, b, 0, 2);
}
template <int N, class V> TW V tw_high(V a, V b) {
  if constexpr (N == 16)
    return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  else if constexpr (N == 8) return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
  else if constexpr (N == 4) return __builtin_shufflevector(a, b, 2, 6, 3, 7);
  else return __builtin_shufflevector(a, b, 1, 3);
}
// IN of the rows are read, OUT are written.
template <class T, int IN = tw_square<T>::N, int OUT = tw_square<T>::N>
static __attribute__((noinline)) void tw_turn(const T* from, int64_t from_row, T* to, int64_t to_row) {
  enum { N = tw_square<T>::N };
  typedef typename tw_some<T, N>::type V;
  V a[N] = {}, b[N];
#pragma GCC unroll 16
  for (int i = 0; i < IN; ++i) __builtin_memcpy(&a[i], from + i * from_row, sizeof(V));
#pragma GCC unroll 4
  for (int n = 1; n < N; n *= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < N / 2; ++i) {
      b[2 * i] = tw_low<N>(a[i], a[i + N / 2]);
      b[2 * i + 1] = tw_high<N>(a[i], a[i + N / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < N; ++i) a[i] = b[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < OUT; ++i) __builtin_memcpy(to + i * to_row, &a[i], sizeof(V));
}
// to[j][i] = from[i][j]: squares, of which the last may overlap those before; one by one if it is less
template <class T>
static void tw_turn_tile(const T* from, int64_t from_row, T* to, int64_t to_row, int64_t rows, int64_t columns) {
  enum { N = tw_square<T>::N };
  if (rows < N || columns < N) {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j) to[j * to_row + i] = from[i * from_row + j];
    return;
  }
  for (int64_t k = 0; k < rows; k += N)
    for (int64_t l = 0; l < columns; l += N) {
      int64_t i = k < rows - N ? k : rows - N, j = l < columns - N ? l : columns - N;
      tw_turn(from + i * from_row + j, from_row, to + j * to_row + i, to_row);
    }
}
// to[j][i] = from[i][j]: `rows` rows of C elements that lie end to end, to C columns of B. Of rows shorter
// than a vector, whole vectors are read; `there`: rows from the first on that may be read.
template <int C, int B, class T>
static void tw_turn_rows(const T* from, T* to, int64_t rows, int64_t there) {
  enum { N = tw_square<T>::N };
  if (C >= N || rows < N) return tw_turn_tile(from, C, to, B, rows, C);
  for (int64_t k = 0; k < rows; k += N) {
    int64_t i = k < rows - N ? k : rows - N;
    if ((i + N - 1) * C + N <= there * C) tw_turn<T, N, C>(from + i * C, C, to + i, B);
    else
      for (int64_t l = i; l < i + N; ++l)
        for (int j = 0; j < C; ++j) to[j * B + l] = from[l * C + j];
  }
}
// to[i][j] = from[j][i]: back. What a vector has more than a row, the next row overwrites.
template <int C, int B, class T> static void tw_turn_back(T* to, const T* from, int64_t rows) {
  enum { N = tw_square<T>::N };
  if (C >= N || rows < N) return tw_turn_tile(from, B, to, C, C, rows);
  int64_t i = 0;
  for (; (i + N - 1) * C + N <= rows * C; i += N) tw_turn<T, C, N>(from + i, B, to + i * C, C);
  for (T last[N * N]; i < rows; i += N) {
    i = i < rows - N ? i : rows - N;
    tw_turn<T, C, N>(from + i, B, last, N);
    for (int l = 0; l < N; ++l) __builtin_memcpy(to + (i + l) * C, last + l * N, C * sizeof(T));
  }
}

// bfloat16 as float, one vector of L
template <int L> TW void tw_widen_lanes(const uint16_t* from, float* to) {
  typename tw_some<uint16_t, L>::type bits;
  __builtin_memcpy(&bits, from, sizeof(bits));
  auto wide = __builtin_convertvector(bits, typename tw_some<uint32_t, L>::type) << 16;
  __builtin_memcpy(to, &wide, sizeof(wide));
}

// Reductions of L lanes abreast: gcc adds up the lanes of its own simd reductions one after another.
// A maximum is one instruction that passes over NaN; `nan` has those that came by, else -0.
// a table, as gcc would split a loop where a comparison with its own position changes
alignas(64) static const int32_t tw_lane[64] = {
  0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
  32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60,
  61, 62, 63};
template <class T, int L> struct tw_lanes {
  enum { FIT = TW_BYTES / sizeof(T), WIDTH = FIT < L ? FIT : L, COUNT = L / WIDTH };
  typename tw_some<T, WIDTH>::type at[COUNT], nan[COUNT];
};
template <class T, int L> TW tw_lanes<T, L> tw_all(T value) {
  tw_lanes<T, L> all;
#pragma GCC unroll 16
  for (int i = 0; i < all.COUNT; ++i) {
    all.at[i] = typename tw_some<T, all.WIDTH>::type{} + value;
    all.nan[i] = -typename tw_some<T, all.WIDTH>::type{};
  }
  return all;
}
template <int H> TW auto tw_half(tw_some<float, 16>::type v) {
  return __builtin_shufflevector(v, v, 8 * H, 8 * H + 1, 8 * H + 2, 8 * H + 3, 8 * H + 4, 8 * H + 5, 8 * H + 6, 8 * H + 7);
}
#define TW_HALVES(T) \
  template <int H> TW auto tw_half(tw_some<T, 8>::type v) { \
    return __builtin_shufflevector(v, v, 4 * H, 4 * H + 1, 4 * H + 2, 4 * H + 3); \
  } \
  template <int H> TW auto tw_half(tw_some<T, 4>::type v) { return __builtin_shufflevector(v, v, 2 * H, 2 * H + 1); } \
  template <int H> TW auto tw_half(tw_some<T, 2>::type v) { return typename tw_some<T, 1>::type{v[H]}; }
TW_HALVES(float)
TW_HALVES(double)
TW_HALVES(int64_t)
#define TW_LANES(name, join, merge) \
  template <class V> TW V tw_merged_##name(V a, V b) { return merge; } \
  template <class T, int L> TW void tw_join_##name(tw_lanes<T, L>& to, const T* from) { \
    _Pragma("GCC unroll 16") for (int i = 0; i < to.COUNT; ++i) { \
      auto &a = to.at[i], &n = to.nan[i]; \
      auto b = ((const tw_lanes<T, L>*)from)->at[i]; \
      join; \
    } \
  } \
  template <class T, int N> TW T tw_halved_##name(typename tw_some<T, N>::type v) { \
    if constexpr (N == 1) return v[0]; \
    else return tw_halved_##name<T, N / 2>(tw_merged_##name(tw_half<0>(v), tw_half<1>(v))); \
  } \
  template <class T, int L> TW T tw_across_##name(tw_lanes<T, L> all) { \
    auto v = all.at[0], nan = all.nan[0]; \
    _Pragma("GCC unroll 16") for (int i = 1; i < all.COUNT; ++i) { \
      v = tw_merged_##name(v, all.at[i]); \
      nan += all.nan[i]; \
    } \
    return tw_halved_##name<T, all.WIDTH>(v) + tw_halved_sum<T, all.WIDTH>(nan); \
  }
TW_LANES(sum, a += b, a + b)
TW_LANES(prod, a *= b, a * b)
TW_LANES(max, (n = b != b ? b : n, a = b > a ? b : a), b > a ? b : a)
TW_LANES(min, (n = b != b ? b : n, a = b < a ? b : a), b < a ? b : a)

// Running sums of a block, `total` before it and after it: vectors in which each element gets those 1, 2
// and 4 before it.
#define TW_LATER(N, i) (i < BY ? 0 : N + i - BY)
template <int BY, class V> TW V tw_later(V v) {
  V none = {};
#if TW_BYTES == 64
  return __builtin_shufflevector(none, v, TW_LATER(8, 0), TW_LATER(8, 1), TW_LATER(8, 2), TW_LATER(8, 3),
      TW_LATER(8, 4), TW_LATER(8, 5), TW_LATER(8, 6), TW_LATER(8, 7));
#elif TW_BYTES == 32
  return __builtin_shufflevector(none, v, TW_LATER(4, 0), TW_LATER(4, 1), TW_LATER(4, 2), TW_LATER(4, 3));
#else
  return __builtin_shufflevector(none, v, TW_LATER(2, 0), TW_LATER(2, 1));
#endif
}
// A block in the other order: what scans from the end give to the functions below, and take from them.
template <class T> TW void tw_reversed(const T* __restrict__ from, int64_t count, T* __restrict__ to) {
  for (int64_t i = 0; i < count; ++i) to[i] = from[count - 1 - i];
}
TW void tw_running_sums(double& total, const float* from, int64_t count, float* to) {
  enum { N = TW_BYTES / sizeof(double) };
  typedef tw_some<float, N>::type narrow;
  int64_t i = 0;
  for (; i + N <= count; i += N) {
    narrow f;
    __builtin_memcpy(&f, from + i, sizeof f);
    auto v = __builtin_convertvector(f, tw_some<double, N>::type);
    v += tw_later<1>(v);
    if (N > 2) v += tw_later<2 % N>(v);
    if (N > 4) v += tw_later<4 % N>(v);
    f = __builtin_convertvector(v + total, narrow);
    __builtin_memcpy(to + i, &f, sizeof f);
    total += v[N - 1];
  }
  for (; i < count; ++i) to[i] = (float)(total += from[i]);
}

// Running maxima and minima of a block: each element with the one 1, 2, 4 and 8 before it, or with itself.
// Where there is NaN, the block is done one by one.
template <int... I> struct tw_places {};
template <int N, int... I> struct tw_upto : tw_upto<N - 1, N - 1, I...> {};
template <int... I> struct tw_upto<0, I...> { typedef tw_places<I...> type; };
template <int BY, class V, int... I> TW V tw_earlier(V v, tw_places<I...>) {
  return __builtin_shufflevector(v, v, (I < BY ? I : I - BY)...);
}
template <class V, int... I> TW V tw_last(V v, tw_places<I...>) {
  return __builtin_shufflevector(v, v, (I * 0 + (int)sizeof...(I) - 1)...);
}
#define TW_RUNNING(name, better, merge) \
  template <class T> TW void tw_running_##name(T& total, const T* from, int64_t count, T* to) { \
    enum { N = TW_BYTES / sizeof(T) }; \
    typedef typename tw_some<T, N>::type V; \
    const typename tw_upto<N>::type places; \
    V t = V{} + total, w, v; \
    auto bad = t != t; \
    int64_t i = 0; \
    for (; i + N <= count; i += N) { \
      __builtin_memcpy(&v, from + i, sizeof v); \
      bad |= v != v; \
      w = tw_earlier<1>(v, places), v = w better v ? w : v; \
      if (N > 2) w = tw_earlier<2 % N>(v, places), v = w better v ? w : v; \
      if (N > 4) w = tw_earlier<4 % N>(v, places), v = w better v ? w : v; \
      if (N > 8) w = tw_earlier<8 % N>(v, places), v = w better v ? w : v; \
      v = t better v ? t : v; \
      __builtin_memcpy(to + i, &v, sizeof v); \
      t = tw_last(v, places); \
    } \
    bool any = false; \
    for (int k = 0; k < N; ++k) any |= bad[k] != 0; \
    if (any) i = 0; \
    else total = t[0]; \
    for (; i < count; ++i) to[i] = total = merge(total, from[i]); \
  }
TW_RUNNING(max, >, tw_maximum)
TW_RUNNING(min, <, tw_minimum)

// The logarithm of the sum of exponentials so far is top + log(1 + rest): the maximum, and the sum of
// exp(x - top) of the others. NaN is in `rest`. Infinities of one sign are as far apart as equal numbers.
template <class T> TW double tw_log_share(T top, T x) {
  return x == top ? (T)1 : tw_exp_nonpositive(-tw_abs(x - top));
}
TW double tw_log_rest(bool more, double rest, double share) { return more ? (1.0 + rest) * share : rest + share; }
template <class T> TW void tw_log_add(T& top, double& rest, T x) {
  rest = tw_log_rest(x > top, rest, tw_log_share(top, x));
  top = x > top ? x : top;
}
// For a block of elements, with what is before it and after it: only what each needs of the one before is
// done one by one.
template <class T> TW void tw_running_log_sums(T& top, double& rest, const T* from, int64_t count, T* to) {
  enum { BLOCK = 64 };
  T before[BLOCK], shares[BLOCK], rests[BLOCK];
  for (int64_t low = 0; low < count; low += BLOCK, from += BLOCK, to += BLOCK) {
    const int64_t n = count - low < BLOCK ? count - low : BLOCK;
    for (int64_t i = 0; i < n; ++i) {
      before[i] = top;
      top = from[i] > top ? from[i] : top;
    }
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) shares[i] = (T)tw_log_share(before[i], from[i]);
    for (int64_t i = 0; i < n; ++i) {
      rest = tw_log_rest(from[i] > before[i], rest, shares[i]);
      rests[i] = (T)rest;
    }
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) to[i] = (from[i] > before[i] ? from[i] : before[i]) + tw_log1p(rests[i]);
  }
}
