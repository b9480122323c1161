// Branch-free math that gcc vectorises inside an ordinary loop: no libm for float, no ATen, no intrinsics
// but for conversions of float16. Own minimax fits; tests/compile/test_cpp_math.py states and checks the
// error of each function against float64, or wider. Rare functions of double go to libm. Fused
// multiply-adds are written out (-ffp-contract=off).
#include <stdint.h>
// Declared here: C++'s <math.h> and <stdlib.h> take gcc longer than a kernel does (0.1 of 0.15 s).
extern "C" void* malloc(__SIZE_TYPE__) noexcept;
extern "C" void* calloc(__SIZE_TYPE__, __SIZE_TYPE__) noexcept;
extern "C" void free(void*) noexcept;
extern "C" int omp_get_thread_num(void) noexcept;
extern "C" int omp_get_num_threads(void) noexcept;
extern "C" int omp_get_max_threads(void) noexcept;
#define TW static inline __attribute__((always_inline))
TW float tw_from_bits(uint32_t u) { float f; __builtin_memcpy(&f, &u, 4); return f; }
TW uint32_t tw_bits(float f) { uint32_t u; __builtin_memcpy(&u, &f, 4); return u; }
TW float tw_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
TW double tw_fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
// Coefficients of the highest power first. By Horner's rule in x^2, two powers a step: what these loops
// wait for is chains of dependent operations.
template <class T> TW T tw_pairs(T, T, T sum) { return sum; }
template <class T, class... C> TW T tw_pairs(T x, T x2, T sum, T odd, T even, C... rest) {
  return tw_pairs(x, x2, tw_fma(sum, x2, tw_fma(odd, x, even)), rest...);
}
template <class T, class... C> TW T tw_poly(T x, T sum, T next, C... rest) {
  if constexpr (sizeof...(rest) % 2) return tw_pairs(x, x * x, sum, next, rest...);
  else return tw_pairs(x, x * x, tw_fma(sum, x, next), rest...);
}
#define TW_INF __builtin_inff()

TW double tw_from_bits64(uint64_t u) { double f; __builtin_memcpy(&f, &u, 8); return f; }
TW uint64_t tw_bits64(double f) { uint64_t u; __builtin_memcpy(&u, &f, 8); return u; }

// Bits to `and` with, instead of selects: gcc makes branches of several of those, and no vectors then.
TW uint32_t tw_mask(bool b) { return b ? 0xffffffffu : 0u; }
TW float tw_choose(bool b, float x, float y) {
  return tw_from_bits(tw_bits(y) ^ ((tw_bits(x) ^ tw_bits(y)) & tw_mask(b)));
}
TW double tw_choose(bool b, double x, double y) {
  return tw_from_bits64(tw_bits64(y) ^ ((tw_bits64(x) ^ tw_bits64(y)) & (b ? ~(uint64_t)0 : 0)));
}
// `? :` of 16 bits is no vector operation to gcc 12
TW uint16_t tw_choose16(bool b, uint16_t x, uint16_t y) { return (uint16_t)(y ^ ((x ^ y) & (uint16_t)-(uint16_t)b)); }
TW float tw_zero_where(bool b, float x) { return tw_from_bits(tw_bits(x) & tw_mask(!b)); }
TW double tw_zero_where(bool b, double x) { return tw_from_bits64(tw_bits64(x) & (b ? 0 : ~(uint64_t)0)); }

