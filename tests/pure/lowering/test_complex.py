"""Complex numbers become real ones that mean the same; transforms and products take pairs."""

from __future__ import annotations

import math
import random

import pytest
import torch
from lowered import assert_close, externs, run
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from torchweld.capture import functional
from torchweld.capture.captured import Captured
from torchweld.capture.lower import lower

C64, C128 = torch.complex64, torch.complex128
ODD = [0.0, -0.0, 1.0, -2.5, math.inf, -math.inf, math.nan, 3e20, 1e-30]


def lowered(function, *args):
    def listed(flat):
        results = function(*flat)
        return list(results) if isinstance(results, tuple) else [results]

    gm = make_fx(functionalize(listed), tracing_mode="fake")(list(args))
    functional.rewrite(gm)
    return lower(Captured(gm, "test", "inference"))


def randn(*shape, dtype=C64):
    return torch.randn(*shape, dtype=dtype)


def check(function, *args, left=()):
    """`left`: the names of the calls that stay."""
    found = lowered(function, *args)
    assert [t.split(".")[1] for t in externs(found) if "view_as" not in t] == list(left)
    expected = function(*args)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for one, other in zip(run(found, args, exact=False), expected, strict=True):
        assert one.dtype == other.dtype and one.stride() == other.stride()
        if one.is_complex():
            one, other = map(torch.view_as_real, (one.resolve_conj(), other.resolve_conj()))
        assert_close(one, other)


def put(z, w):
    z = z.clone()
    z[:, 1:3] = w[:, :2] * 2
    z[0] = z[0].conj()
    return z


