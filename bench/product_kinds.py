"""Products with their neighbours as models have them: as one kernel, and as the library's call with
what comes before and after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt

import torch

import product_cases as cases
from product_cases import Body, silu
from torchweld.ir import affine
from triton_cases import Case


@dataclass(frozen=True)
class Kind:
    """`fused(m, n, k)`: the whole; `rest(m, n)`: what follows the library's result `p`, None if
    nothing does; `before(m, k)`: what comes before, makes `x`; `call(tensors)`: the library."""

    fused: Callable[..., Case]
    call: Callable[[dict], object]
    rest: Callable[..., Case] | None = None
    before: Callable[..., Case] | None = None


def _gate(m: int, n: int) -> Case:
    """silu(p[:, :n]) * p[:, n:]"""
    b = Body("bf16", m=m, n=n)
    row, column = affine.axis("m"), affine.axis("n")
    b.extents["j"] = 2 * n
    b.declare("p", "mj")
    del b.extents["j"]
    gate, up = (b.builder.widen(b.builder.load("p", (row, at), b.dtype))
                for at in (column, column + n))  # fmt: skip
    b.write("y", "mn", b.op("mul", silu(b, gate), up))
    return b.case("gate")


def _gelu(m: int, n: int) -> Case:
    b = Body("bf16", m=m, n=n)
    b.write("y", "mn", cases.gelu(b, b.read("p", "mn")))
    return b.case("gelu")


def _add(m: int, n: int, order: str = "mn") -> Case:
    b = Body("bf16", m=m, n=n)
    b.write("y", order, b.op("add", b.read("p", "mn"), b.read("r", order)))
    return b.case("add")


def _norm(m: int, k: int) -> Case:
    """h -> x, RMSNorm without weights."""
    b = Body("bf16", m=m, k=k)
    h = b.read("h", "mk")
    mean = b.op("mul", b.sum(b.op("mul", h, h)), 1.0 / k)
    b.write("x", "mk", b.op("mul", h, b.op("rsqrt", b.op("add", mean, 1e-6))))
    return b.case("rms_norm")


def _mm(t: dict) -> None:
    torch.mm(t["x"], t["w"].t(), out=t["p"])


def _addmm(t: dict) -> None:
    torch.addmm(t["b"], t["x"], t["w"].t(), out=t["p"])


def _addmm_into(t: dict) -> None:
    torch.addmm(t["b"], t["x"], t["w"].t(), out=t["y"])


def _three(t: dict) -> None:
    for part in "012":
        torch.addmm(t[f"b{part}"], t["x"], t[f"w{part}"].t(), out=t[f"y{part}"])


def _nt(t: dict) -> None:
    torch.mm(t["x"], t["w"].t(), out=t["y"])


def _nn(t: dict) -> None:
    torch.mm(t["x"], t["w"], out=t["y"])


def _tn(t: dict) -> None:
    torch.mm(t["x"].t(), t["w"], out=t["y"])


def _convolved(t: dict) -> None:
    """A convolution by 1 x 1 of 16 square images, channels last; torch has no `out` for it."""
    (m, k), n = t["x"].shape, t["w"].shape[0]
    side = isqrt(m // 16)
    image = t["x"].view(16, side, side, k).permute(0, 3, 1, 2)
    made = torch.nn.functional.conv2d(image, t["w"].view(n, k, 1, 1), t["b"])
    t["y"].set_(made.permute(0, 2, 3, 1).reshape(m, n))


def _nn_case(m: int, n: int, k: int) -> Case:
    return cases.linear(m, n, k, right="kn")


def _tn_case(m: int, n: int, k: int) -> Case:
    return cases.linear(m, n, k, left="km", right="kn")


KINDS = {
    "plain": Kind(cases.linear, _nt),
    "bias": Kind(cases.biased, _addmm_into),
    "bias apart": Kind(lambda m, n, k: cases.apart(cases.biased(m, n, k), "xwy"), _addmm_into),
    "pixels": Kind(cases.biased, _convolved),
    # as gradients of the input and of the weight have their factors
    "nn": Kind(_nn_case, _nn),
    "tn": Kind(_tn_case, _tn),
    "plain apart": Kind(lambda m, n, k: cases.apart(cases.linear(m, n, k)), _nt),
    "nn apart": Kind(lambda m, n, k: cases.apart(_nn_case(m, n, k)), _nn),
    "tn apart": Kind(lambda m, n, k: cases.apart(_tn_case(m, n, k)), _tn),
    "bias_gelu": Kind(cases.bias_gelu, _addmm, _gelu),
    "bias_residual": Kind(cases.bias_residual, _addmm, _add),
    "residual": Kind(cases.residual, _mm, _add),
    "residual turned": Kind(lambda m, n, k: cases.residual(m, n, k, order="nm"), _mm,
                            lambda m, n: _add(m, n, "nm")),
    "gated": Kind(cases.gated, _mm, _gate),
    "qkv": Kind(lambda m, n, k: cases.side_by_side(m, (n * 2 // 3, n // 6, n // 6), k), _three),
    "normed_pair": Kind(lambda m, n, k: cases.normed(m, n, k, pair=True), _mm, _gate, _norm),
}
PAIRS = {"gated": ("wg", "wu"), "normed_pair": ("w", "wu")}  # halves of the library's weights

SHAPES = (
    # decode: Llama-1B, Llama-8B, GPT-2, BERT-base at few rows
    *(("gated", m, 8192, 2048) for m in (1, 4, 16, 64)),
    *(("normed_pair", m, 8192, 2048) for m in (1, 16)),
    *(("residual", m, 2048, 8192) for m in (1, 4, 16, 64)),
    *(("residual", m, 2048, 2048) for m in (1, 16, 64)),
    *(("plain", m, 3072, 2048) for m in (1, 16, 64)),
    *(("qkv", m, 3072, 2048) for m in (1, 16)),
    *(("plain", m, 128256, 2048) for m in (1, 16)),
    *(("gated", m, 14336, 4096) for m in (1, 16)),
    *(("bias_gelu", m, 3072, 768) for m in (1, 16, 64)),
    *(("bias_residual", m, 768, 3072) for m in (1, 16, 64)),
    # one sequence, a batch
    ("bias_gelu", 128, 3072, 768), ("bias_residual", 128, 768, 3072), ("plain", 128, 2304, 768),
    ("bias_gelu", 4096, 3072, 768), ("bias_residual", 4096, 768, 3072),
    ("bias_residual", 4096, 768, 768), ("plain", 4096, 2304, 768),
    ("gated", 8192, 3072, 768), ("gated", 2048, 8192, 2048), ("residual", 2048, 2048, 8192),
    ("bias_gelu", 12608, 3072, 768), ("gated", 4096, 14336, 4096),
)  # fmt: skip

# Rows and lengths that are no multiples of 16 bytes, and aligned ones beside them.
UNALIGNED = (
    # a head of 2 C + 3 columns: forward, gradient of the input, of the weight
    *(("bias", 50176, n, 96) for n in (192, 194, 195, 196)),
    ("bias", 12544, 387, 192), ("bias", 3136, 771, 384), ("bias apart", 50176, 195, 96),
    ("bias apart", 12544, 387, 192), ("bias apart", 3136, 771, 384),
    *(("pixels", 50176, n, 96) for n in (192, 195)), ("pixels", 3136, 771, 384),
    *(("nn", 50176, 96, n) for n in (192, 195, 196)), ("nn apart", 50176, 96, 195),
    *(("tn", n, 96, 50176) for n in (192, 194, 195, 196)), ("tn apart", 195, 96, 50176),
    # a short depth, and its gradients; few columns
    *(("plain", 50176, 128, k) for k in (63, 64)), ("plain apart", 50176, 128, 63),
    *(("tn", 128, k, 262144) for k in (63, 64)), ("tn apart", 128, 63, 262144),
    *(("plain", 262144, n, 128) for n in (3, 4, 8)), ("nn", 262144, 128, 4),
    ("tn", 4, 128, 262144), *(("tn", n, n, 262144) for n in (64, 128)), ("nn", 50176, 63, 128),
    # along tokens; classes
    ("residual", 3136, 384, 1536), ("residual turned", 3136, 384, 1536),
    *(("plain", 6144, k, k) for k in (192, 196, 197)), ("plain apart", 6144, 197, 197),
    *(("bias", 512, n, 768) for n in (1000, 1001)), ("nn", 512, 768, 1001),
    ("nn apart", 512, 768, 1001), ("tn", 1001, 768, 512), ("tn apart", 1001, 768, 512),
    ("plain", 512, 50257, 768), ("plain", 512, 512, 2047), ("plain", 2048, 2048, 2047),
    ("plain apart", 2048, 2048, 2047), ("plain", 2048, 2047, 2048),
)  # fmt: skip