// 16-bit floats
TW float tw_from_bf16(uint16_t b) { return tw_from_bits((uint32_t)b << 16); }
TW uint16_t tw_to_bf16(float f) {
  uint32_t u = tw_bits(f), r = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  r |= f != f ? 0x7fc0u : 0u;  // one masked instruction
  return (uint16_t)r;
}
TW uint16_t tw_exact_bf16(float f) { return (uint16_t)(tw_bits(f) >> 16); }
TW float tw_from_f16(uint16_t h) {
  uint32_t m = ((uint32_t)h & 0x7fffu) << 13;
  float f = tw_from_bits(m) * 0x1p112f;  // exact, denormals included
  uint32_t u = tw_bits(f) | (0x7f800000u & tw_mask(m >= 0x0f800000u));
  return tw_from_bits(u | ((uint32_t)h & 0x8000u) << 16);
}
TW uint16_t tw_to_f16(float f) {
  uint32_t u = tw_bits(f), s = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
  uint32_t small = tw_bits(tw_from_bits(a) + 0.5f) - 0x3f000000u;  // rounds to 2^-24, ties to even
  uint32_t normal = (a + 0xfffu + ((a >> 13) & 1u) - 0x38000000u) >> 13;
  uint32_t r = normal ^ ((normal ^ small) & tw_mask(a < 0x38800000u));
  uint32_t large = tw_mask(a >= 0x477ff000u);
  r = (r & ~large) | (0x7c00u & large) | (0x7e00u & tw_mask(a > 0x7f800000u));
  return (uint16_t)(r | s);
}
// 8-bit floats, with the numbers of codegen/float8.py. Below the normal ones a sum rounds to their step.
TW float tw_from_f8(uint8_t code, int mantissa, int bias, uint32_t special) {
  uint32_t c = code & 0x7fu, u = (c << (23 - mantissa)) + ((uint32_t)(127 - bias) << 23);
  float small = tw_from_bits(u + 0x00800000u) - tw_from_bits((uint32_t)(128 - bias) << 23);
  u = c < 1u << mantissa ? tw_bits(small) : u;
  u |= 0x7f800000u & tw_mask(c >= special);
  u |= mantissa == 2 ? 0x00400000u & tw_mask(c > special) : 0u;
  return tw_from_bits(u | ((uint32_t)code & 0x80u) << 24);
}
TW uint8_t tw_to_f8(float f, int mantissa, int bias, uint32_t limit, uint32_t top) {
  uint32_t u = tw_bits(f), a = u & 0x7fffffffu, power = (uint32_t)(151 - mantissa - bias) << 23;
  uint32_t small = tw_bits(tw_from_bits(a) + tw_from_bits(power)) - power;
  uint32_t half = (1u << (22 - mantissa)) - 1u, odd = (a >> (23 - mantissa)) & 1u;
  uint32_t r = (a + half + odd - ((uint32_t)(127 - bias) << 23)) >> (23 - mantissa);
  r ^= (r ^ small) & tw_mask(a < (uint32_t)(128 - bias) << 23);
  uint32_t large = tw_mask(a >= limit);
  r = (r & ~large) | (top & large) | (0x7fu & tw_mask(a > 0x7f800000u));
  return (uint8_t)(r | (u >> 24 & 0x80u));
}
// tw_from_f16(tw_to_f16(f)): a sum with 1.5 * 2^13 times the power of two below f has no bits that f16 lacks
TW float tw_round_f16(float f) {
  uint32_t power = tw_bits(f) & 0x7f800000u;
  power = power > 0x38800000u ? power : 0x38800000u;  // steps of denormals are those of 2^-14
  power = power < 0x47000000u ? power : 0x47000000u;  // 2^15 has the last of them
  float top = tw_from_bits(power + 0x06c00000u), r = f + top - top;
  r = tw_from_bits((tw_bits(r) & 0x7fffffffu) | (tw_bits(f) & 0x80000000u));
  float a = __builtin_fabsf(f), all = tw_from_bits(0x7f800000u | (tw_bits(f) & 0x80000000u));
  return a >= 65520.0f ? all : r;
}
// p[i] out of the aligned word that it lies in: words can be gathered by one instruction
TW uint16_t tw_at16(const uint16_t* p, int64_t i) {
  typedef uint32_t word __attribute__((may_alias));
  const word* words = (const word*)((uintptr_t)p & ~(uintptr_t)3);
  int64_t at = i + (int64_t)((uintptr_t)p >> 1 & 1);
  return (uint16_t)(words[at >> 1] >> 16 * (at & 1));
}
// to[i] = from[i]: whole vectors, of which the last may overlap the one before; one by one if it is less
#if defined(__AVX512F__)
typedef float tw_wide_lane __attribute__((vector_size(64)));
typedef int16_t tw_half_lane __attribute__((vector_size(32)));
#define TW_WIDEN(v) (tw_wide_lane)__builtin_ia32_vcvtph2ps512_mask(v, tw_wide_lane{}, -1, 4)
#define TW_NARROW(v) (tw_half_lane)__builtin_ia32_vcvtps2ph512_mask(v, 0, tw_half_lane{}, -1)
#elif defined(__F16C__)
typedef float tw_wide_lane __attribute__((vector_size(32)));
typedef int16_t tw_half_lane __attribute__((vector_size(16)));
#define TW_WIDEN(v) (tw_wide_lane)__builtin_ia32_vcvtph2ps256(v)
#define TW_NARROW(v) (tw_half_lane)__builtin_ia32_vcvtps2ph256(v, 0)
#endif
#ifdef TW_WIDEN
#define TW_CONVERT(name, From, from_lane, To, to_lane, vector, single) \
  TW void name(const From* from, int64_t count, To* to) { \
    const int64_t n = sizeof(tw_half_lane) / 2; \
    if (count < n) { \
      for (int64_t i = 0; i < count; ++i) to[i] = single(from[i]); \
      return; \
    } \
    for (int64_t i = 0; i < count; i += n) { \
      const int64_t at = i < count - n ? i : count - n; \
      from_lane v; \
      __builtin_memcpy(&v, from + at, sizeof v); \
      const to_lane r = vector(v); \
      __builtin_memcpy(to + at, &r, sizeof r); \
    } \
  }
#else
#define TW_CONVERT(name, From, from_lane, To, to_lane, vector, single) \
  TW void name(const From* from, int64_t count, To* to) { \
    for (int64_t i = 0; i < count; ++i) to[i] = single(from[i]); \
  }
#endif
TW_CONVERT(tw_widen_f16, uint16_t, tw_half_lane, float, tw_wide_lane, TW_WIDEN, tw_from_f16)
TW_CONVERT(tw_narrow_f16, float, tw_wide_lane, uint16_t, tw_half_lane, TW_NARROW, tw_to_f16)
TW void tw_widen_bf16(const uint16_t* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = tw_from_bf16(from[i]);
}
TW void tw_narrow_bf16(const float* from, int64_t count, uint16_t* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = tw_to_bf16(from[i]);
}