FUNCTIONS = {
    "sums": lambda z, w: (z + w, z - w, torch.add(z, w, alpha=2 - 1j), -z),
    "products": lambda z, w: z * w * 2 * (0.5 - 3j) * w.real,
    "quotients": lambda z, w: (z / w, 1 / w, z / 2, z / w.abs(), w.real / z),
    "numbers": lambda z, w: (z.real * 1j + w, z + 1j, 2 - z, z**2),
    "conjugates": lambda z, w: (z.conj() * w, (z * w).conj().imag, torch.conj_physical(z) + w),
    "functions": lambda z, w: (torch.exp(z), z.abs(), z.angle(), torch.log(z), torch.sgn(z)),
    "made": lambda z, w: (torch.polar(z.abs(), w.angle()), torch.complex(z.imag, w.real)),
    "constants": lambda z, w: (torch.zeros_like(z) + w, z.new_ones(2, 3) * 2j),
    "filled": lambda z, w: (torch.full_like(z, 1j), torch.full_like(z, 2) * w),
    "moved": lambda z, w: (torch.cat([z, w]).T * 2, z.flip(0).roll(1, 1)),
    "stacked": lambda z, w: torch.stack([z, w], 1) * 1,
    "reshaped": lambda z, w: ((z.T * 2).reshape(-1), z.unsqueeze(1).expand(4, 2, 6).sum(1) + w),
    "chosen": lambda z, w: (z[:, 1] * 1, z[[2, 0]] + 1, torch.where(z.real > 0, z, w) * 1),
    "reduced": lambda z, w: (z.sum(), z.mean(1), (z * w).sum(0, keepdim=True), z.cumsum(1)),
    "padded": lambda z, w: torch.nn.functional.pad(z, (1, 2)) * 2,
    "written": put,
    "converted": lambda z, w: (z.real.to(C64) * w, (z * w).to(C128)),
    "masked": lambda z, w: z.masked_fill(w.real > 0, 0) * w,
    "pairs": lambda z, w: (torch.view_as_real(z * w), torch.view_as_real(z)[..., 1] * 2),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [C64, C128], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_same_meaning(name, dtype):
    torch.manual_seed(0)
    check(FUNCTIONS[name], randn(4, 6, dtype=dtype), randn(4, 6, dtype=dtype))


@pytest.mark.parametrize(
    "function", [FUNCTIONS["products"], lambda z, w: (z.conj() * w, z * w.conj())]
)
def test_infinities_are_eagers(function):
    """A difference of eager's is a product by -1, which makes NaN of an infinity: not so here."""
    z = torch.tensor([[complex(a, b) for a in ODD] for b in ODD])
    check(function, z, z.flip(0).T.contiguous())


@pytest.mark.parametrize("function", [lambda z: 1 / z, torch.exp, torch.abs, torch.sgn])
def test_functions_of_odd_numbers(function):
    values = [0.0, -0.0, 1.0, -2.5, 3e20, 1e-30, 80.0]
    check(function, torch.tensor([[complex(a, b) for a in values] for b in values[:4]]))


@pytest.mark.parametrize("turn", [lambda z: z.T, lambda z: z.permute(1, 0).contiguous().T])
def test_results_lie_as_eagers(turn):
    check(lambda z: (turn(z) * 2, turn(z).conj()), randn(5, 3))
    check(lambda z: (turn(z) / (turn(z).abs() + 2)).abs(), randn(5, 3))
    check(lambda z: torch.nn.functional.pad(turn(z) * 2, (1, 0))[:, 1:], randn(5, 3))
    check(lambda z: torch.view_as_real(turn(z) * 2j), randn(5, 3))


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_a_rotary_embedding_is_of_real_numbers(dtype):
    def rotated(x, w):
        z = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(z * torch.view_as_complex(w)[None, :, None]).flatten(3).type_as(x)

    x, w = torch.randn(2, 5, 3, 8).to(dtype), torch.randn(5, 4, 2)
    found = lowered(rotated, x, w)
    assert externs(found) == []
    assert_close(run(found, (x, w), exact=False)[0], rotated(x, w))


def test_spectra_are_pairs():
    def filtered(x, w):
        spectrum = torch.fft.rfft(x, dim=-1) * w
        kept = torch.zeros_like(spectrum)
        kept[:, :4] = spectrum[:, :4]
        return torch.fft.irfft(kept, n=x.shape[-1]), spectrum.abs().log1p()

    check(filtered, torch.randn(3, 20), randn(11), left=("fft_r2c", "fft_c2r"))


def test_products_of_matrices_take_pairs():
    check(lambda z, w: (z @ w.mT).conj() + 1, randn(4, 6), randn(5, 6), left=("mm_of_pairs",))
    check(lambda z, w: torch.einsum("bix,iox->box", z, w) * 2, randn(2, 3, 5), randn(3, 4, 5),
          left=("bmm_of_pairs",))  # fmt: skip


def test_transforms_of_complex_images():
    def run_(z):
        return torch.fft.fft2(torch.fft.fftshift(z) * 2, norm="ortho").abs()

    check(run_, randn(2, 6, 7), left=("fft_c2c",))


def test_what_is_not_listed_gets_complex_numbers():
    found = lowered(lambda z, w: (z * w).tan() + w, randn(3), randn(3))
    called = externs(found)
    assert "aten.view_as_complex_copy.default" in called and "aten.tan.default" in called


def test_real_numbers_are_left_alone():
    x = torch.randn(3, 4)
    gm = make_fx(lambda x: x.cos() * 2, tracing_mode="fake")(x)
    before = list(gm.graph.nodes)
    functional.rewrite(gm)
    assert list(gm.graph.nodes) == before


def test_real_numbers_are_spread_over_complex_ones():
    """A larger real tensor beside a smaller complex one, and the reverse."""
    x, z = torch.randn(3, 4, 5), randn(4, 1)
    check(lambda x, z: (x + z, z - x, x * z, z / x, torch.complex(x, z.real)), x, z,
          left=("complex",))  # fmt: skip


ONE = (
    "{0}.conj()", "torch.exp({0} * 0.3)", "-{0}", "{0} * (0.5 - 2j)", "{0} / ({0}.abs() + 1)",
    "{0}.mT", "{0}.flip(-1)", "{0}.roll(1, 0)", "torch.fft.fft({0}, norm='ortho')",
    "torch.complex({0}.imag, {0}.real)", "torch.polar({0}.abs(), {0}.real)", "{0} + {0}.real",
    "torch.cat([{0}[:1], {0}[1:] * 2], 0)", "torch.sgn({0})", "{0} ** 2", "1 / ({0} + 3)",
    "torch.where({0}.real > 0, {0}, {0} * 2j)", "{0}.cumsum(1) * 0.3", "put({0}, {0})", "2 - {0}",
    "torch.nn.functional.pad({0}, (1, 0))[:, 1:]", "{0}[[1, 0, 2, 3]]", "torch.log({0} + 4)",
)  # fmt: skip
TWO = ("{0} * {1}", "{0} + {1}", "{0} - {1}", "{0} / ({1}.abs() + 2)", "{0} * {1}.conj()",
       "{0} @ {1} * 0.2", "torch.add({0}, {1}, alpha=0.5j)", "{0} * {1}.real")  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed):
    draw = random.Random(seed)
    torch.manual_seed(seed)
    lines, names = [], ["z", "w"]
    for number in range(draw.randint(3, 7)):
        form = draw.choice(ONE if draw.random() < 0.65 else TWO)
        lines.append(f"    v{number} = {form.format(draw.choice(names), draw.choice(names))}")
        names.append(f"v{number}")
    results = f"{names[-1]}, {names[-2]}.abs(), {draw.choice(names)} * 1"
    program = "\n".join(["def function(z, w):", *lines, f"    return {results}"])
    made = {"torch": torch, "put": put}
    exec(program, made)
    z, w = randn(4, 4), randn(4, 4).mT
    found = run(lowered(made["function"], z, w), (z, w), exact=False)
    exact = made["function"](z.to(C128), w.to(C128))
    for one, eager, best in zip(found, made["function"](z, w), exact, strict=True):
        assert one.stride() == eager.stride(), program
        assert (one - best).norm() <= 4 * (eager - best).norm() + 2e-6 * best.norm(), program


MIXED = {
    "cat": lambda z, x, k: (torch.cat([z, x]), torch.cat([k, z * 2], 1)),
    "stack": lambda z, x, k: torch.stack([x * 2, z * 1], -1),
    "sums": lambda z, x, k: ((x * 2).sum(dtype=C64) * z, x.cumsum(1, dtype=C64) + z),
    "wide sums": lambda z, x, k: ((z * 2).sum(dtype=C128), (z * 2).mean(1, dtype=C128)),
    "wide scan": lambda z, x, k: (z * 2).cumsum(1, dtype=C128),
    "masks": lambda z, x, k: (z * (x > 0), torch.where(x > 0, z, x), z.masked_fill(x > 0, 1j)),
    "chosen": lambda z, x, k: (z * k, z + k, torch.gather(z * 2, 1, k % 4), z[k[0] % 3]),
}


@pytest.mark.parametrize("name", MIXED)
def test_complex_and_other_numbers(name):
    """What ATen converts has an imaginary part of zero; sums may be of another type."""
    torch.manual_seed(0)
    args = randn(3, 4), torch.randn(3, 4), torch.arange(12).view(3, 4)
    expected, found = MIXED[name](*args), run(lowered(MIXED[name], *args), args, exact=False)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
