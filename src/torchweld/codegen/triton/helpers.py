"""Functions that generated Triton kernels call, by name; a source has those that it needs."""

_LOG_ADDED = '''
@triton.jit
def {name}(top, rest, top_too, rest_too):
    """Two stretches, each as its maximum and the sum of the exponentials of what else it has less
    the maximum. Infinities of one sign are as far apart as equal numbers."""
    share = tl.where(top == top_too, 1.0, {exp}(-tl.abs(top - top_too)))
    more = top_too > top
    high, low = tl.where(more, rest_too, rest), tl.where(more, rest, rest_too)
    return tl.where(more, top_too, top), high + share * (1.0 + low)
'''
_EXPONENTIALS = {"_log_added": "libdevice.exp", "_log_added_fast": "tl.exp"}

HELPERS = {name: _LOG_ADDED.format(name=name, exp=exp) for name, exp in _EXPONENTIALS.items()} | {
    "_await_previous": '''
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def _await_previous():
    """The end of the kernel before this one. The next may begin meanwhile, unless there are many
    programs: each takes 0.6 ns of the whole device to say so, and the last would be waited for."""
    if tl.num_programs(0) * tl.num_programs(1) * tl.num_programs(2) <= 2048:
        gdc_launch_dependents()
    gdc_wait()
''',
    "_finite": '''
@triton.jit
def _finite(top):
    """A maximum that can be subtracted: zero where there is nothing but -inf."""
    return tl.where(top == float("-inf"), 0.0, top)
''',
    "_run_joined": '''
@triton.jit
def _run_joined(starts, left, starts_too, right):
    """Two stretches of points, one behind the other: whether a run starts there, and the sum since
    the last start."""
    return starts | starts_too, tl.where(starts_too != 0, right, left + right)
''',
    "_run_sums": '''
@triton.jit
def _run_sums(starts, values):
    """Sums down the rows, each from where the last run has started."""
    flags = tl.broadcast_to(starts, values.shape).to(tl.int32)
    return tl.associative_scan((flags, values), 0, _run_joined)[1]
''',
    "_prefetch": '''
@triton.jit
def _prefetch(lines, inside):
    """Has those lines that are inside brought into L2."""
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.s32 p, $2, 0; @p prefetch.global.L2 [$1]; mov.u32 $0, 0; }",
        "=r,l,r", [lines, inside.to(tl.int32)], dtype=tl.int32, is_pure=False, pack=1
    )
''',
    "_tile_at": '''
@triton.jit
def _tile_at(r, c, tiles_r, tiles_c, group):
    """The tile of a program: `group` rows of tiles at a time, column by column, so that what they
    share stays in the last-level cache."""
    tile = r + c * tiles_r
    width = group * tiles_c
    first = tile // width * group
    rows = tl.minimum(tiles_r - first, group)
    return first + tile % width % rows, tile % width // rows
''',
    "_quotient": '''
@triton.jit
def _quotient(a, b):
    """a / b of float32 as a division rounds it, where many `a` have one `b`, whose reciprocal is
    taken once. The rest of a quotient, which a multiply-add has exactly, gives the next, twice; the
    second is the nearest (Markstein 1990), unless `a` is less than 2^-103, of which the rest is
    not exact: it may be one unit off. Zero and infinity have no rest. `b` is brought to where it
    has a reciprocal."""
    size = tl.abs(b)
    scale = tl.where(size < 2.0 ** -100, 2.0 ** 64, tl.where(size > 2.0 ** 100, 2.0 ** -64, 1.0))
    divisor = b * scale
    inverse = libdevice.rcp_rn(divisor)
    first = a * inverse
    second = libdevice.fma_rn(libdevice.fma_rn(-first, divisor, a), inverse, first)
    third = libdevice.fma_rn(libdevice.fma_rn(-second, divisor, a), inverse, second)
    return tl.where((first == 0) | (tl.abs(first) == float("inf")), first, third) * scale
''',
    "_fmod": '''
@triton.jit
def _fmod(a, b):
    """Exact. libdevice's for float32 takes denormals for zeros: divisors near those are scaled, and
    what would overflow with them has its remainder by a multiple first. A remainder is denormal
    only then, or where it is `a` itself."""
    if a.dtype == tl.float32 and b.dtype == tl.float32:
        size = tl.abs(b)
        scale = tl.where(size < 2.0 ** -100, 2.0 ** 100, 1.0)
        divisor = b * scale
        multiple = tl.where(size < 2.0 ** -100, divisor, float("inf"))
        first = tl.where(tl.abs(a) < tl.abs(multiple), a, libdevice.fmod(a, multiple))
        rest = libdevice.fmod(first * scale, divisor) * (1.0 / scale)
        result = tl.where(tl.abs(a) < size, a, rest)
    else:
        result = libdevice.fmod(a.to(tl.float64), b.to(tl.float64)).to(a.dtype)
    return result
''',
    "_floor_div": '''
@triton.jit
def _floor_div(a, b):
    """Floor of a / b, as torch rounds it: from the exact remainder, so that it never rounds up."""
    remainder = _fmod(a, b)
    quotient = libdevice.div_rn(a - remainder, b)
    quotient = tl.where((remainder != 0) & ((b < 0) != (remainder < 0)), quotient - 1, quotient)
    floor = tl.floor(quotient)
    floor = tl.where(quotient - floor > 0.5, floor + 1, floor)
    ratio = libdevice.div_rn(a, b)
    floor = tl.where(quotient == 0, libdevice.copysign(tl.full((), 0, ratio.dtype), ratio), floor)
    return tl.where(b == 0, ratio, floor)
''',
    "_remainder": '''
@triton.jit
def _remainder(a, b):
    """The remainder with the sign of the divisor."""
    remainder = _fmod(a, b)
    return tl.where((remainder != 0) & ((b < 0) != (remainder < 0)), remainder + b, remainder)
''',
    "_floor_div_int": """
@triton.jit
def _floor_div_int(a, b):
    quotient = a // b
    return tl.where((quotient * b != a) & ((a < 0) != (b < 0)), quotient - 1, quotient)
""",
    "_remainder_int": """
@triton.jit
def _remainder_int(a, b):
    remainder = a % b
    return tl.where((remainder != 0) & ((b < 0) != (remainder < 0)), remainder + b, remainder)
""",
    "_pow_int": '''
@triton.jit
def _pow_int(base, exponent):
    """By squaring; a negative exponent gives what torch gives: 1, -1 or 0."""
    result = tl.where(exponent < 0, base * 0, base * 0 + 1)
    sign = tl.where((exponent & 1) == 1, base, base * base)
    result = tl.where((exponent < 0) & ((base == 1) | (base == -1)), sign, result)
    left = tl.where(exponent < 0, 0, exponent)
    square = base
    for _ in tl.static_range(6):
        result = tl.where((left & 1) == 1, result * square, result)
        square = square * square
        left = left >> 1
    return result
''',
    "_power": '''
@triton.jit
def _power(
    x, N: tl.constexpr, BITS: tl.constexpr, INVERSE: tl.constexpr, HALF: tl.constexpr,
    CARRY: tl.constexpr
):
    """x to the power of N, or N / 2 for HALF, or one over that. N has BITS bits and is at least 2.
    From the first bit on, by squaring. With CARRY, what each root, inverse and product misses is
    added in the end, so they may be rough: half a unit in the last place. Where that is no small
    number, a factor was infinite or NaN, or has become zero: then so is the power."""
    one = tl.full((), 1, x.dtype)
    EXACT: tl.constexpr = not (INVERSE or HALF)
    top = x
    if HALF:
        top = tl.sqrt(tl.where(x == float("-inf"), float("inf"), x + 0.0))
    if not EXACT:
        inverse = 1 / top
    if HALF and CARRY:
        low = libdevice.fma_rn(-top, top, x) * (0.5 * inverse)
    if INVERSE:
        if CARRY:
            left = libdevice.fma_rn(-top, inverse, one)
            if HALF:
                left = libdevice.fma_rn(-low, inverse, left)
            low = left * inverse
        top = inverse
    base = top
    if CARRY and not EXACT:
        more = low
    for step in tl.static_range(1, BITS):
        square = libdevice.mul_rn(top, top)
        if CARRY:
            left = libdevice.fma_rn(top, top, -square)
            if EXACT and step == 1:
                low = left
            else:
                low = libdevice.fma_rn(top + top, low, left)
        top = square
        if (N >> (BITS - 1 - step)) & 1:
            product = libdevice.mul_rn(top, base)
            if CARRY:
                left = libdevice.fma_rn(top, base, -product)
                if not EXACT:
                    left = libdevice.fma_rn(top, more, left)
                low = libdevice.fma_rn(low, base, left)
            top = product
    if CARRY:
        top = tl.where(tl.abs(low) < tl.abs(top), top + low, top)
    return top
''',
    "_erf_near_one": '''
@triton.jit
def _erf_near_one(x):
    """erf(x) within 3e-7: erfc(z) is two to the power of a polynomial, fitted over [0, 4] for the
    least error of erf (1.5e-8 before rounding), which falls for ever beyond."""
    z = tl.abs(x)
    p = 0.0004369449452497065 - 4.435291339177638e-05 * z
    p = -0.0008251599501818419 + z * (-0.0014603843446820974 + z * p)
    p = -0.14850664138793945 + z * (0.02830188162624836 + z * p)
    p = -1.6279093027114868 + z * (-0.9184098243713379 + z * p)
    return libdevice.copysign(1 - tl.exp2(2.1714475550993484e-08 + z * p), x)
''',
    "_tanh": '''
@triton.jit
def _tanh(x):
    """tanh(x) of a float32 within two units in the last place, without the branch of libdevice's:
    where threads branch, their elements wait for each other."""
    s = x * x
    p = 0.0211162231862545 - 0.006276398431509733 * s
    p = -0.3333333134651184 + s * (0.13332924246788025 + s * (-0.053875140845775604 + s * p))
    far = 1 - 2 / (1 + tl.exp(2 * tl.abs(x)))
    return tl.where(s < 0.36, x + x * s * p, libdevice.copysign(far, x))
''',
    "_log_one_plus": '''
@triton.jit
def _log_one_plus(x):
    """log(1 + x) of a float32 within two units in the last place, without branches: with the
    exponent e of 1 + x, it is log(2) e + log(1 + m) for m in [-0.25, 0.5]."""
    e = (tl.cast(1 + x, tl.int32, bitcast=True) - 0x3F400000) & -0x800000
    m = tl.cast(tl.cast(x, tl.int32, bitcast=True) - e, tl.float32, bitcast=True)
    m += tl.cast(0x3F800000 - e, tl.float32, bitcast=True) - 1
    p = 0.10748569667339325 - 0.04857634752988815 * m
    p = -0.16644467413425446 + m * (0.14426705241203308 + m * (-0.1314474195241928 + m * p))
    p = 0.33333393931388855 + m * (-0.2500024437904358 + m * (0.1999390870332718 + m * p))
    found = tl.cast(e, tl.float32) * 8.262958394038406e-08 + (m + m * m * (-0.5 + m * p))
    found = tl.where(x > -1, found, tl.where(x == -1, float("-inf"), float("nan")))
    return tl.where(x < float("inf"), found, x)
''',
    "_uniform": '''
@triton.jit
def _uniform(seed, index):
    """Philox4x32-10 of (seed, index): 24 random bits in [0, 1)."""
    low = (index & 0xFFFFFFFF).to(tl.uint32)
    high = ((index >> 32) & 0xFFFFFFFF).to(tl.uint32)
    zero = low * 0
    word, _, _, _ = tl.philox(seed, low, high, zero, zero)
    return (word >> 8).to(tl.float32) * 5.9604644775390625e-08
''',
    "_converts_float8": '''
@tl.core.builtin
def _converts_float8(_semantic=None):
    """Whether float32 becomes 8 bits in one instruction: on sm_89 Triton goes by way of float16."""
    return tl.constexpr(int(_semantic.builder.options.arch.removeprefix("sm")) >= 90)
''',
    "_from_float8": '''
@triton.jit
def _from_float8(code, MANTISSA: tl.constexpr, BIAS: tl.constexpr, SPECIAL: tl.constexpr):
    """The float32 that an 8-bit float is; it comes as a byte."""
    if _converts_float8():
        KIND: tl.constexpr = tl.float8e4nv if MANTISSA == 3 else tl.float8e5
        value = code.to(KIND, bitcast=True).to(tl.float32)
    else:
        size = code.to(tl.uint32) & 0x7F
        bits = (size << (23 - MANTISSA)) + ((127 - BIAS) << 23)
        small = (bits + 0x00800000).to(tl.float32, bitcast=True) - 2.0 ** (1 - BIAS)
        bits = tl.where(size < (1 << MANTISSA), small.to(tl.uint32, bitcast=True), bits)
        bits = tl.where(size >= SPECIAL, bits | 0x7F800000, bits)
        value = (bits | ((code.to(tl.uint32) & 0x80) << 24)).to(tl.float32, bitcast=True)
    return value
''',
    "_to_float8": '''
@triton.jit
def _to_float8(
    x, MANTISSA: tl.constexpr, BIAS: tl.constexpr, LIMIT: tl.constexpr, TOP: tl.constexpr
):
    """The byte of the 8-bit float next to a float32, to even of two. Below the normal ones a sum
    rounds to their step. The instruction has no NaN of either sign, nor infinities."""
    signed = x.to(tl.uint32, bitcast=True)
    bits = signed & 0x7FFFFFFF
    size = bits.to(tl.float32, bitcast=True)
    if _converts_float8():
        KIND: tl.constexpr = tl.float8e4nv if MANTISSA == 3 else tl.float8e5
        code = size.to(KIND).to(tl.uint8, bitcast=True).to(tl.uint32)
    else:
        POWER: tl.constexpr = (151 - MANTISSA - BIAS) << 23
        small = (size + 2.0 ** (24 - MANTISSA - BIAS)).to(tl.uint32, bitcast=True) - POWER
        odd = (bits >> (23 - MANTISSA)) & 1
        code = bits + ((1 << (22 - MANTISSA)) - 1) + odd - ((127 - BIAS) << 23)
        code = tl.where(bits < ((128 - BIAS) << 23), small, code >> (23 - MANTISSA))
    code = tl.where(bits >= LIMIT, TOP, code)
    code = tl.where(bits > 0x7F800000, 0x7F, code)
    return (code | (signed >> 24 & 0x80)).to(tl.uint8)
''',
    "_reduce_add": """
@triton.jit
def _reduce_add(a, b):
    return a + b
""",
    "_reduce_mul": """
@triton.jit
def _reduce_mul(a, b):
    return a * b
""",
    "_reduce_maximum": """
@triton.jit
def _reduce_maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "_reduce_minimum": """
@triton.jit
def _reduce_minimum(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "_argmax": '''
@triton.jit
def _argmax(a, a_at, b, b_at):
    """The larger of two with its position: NaN first, then the lower position."""
    a_nan, b_nan = a != a, b != b
    same = (a == b) | (a_nan & b_nan)
    first = (a > b) & (b_nan == 0) | (a_nan & (b_nan == 0)) | (same & (a_at < b_at))
    return tl.where(first, a, b), tl.where(first, a_at, b_at)
''',
    "_argmin": '''
@triton.jit
def _argmin(a, a_at, b, b_at):
    """The smaller of two with its position: NaN first, then the lower position."""
    a_nan, b_nan = a != a, b != b
    same = (a == b) | (a_nan & b_nan)
    first = (a < b) & (b_nan == 0) | (a_nan & (b_nan == 0)) | (same & (a_at < b_at))
    return tl.where(first, a, b), tl.where(first, a_at, b_at)
''',
    "_welford": '''
@triton.jit
def _welford(a, a_squares, a_count, b, b_squares, b_count):
    """Mean, sum of squares around it and count of two sets together, by Chan's formula."""
    count = a_count + b_count
    apart = b - a
    share = b_count / tl.maximum(count, 1.0)
    squares = a_squares + b_squares + apart * (apart * (a_count * share))
    return a + apart * share, squares, count
''',
}