// exponentials
TW float tw_copysign(float m, float s) {
  return tw_from_bits((tw_bits(m) & 0x7fffffffu) | (tw_bits(s) & 0x80000000u));
}
TW double tw_copysign(double m, double s) { return __builtin_copysign(m, s); }
TW float tw_abs(float x) { return __builtin_fabsf(x); }
TW double tw_abs(double x) { return __builtin_fabs(x); }
TW float tw_scale2(int32_t n) { return tw_from_bits((uint32_t)(n + 127) << 23); }
// x = n ln 2 + r, nearest n
TW float tw_ln2_split(float x, int32_t& n) {
  float t = tw_fma(x, 0x1.715476p+0f, 12582912.0f), nf = t - 12582912.0f;
  n = (int32_t)(tw_bits(t) - 0x4b400000u);
  return tw_fma(nf, -0x1.7f7d1cp-20f, tw_fma(nf, -0x1.62e400p-1f, x));
}
TW float tw_exp_poly(float r) {
  float p = tw_poly(r, 0x1.6a4d60p-10f, 0x1.12398ep-7f, 0x1.5558b0p-5f, 0x1.555492p-3f, 0x1.fffffcp-2f);
  return tw_fma(p * r, r, r) + 1.0f;
}
// Results for arguments out of range are put in at the end: of clamped arguments gcc makes paths, each
// with a copy of all that follows.
TW float tw_exp(float x) {
  int32_t n;
  float p = tw_exp_poly(tw_ln2_split(x, n));
  int32_t h = n >> 1;
  float r = tw_zero_where(x < -104.0f, p * tw_scale2(h) * tw_scale2(n - h));
  return x > 89.0f ? TW_INF : r;
}
TW float tw_exp2(float x) {
  float t = x + 12582912.0f, f = x - (t - 12582912.0f);
  float p = tw_poly(f, 0x1.41564ep-13f, 0x1.5f33a4p-10f, 0x1.3b2e54p-7f, 0x1.c6af08p-5f, 0x1.ebfbdap-3f, 0x1.62e430p-1f);
  int32_t n = (int32_t)(tw_bits(t) - 0x4b400000u), h = n >> 1;
  float r = tw_zero_where(x < -150.0f, tw_fma(p, f, 1.0f) * tw_scale2(h) * tw_scale2(n - h));
  return x >= 128.0f ? TW_INF : r;
}
// for arguments known to be <= 88 (softmax after subtracting the maximum); below -87.33 gives 0
TW float tw_exp_nonpositive(float x) {
  int32_t n;
  float p = tw_exp_poly(tw_ln2_split(x, n));
  return tw_zero_where(x < -87.33f, p * tw_scale2(n));
}
// Below -88 gives 0. Above 0 it is 1 - e / (1 + e): what is taken from 1 is rounded where it is small.
TW float tw_sigmoid(float x) {
  int32_t n;
  float p = tw_exp_poly(tw_ln2_split(-x, n)), s = tw_scale2(n);
  float q = (x > 0.0f ? p * s : 1.0f) / tw_fma(p, s, 1.0f);
  float r = tw_zero_where(x < -88.0f, (x > 0.0f ? 1.0f - q : q));
  return x > 20.0f ? 1.0f : r;
}
TW float tw_expm1_poly(float r) {
  float p = tw_poly(r, 0x1.9e7380p-13f, 0x1.6d3a4ap-10f, 0x1.1112d8p-7f, 0x1.5554f8p-5f, 0x1.555554p-3f,
      0.5f);
  return tw_fma(p * r, r, r);
}
TW float tw_expm1(float x) {
  int32_t n;
  float q = tw_expm1_poly(tw_ln2_split(x, n)), half = tw_scale2(n - 1);
  float r = 2.0f * tw_fma(half, q, half - 0.5f);  // half: 2^128 is no float
  r = x < -20.0f ? -1.0f : r;
  return tw_copysign((x > 89.0f ? TW_INF : r), x);
}
TW float tw_tanh(float x) {
  float a = tw_abs(x);
  int32_t n;
  float q = tw_expm1_poly(tw_ln2_split(a + a, n)), s = tw_scale2(n);
  float e = tw_fma(s, q, s - 1.0f), r = (a > 1.0f ? 2.0f : e) / (e + 2.0f);
  return tw_copysign((a > 9.5f ? 1.0f : a > 1.0f ? 1.0f - r : r), x);
}
TW float tw_1_plus_tanh(float x) { return 2.0f * tw_sigmoid(2.0f * x); }
// e^x for x in [-87, 0] where the result joins 1 and is at most 0.2: absolute error 2^-26
TW float tw_exp_tail(float x) {
  float t = tw_fma(x, 0x1.715476p+0f, 12582912.0f), r = tw_fma(t - 12582912.0f, -0x1.62e430p-1f, x);
  float p = tw_poly(r, 0x1.0fa834p-7f, 0x1.573a54p-5f, 0x1.555a6ap-3f, 0x1.fffdc6p-2f, 0x1.fffff6p-1f, 1.0f);
  return tw_from_bits(tw_bits(p) + (tw_bits(t) << 23));
}
TW float tw_erf(float x) {
  float t = tw_abs(x);
  float q = tw_poly(x * x, 0x1.4f58d2p-14f, -0x1.a6072cp-11f, 0x1.5449e8p-8f, -0x1.b80118p-6f, 0x1.ce2d64p-4f,
      -0x1.812740p-2f, 0x1.06eba8p-3f);
  float g = tw_poly(t, -0x1.c0371ap-13f, 0x1.a51c08p-9f, -0x1.76ea80p-6f, 0x1.af1bb2p-4f, 0x1.457df4p-1f,
      0x1.073140p-3f);
  float small = tw_fma(q, x, x), e = tw_zero_where(t > 4.0f, tw_exp_tail(tw_fma(-g, t, -t)));
  return (t > 0x1.db0000p-1f ? tw_copysign(1.0f - e, x) : small);
}
// What gelu asks for. A quotient of polynomials, absolute error 2^-21.5: below that of eager's gelu.
TW float tw_1_plus_erf(float x) {
  float s = x * x;
  float p = tw_poly(s, 0x1.18981ap-19f, 0x1.2d9116p-12f, 0x1.ed2296p-9f, 0x1.b01a9cp-5f, 0x1.850d92p-3f,
      0x1.20dd74p+0f);
  float q = tw_poly(s, 0x1.443ae6p-15f, 0x1.31e76ap-10f, 0x1.ea354ap-7f, 0x1.d2dc22p-4f, 0x1.00dd02p-1f, 1.0f);
  float r = (x > 3.85f ? 2.0f : tw_fma(x, p / q, 1.0f));
  return tw_zero_where(x < -3.85f, r);
}

