"""Concatenations of images of either layout: tiles are turned, also where a guard asks about their
columns, or about parts of their lane."""

from __future__ import annotations

import pytest
import torch

import torchweld
from torchweld.exact.verify import verify

LAST, FIRST = torch.channels_last, torch.contiguous_format
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def joined(*images):
    return torch.cat([x.relu() for x in images], 1)


def joined_first(*images):
    return joined(*images).contiguous()


def joined_last(*images):
    return (joined(*images) * 2 + 1).contiguous(memory_format=LAST)


def shifted(*images):
    """Rows that are not there, before and after."""
    x = joined(*images)
    return torch.nn.functional.pad(x, (0, 0, 0, 0, 3, 2), value=0.5).contiguous()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", [joined_first, joined_last, shifted])
@pytest.mark.parametrize("channels", [(64, 64), (33, 5, 40), (3, 70), (40,)])
@pytest.mark.parametrize("formats", [(LAST, LAST, LAST), (FIRST, LAST, LAST), (LAST, FIRST, FIRST)])
def test_parts_are_as_in_eager(function, channels, formats, dtype):
    torch.manual_seed(0)
    images = [torch.randn(2, c, 9, 13).to(dtype).to(memory_format=f)
              for c, f in zip(channels, formats)]  # fmt: skip
    images[0][0, 0, 0, 0], images[-1][1, -1, 2, 3] = torch.nan, torch.inf
    with torch.no_grad():
        got, wanted = torchweld.fuse(function)(*images), function(*images)
    assert got.stride() == wanted.stride()
    torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_choices_keep_every_bit(dtype):
    """Of 16 bits, by what is no choice to the compiler."""
    bits = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    x = bits.view(dtype) if dtype.itemsize == 2 else bits.to(torch.int32).view(dtype)
    y, mask = x.flip(0), torch.arange(len(x)) % 3 == 0
    got = torchweld.fuse(lambda x, y, mask: torch.where(mask, x, y))(x, y, mask)
    kind, wanted = torch.int16 if dtype.itemsize == 2 else torch.int32, torch.where(mask, x, y)
    numbers = ~wanted.isnan()
    assert torch.equal(got.isnan(), ~numbers)
    assert torch.equal(got.view(kind)[numbers], wanted.view(kind)[numbers])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels", [8, 12, 16, 24])
@pytest.mark.parametrize("memory_format", [FIRST, LAST])
def test_norms_of_few_channels(channels, memory_format, dtype):
    torch.manual_seed(0)
    x = torch.randn(2, 4 * channels, 5, 7).to(dtype).to(memory_format=memory_format)
    scale, shift = torch.randn(4 * channels).to(dtype), torch.randn(4 * channels).to(dtype)

    def norm(x, scale, shift):
        return torch.nn.functional.group_norm(x, 4, scale, shift).relu().contiguous()

    assert verify(norm, torchweld.fuse(norm), (x, scale, shift), train=True).ok