// logarithms: 0 gives -inf, negatives NaN, inf inf
template <class T> TW T tw_log_edges(T x, T r) {
  r = tw_choose(x < (T)TW_INF, r, x);  // NaN too
  r = tw_choose(x == 0, -(T)TW_INF, r);
  return tw_choose(x < 0, (T)__builtin_nan(""), r);
}
TW float tw_log(float x) {
  uint32_t tiny = tw_mask(x < 0x1p-126f);
  float scale = tw_from_bits(0x3f800000u + (tiny & 23u << 23)), shift = tw_from_bits(tiny & 0xc1b80000u);  // 2^23, -23
  uint32_t u = tw_bits(x * scale);
  int32_t k = (int32_t)(u - 0x3f3504f3u) >> 23;
  float f = tw_from_bits(u - ((uint32_t)k << 23)) - 1.0f, kf = (float)k + shift;
  float p = tw_poly(f, 0x1.147338p-4f, -0x1.de01dap-4f, 0x1.e6c00ap-4f, -0x1.fc28cap-4f, 0x1.233ba2p-3f,
      -0x1.555c44p-3f, 0x1.99a476p-3f, -0x1.000006p-2f, 0x1.555548p-2f);
  float f2 = f * f, w = tw_fma(-0.5f, f2, tw_fma(p * f, f2, kf * 0x1.7f7d1cp-20f));
  return tw_log_edges(x, tw_fma(kf, 0x1.62e400p-1f, f + w));
}

// Float functions of the rest: computed in double to about 2^-38, so that the result is nearly always
// the rounded one. Arguments and results are floats, which no intermediate overflows or underflows.
#define TW_MAGIC64 0x1.8p52
// Doubles, to about one unit in the last place; arguments as for floats above.
// x = n ln 2 + r, nearest n, which is at least -2044 and at most 2048
TW double tw_ln2_split(double x, double& n) {
  n = tw_fma(x, 1.4426950408889634, TW_MAGIC64) - TW_MAGIC64;
  return tw_fma(-n, 2.3190468138462996e-17, tw_fma(-n, 0.6931471805599453, x));
}
TW double tw_scale2(double n) { return tw_from_bits64((tw_bits64(n + TW_MAGIC64) + 1023u) << 52); }
// (e^r - 1 - r) / r^2 for |r| <= 0.35
TW double tw_exp_rest(double r) {
  double p = tw_poly(r, 2.5100424157005067e-08, 2.7620138719733994e-07, 2.7557268378684192e-06,
      2.480152119021773e-05, 0.00019841269863105968, 0.0013888888917281794, 0.008333333333330051,
      0.04166666666662399, 0.16666666666666669, 0.5000000000000001);
  return p;
}
TW double tw_exp(double x) {
  double n, r = tw_ln2_split(x, n), p = tw_fma(tw_exp_rest(r) * r, r, r) + 1.0;
  double half = tw_fma(n, 0.5, TW_MAGIC64) - TW_MAGIC64;
  double e = tw_zero_where(x < -746.0, p * tw_scale2(half) * tw_scale2(n - half));
  return (x > 710.0 ? (double)TW_INF : e);
}
TW double tw_exp_nonpositive(double x) {
  double n, r = tw_ln2_split(x, n);
  double p = tw_fma(tw_exp_rest(r) * r, r, r) + 1.0;
  return tw_zero_where(x < -708.0, p * tw_scale2(n));
}
TW double tw_sigmoid(double x) {
  double n, r = tw_ln2_split(-x, n), p = tw_fma(tw_exp_rest(r) * r, r, r) + 1.0;
  double e = tw_zero_where(x < -708.0, 1.0 / tw_fma(p, tw_scale2(n), 1.0));
  return (x > 40.0 ? 1.0 : e);
}
TW double tw_expm1(double x) {
  double n, r = tw_ln2_split(x, n), q = tw_fma(tw_exp_rest(r) * r, r, r), half = tw_scale2(n - 1.0);
  double e = (x < -40.0 ? -1.0 : 2.0 * tw_fma(half, q, half - 0.5));
  return tw_copysign((x > 710.0 ? (double)TW_INF : e), x);
}
TW double tw_tanh(double x) {
  double a = tw_abs(x), n;
  double r = tw_ln2_split(a + a, n), q = tw_fma(tw_exp_rest(r) * r, r, r), s = tw_scale2(n);
  double e = tw_fma(s, q, s - 1.0);
  return tw_copysign((a > 20.0 ? 1.0 : e / (e + 2.0)), x);
}
// x = 2^n (1 + f), nearest 1
TW double tw_fraction(double x, double& n) {
  uint64_t u = tw_bits64(x);
  uint64_t k = (u - 0x3fe6a09e667f3bcdull + (1023ull << 52)) >> 52;  // biased exponent of x / sqrt(1/2)
  n = tw_from_bits64(k | 0x4330000000000000ull) - (0x1p52 + 1023.0);
  return tw_from_bits64(u - ((k - 1023u) << 52)) - 1.0;
}
TW double tw_log(double x) {
  double scale = x < 0x1p-1022 ? 0x1p54 : 1.0, shift = x < 0x1p-1022 ? 54.0 : 0.0;
  double n, f = tw_fraction(x * scale, n);
  n -= shift;
  double s = f / (2.0 + f), z = s * s, half = 0.5 * f * f;
  double p = tw_poly(z, 0.13087330476603717, 0.1326870577297007, 0.15386242218879392, 0.1818179559386321,
      0.22222222392147034, 0.285714285708017, 0.4000000000000088, 0.6666666666666666);
  double r = tw_fma(s, tw_fma(p, z, half), n * 2.3190468138462996e-17) - half;
  return tw_log_edges(x, tw_fma(n, 0.6931471805599453, f + r));
}
template <class T> TW T tw_log1p(T x) {
  T u = 1 + x, lost = x - (u - 1), r = tw_log(u);
  bool edge = !(u > 0 && u < (T)TW_INF);
  return tw_copysign(r + tw_zero_where(edge, lost / u), x);
}
// log(1 + e^x): what is added to the larger of x and 0 is log(1 + e) of an e <= 1; where e^x
// overflows it is infinite, as one after the other
TW float tw_log1p_exp(float x) {
  float a = tw_abs(x), e = tw_exp_nonpositive(-a);
  float p = tw_poly(e, -0x1.bf7462p-9f, 0x1.520276p-6f, -0x1.dede36p-5f, 0x1.b8b642p-4f, -0x1.3b6a84p-3f,
      0x1.93adaap-3f, -0x1.ff3606p-3f, 0x1.554e9ep-2f, -0x1.ffffd8p-2f);
  float larger = x > 0x1.62e42ep+6f ? TW_INF : tw_zero_where(x < 0.0f, x);
  return larger + tw_fma(p * e, e, e);
}
TW double tw_log1p_exp(double x) {
  double e = tw_exp_nonpositive(-tw_abs(x));
  return (x > 0x1.62e42fefa39efp+9 ? (double)TW_INF : tw_zero_where(x < 0.0, x)) + tw_log1p(e);
}
TW double tw_1_plus_tanh(double x) { return 2.0 * tw_sigmoid(2.0 * x); }
TW double tw_erf(double x) {
  double a = tw_abs(x), z = x * x, c = a > 6.0 ? 6.0 : a;
  double p = tw_poly(z, -7.795898827002142e-10, 1.3720064546777686e-08, -1.6208483801871705e-07,
      1.6447424703317362e-06, -1.492473690741966e-05, 0.00012055294904839707, -0.0008548325975389692,
      0.0052239776071164225, -0.02686617064323777, 0.11283791670945006, -0.37612638903183543,
      0.12837916709551256);
  double u = tw_fma(9.6, 1.0 / (c + 2.0), -2.2);
  double q = tw_poly(u, 4.4133850329466983e-13, 1.8386753405993422e-11, -7.45510449620631e-11,
      -2.6260417449824267e-10, 2.6248030731791732e-09, -5.937642934649013e-10, -7.00535615043276e-08,
      1.6350179331888476e-07, 1.9795619117948376e-06, -7.3405185545281365e-06, -8.079220427446309e-05,
      0.00019713917780504528, 0.005588816281840148, 0.03856057042517875, 0.16189356804102498,
      0.22142954022993183);
  double far = tw_copysign(tw_fma(-q, tw_exp_nonpositive(-c * c), 1.0), x);
  double r = a < 1.0 ? tw_fma(p, x, x) : far;
  return x != x ? x : r;
}
TW double tw_1_plus_erf(double x) { return 1.0 + tw_erf(x); }
// The C library's, for the few that stay in a kernel; its lgamma writes a global, lgamma_r does not.
TW float tw_erfc(float x) { return __builtin_erfcf(x); }
TW double tw_erfc(double x) { return __builtin_erfc(x); }
TW float tw_lgamma(float x) { int sign; return __builtin_lgammaf_r(x, &sign); }
TW double tw_lgamma(double x) { int sign; return __builtin_lgamma_r(x, &sign); }
TW float tw_nextafter(float x, float y) { return __builtin_nextafterf(x, y); }
TW double tw_nextafter(double x, double y) { return __builtin_nextafter(x, y); }
// quotients of polynomials (Giles), good to 2^-20, then two steps of Newton's
TW double tw_erfinv(double y) {
  double a = tw_abs(y), s = y * y;
  double inner = y * tw_poly(s, -0.140543331, 0.914624893, -1.645349621, 0.886226899) /
      tw_poly(s, 0.012229801, -0.329097515, 1.442710462, -2.118377725, 1.0);
  double z = __builtin_sqrt(-tw_log((1.0 - a) * 0.5));
  double outer = tw_poly(z, 1.641345311, 3.429567803, -1.624906493, -1.970840454) /
      tw_poly(z, 1.637067800, 3.543889200, 1.0);
  double x = a <= 0.7 ? inner : tw_copysign(outer, y);
  for (int step = 0; step < 2; ++step)
    x -= (tw_erf(x) - y) / (1.1283791670955126 * tw_exp(-x * x));
  return a == 1.0 ? tw_copysign((double)TW_INF, y) : x;
}
TW float tw_erfinv(float y) { return (float)tw_erfinv((double)y); }
TW double tw_hypot(double x, double y) { return __builtin_hypot(x, y); }
TW float tw_hypot(float x, float y) {  // squares of floats are no doubles' overflow
  double a = x, b = y;
  float r = (float)__builtin_sqrt(a * a + b * b);
  return tw_abs(x) == TW_INF || tw_abs(y) == TW_INF ? TW_INF : r;
}

// x, beyond any float's range clamped, is n ln 2 + r: e^r - 1, and 2^n
TW double tw_wide_split(double x, double& scale) {
  double c = x > 120.0 ? 120.0 : x;
  c = c < -120.0 ? -120.0 : c;
  double t = tw_fma(c, 1.4426950408889634, TW_MAGIC64), n = t - TW_MAGIC64;
  double r = tw_fma(-n, 2.3190468138462996e-17, tw_fma(-n, 0.6931471805599453, c));
  double p = tw_poly(r, 2.505210838544172e-08, 2.755731922398589e-07, 2.7557319223985893e-06,
      2.48015873015873e-05, 0.0001984126984126984, 0.001388888888888889, 0.008333333333333333,
      0.041666666666666664, 0.16666666666666666, 0.5);
  scale = tw_from_bits64((tw_bits64(t) - tw_bits64(TW_MAGIC64) + 1023u) << 52);
  return tw_fma(p * r, r, r);
}
TW double tw_wide_expm1(double x) {
  double s, e = tw_wide_split(x, s);
  return tw_fma(s, e, s - 1.0);
}
TW double tw_wide_exp(double x) {
  double s, e = tw_wide_split(x, s);
  return s * (e + 1.0);
}
TW double tw_wide_log(double x) {
  double n, f = tw_fraction(x, n), s = f / (2.0 + f), z = s * s;
  double p = tw_poly(z, 0.06666666666666667, 0.07692307692307693, 0.09090909090909091, 0.1111111111111111,
      0.14285714285714285, 0.2, 0.3333333333333333);
  return tw_log_edges(x, tw_fma(n, 0.6931471805599453, 2.0 * tw_fma(p * z, s, s)));
}
TW double tw_wide_log1p(double x) {
  double u = 1.0 + x, lost = x - (u - 1.0);
  double r = tw_wide_log(u);
  return u == (double)TW_INF || u <= 0.0 ? r : r + lost / u;
}
// good to |x| = 2^45, where neighbouring floats are millions of turns apart
TW double tw_quarter_turn(double x, uint64_t& quadrant) {
  double t = tw_fma(x, 0.6366197723675814, TW_MAGIC64), n = t - TW_MAGIC64;
  quadrant = tw_bits64(t);
  return tw_fma(-n, 6.123233995736766e-17, tw_fma(-n, 1.5707963267948966, x));
}
TW double tw_sin_poly(double r) {
  double z = r * r;
  double p = tw_poly(z, -2.505210838544172e-08, 2.7557319223985893e-06, -0.0001984126984126984,
      0.008333333333333333, -0.16666666666666666);
  return tw_fma(p * z, r, r);
}
TW double tw_cos_poly(double r) {
  double z = r * r;
  double p = tw_poly(z, 2.08767569878681e-09, -2.755731922398589e-07, 2.48015873015873e-05,
      -0.001388888888888889, 0.041666666666666664, -0.5);
  return tw_fma(p, z, 1.0);
}
// the sine of x and so many quarter turns
TW float tw_sin_turned(float x, uint32_t turns) {
  uint64_t q;
  float r = (float)tw_quarter_turn(x, q), z = r * r;
  float s = tw_fma(tw_poly(z, -0x1.994e5cp-13f, 0x1.110760p-7f, -0x1.555546p-3f) * z, r, r);
  float c = tw_fma(tw_poly(z, 0x1.9933d6p-16f, -0x1.6c087ep-10f, 0x1.55553ep-5f, -0.5f), z, 1.0f);
  uint32_t quadrant = (uint32_t)q + turns;
  float v = quadrant & 1u ? c : s;
  return tw_from_bits(tw_bits(v) ^ (quadrant & 2u) << 30);
}
TW double tw_wide_tan(double x) {
  uint64_t q;
  double r = tw_quarter_turn(x, q), s = tw_sin_poly(r), c = tw_cos_poly(r);
  double a = q & 1u ? -c : s, b = q & 1u ? s : c;
  return a / b;
}
// angle of (x, y) for y >= 0: one division by choosing among 0, pi/4, pi/2, 3pi/4, pi as base
TW double tw_wide_angle(double y, double x) {
  double a = __builtin_fabs(x), low = y < a ? y : a, high = y < a ? a : y;
  bool near = low > 0.41421356237309503 * high;
  double num = near ? low - high : low, den = near ? low + high : high;
  double t = den == 0.0 ? 0.0 : num / den, z = t * t;
  double p = tw_poly(z, -0.037037037037037035, 0.04, -0.043478260869565216, 0.047619047619047616,
      -0.05263157894736842, 0.058823529411764705, -0.06666666666666667, 0.07692307692307693,
      -0.09090909090909091, 0.1111111111111111, -0.14285714285714285, 0.2, -0.3333333333333333);
  double r = tw_fma(p * z, t, t) + (near ? 0.7853981633974483 : 0.0);
  r = y > a ? 1.5707963267948966 - r : r;
  r = tw_copysign(1.0, x) < 0.0 ? 3.141592653589793 - r : r;
  r = x != x ? x : r;
  return y != y ? y : r;
}
// infinities become large numbers, whose quotients have the right limits
TW double tw_wide_atan2(double y, double x) {
  double v = __builtin_fabs(y), u = x > 1e300 ? 1e300 : x;
  v = v > 1e300 ? 1e300 : v;
  u = u < -1e300 ? -1e300 : u;
  return tw_copysign(tw_wide_angle(v, u), y);
}
TW double tw_wide_sinh(double x) {
  double e = tw_wide_expm1(__builtin_fabs(x));
  return tw_copysign(0.5 * (e + e / (e + 1.0)), x);
}
TW double tw_wide_cosh(double x) {
  double e = tw_wide_exp(__builtin_fabs(x));
  return 0.5 * (e + 1.0 / e);
}
TW double tw_wide_asinh(double x) {
  double a = __builtin_fabs(x), z = a * a, t = a + z / (1.0 + __builtin_sqrt(z + 1.0));
  return tw_copysign(tw_wide_log1p(a == (double)TW_INF ? a : t), x);
}
TW double tw_wide_acosh(double x) {
  double t = x - 1.0, r = tw_wide_log1p(t + __builtin_sqrt(t * (x + 1.0)));
  return x < 1.0 ? __builtin_nan("") : r;
}
TW double tw_wide_atanh(double x) {
  double a = __builtin_fabs(x);
  return tw_copysign(0.5 * tw_wide_log1p((a + a) / (1.0 - a)), x);
}
TW double tw_wide_pow(double a, double b) {
  double m = __builtin_fabs(a), half = b * 0.5, infinite = (double)TW_INF;
  double r = tw_wide_exp(b * tw_wide_log(m)), sign = tw_copysign(1.0, a);
  sign = half == __builtin_trunc(half) ? 1.0 : sign;  // even
  sign = b == __builtin_trunc(b) ? sign : m == 0.0 ? 1.0 : m == infinite ? 1.0 : a < 0.0 ? __builtin_nan("") : 1.0;
  r = m == 1.0 ? 1.0 : r;  // also for infinite b
  r = b != b ? b : r;
  r *= sign;
  r = a == 1.0 ? 1.0 : r;
  return b == 0.0 ? 1.0 : r;
}
#define TW_WIDE1(name, expression) \
  TW float tw_##name(float v) { double x = v; return (float)(expression); } \
  TW double tw_##name(double x) { return __builtin_##name(x); }
TW_WIDE1(log2, tw_wide_log(x) * 1.4426950408889634)
TW_WIDE1(log10, tw_wide_log(x) * 0.4342944819032518)
TW_WIDE1(tan, v == 0.0f ? x : tw_wide_tan(x))
TW_WIDE1(asin, tw_copysign(tw_wide_angle(tw_abs(x), __builtin_sqrt((1.0 - x) * (1.0 + x))), x))
TW_WIDE1(acos, tw_wide_angle(__builtin_sqrt((1.0 - x) * (1.0 + x)), x))
TW_WIDE1(atan, tw_copysign(tw_wide_angle(tw_abs(x), 1.0), x))
TW_WIDE1(sinh, tw_wide_sinh(x))
TW_WIDE1(cosh, tw_wide_cosh(x))
TW_WIDE1(asinh, tw_wide_asinh(x))
TW_WIDE1(acosh, tw_wide_acosh(x))
TW_WIDE1(atanh, tw_wide_atanh(x))
TW double tw_exp2(double x) { return __builtin_exp2(x); }
TW float tw_sin(float x) { return x == 0.0f ? x : tw_sin_turned(x, 0); }
TW float tw_cos(float x) { return tw_sin_turned(x, 1); }
TW double tw_sin(double x) { return __builtin_sin(x); }
TW double tw_cos(double x) { return __builtin_cos(x); }
TW float tw_atan2(float y, float x) { return (float)tw_wide_atan2(y, x); }
TW double tw_atan2(double y, double x) { return __builtin_atan2(y, x); }
// of a number that the compiler knows, from -16 to 16
TW float tw_power(float x, int32_t exponent) {
  double square = x, r = 1.0;
#pragma GCC unroll 5
  for (int bit = 0; bit < 5; ++bit, square *= square)
    if (__builtin_abs(exponent) >> bit & 1) r *= square;
  return (float)(exponent < 0 ? 1.0 / r : r);
}
// of an exponent that is neither whole nor infinite
TW float tw_broken_power(float a, float b) {
  double m = __builtin_fabs((double)a), r = tw_wide_exp(b * tw_wide_log(m));
  return (float)tw_choose((a < 0.0f) & (m != (double)TW_INF), __builtin_nan(""), r);
}
TW float tw_pow(float a, float b) { return (float)tw_wide_pow(a, b); }
TW double tw_pow(double a, double b) { return __builtin_pow(a, b); }

// rounding, selection
#define TW_FLOAT1(name, f, d) \
  TW float tw_##name(float x) { return f(x); } \
  TW double tw_##name(double x) { return d(x); }
TW_FLOAT1(ceil, __builtin_ceilf, __builtin_ceil)
TW_FLOAT1(floor, __builtin_floorf, __builtin_floor)
TW_FLOAT1(round, __builtin_rintf, __builtin_rint)
TW_FLOAT1(trunc, __builtin_truncf, __builtin_trunc)
TW_FLOAT1(sqrt, __builtin_sqrtf, __builtin_sqrt)
TW float tw_rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
TW double tw_rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
TW bool tw_isinf(float x) { return tw_abs(x) == TW_INF; }
TW bool tw_isinf(double x) { return tw_abs(x) == (double)TW_INF; }
template <class T> TW T tw_abs(T x) { return x < 0 ? (T)-x : x; }
template <class T> TW T tw_sign(T x) { return x > 0 ? (T)1 : x < 0 ? (T)-1 : (T)0; }
template <class T> TW T tw_maximum(T a, T b) { T m = a > b ? a : b; return a != a ? a : m; }
template <class T> TW T tw_minimum(T a, T b) { T m = a < b ? a : b; return a != a ? a : m; }
// The same for floats: all bits set where a is NaN. gcc makes one instruction of the comparison, and
// does not untangle the conditions of one in another.
TW float tw_nan_where(bool nan, float m) { return tw_from_bits(tw_bits(m) | (nan ? 0xffffffffu : 0u)); }
TW double tw_nan_where(bool nan, double m) { return tw_from_bits64(tw_bits64(m) | (nan ? ~(uint64_t)0 : 0)); }
#define TW_EXTREMES(T) \
  TW T tw_maximum(T a, T b) { return tw_nan_where(a != a, a > b ? a : b); } \
  TW T tw_minimum(T a, T b) { return tw_nan_where(a != a, a < b ? a : b); }
TW_EXTREMES(float)
TW_EXTREMES(double)
template <class T> TW T tw_fmax(T a, T b) { T m = a > b ? a : b; return b != b ? a : m; }
template <class T> TW T tw_fmin(T a, T b) { T m = a < b ? a : b; return b != b ? a : m; }

// division with a remainder; integer division by zero is the user's error, and gives zero
template <class T> TW T tw_trunc_div(T a, T b) { return b == 0 ? 0 : b == (T)-1 ? (T)-a : a / b; }
template <class T> TW T tw_fmod(T a, T b) { return b == 0 || b == (T)-1 ? 0 : a % b; }
template <class T> TW T tw_remainder(T a, T b) {
  T r = tw_fmod(a, b);
  return r != 0 && ((r < 0) != (b < 0)) ? (T)(r + b) : r;
}
template <class T> TW T tw_floor_div(T a, T b) {
  T q = tw_trunc_div(a, b);
  return tw_fmod(a, b) != 0 && ((a < 0) != (b < 0)) ? (T)(q - 1) : q;
}
// Exact, as every difference here is: a step leaves 2^-50 of a quotient, of which floats have at most 2^277.
TW float tw_fmod(float a, float b) {
  double y = __builtin_fabs((double)b), r = __builtin_fabs((double)a), inverse = 1.0 / y;
#pragma GCC unroll 6
  for (int step = 0; step < 6; ++step) r = tw_fma(-__builtin_trunc(r * inverse), y, r);
  r = r < 0.0 ? r + y : r;
  r = r >= y ? r - y : r;
  float infinite = tw_abs(a) < TW_INF ? a : a - a;
  return tw_abs(b) == TW_INF ? infinite : tw_copysign((float)r, a);
}
TW double tw_fmod(double a, double b) { return __builtin_fmod(a, b); }
#define TW_DIVISION(T, floor, trunc) \
  TW T tw_trunc_div(T a, T b) { return trunc(a / b); } \
  TW T tw_remainder(T a, T b) { \
    T r = tw_fmod(a, b); \
    return r != 0 && ((r < 0) != (b < 0)) ? r + b : r; \
  } \
  TW T tw_floor_div(T a, T b) { \
    T r = tw_fmod(a, b), q = (a - r) / b; \
    q = r != 0 && ((b < 0) != (r < 0)) ? q - 1 : q; \
    T f = floor(q); \
    f = q - f > (T)0.5 ? f + 1 : f; \
    f = q == 0 ? tw_copysign((T)0, a / b) : f; \
    return b == 0 ? a / b : f; \
  }
TW_DIVISION(float, __builtin_floorf, __builtin_truncf)
TW_DIVISION(double, __builtin_floor, __builtin_trunc)
template <class T> TW T tw_pow(T a, T b) {
  if (b < 0) return a == 1 ? 1 : a == (T)-1 ? (b & 1 ? (T)-1 : 1) : 0;
  T r = 1;
  for (; b; b >>= 1, a *= a) r = b & 1 ? (T)(r * a) : r;
  return r;
}
template <class T> TW T tw_shl(T a, T b) {
  return b < 0 || b >= (T)(8 * sizeof(T)) ? 0 : (T)((uint64_t)a << b);
}
template <class T> TW T tw_shr(T a, T b) {
  T most = 8 * sizeof(T) - 1, by = b < 0 || b > most ? most : b;
  return (T)-1 > 0 && by != b ? 0 : a >> by;
}

// Philox4x32-10 (ir/philox.py): uniform in [0, 1). Words live in 64-bit lanes, where the product of two
// of them is one multiplication: twice as fast as 32-bit lanes.
TW float tw_philox(int64_t seed, int64_t index) {
  const uint64_t low = 0xffffffffu;
  uint64_t a = (uint64_t)index & low, b = (uint64_t)index >> 32, c = 0, d = 0;
  uint32_t k = (uint32_t)seed, l = (uint32_t)(seed >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    uint64_t p = a * 0xD2511F53u, q = c * 0xCD9E8D57u;
    a = (q >> 32) ^ b ^ k, b = q & low;
    c = (p >> 32) ^ d ^ l, d = p & low;
    k += 0x9E3779B9u, l += 0xBB67AE85u;
  }
  return (float)(int32_t)(uint32_t)(a >> 8) * 0x1p-24f;
}
