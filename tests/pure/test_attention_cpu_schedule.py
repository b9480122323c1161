"""How score nests are tiled, staged and priced on a CPU: no compiler."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nest_cases import KEY_AXES, TEXTS, nest_case
from torchweld.core import dtypes
from torchweld.ir import affine
from torchweld.ir.nodes import Buffer, Comp, Load
from torchweld.ir.normal_form import normalised
from torchweld.ir.views import contiguous_strides
from torchweld.targets.cpu import cpu_target
from torchweld.templates.attention.cpu.price import nest_s, share_seen
from torchweld.templates.attention.cpu.schedule import roles_of, tiles_of, unsupported
from torchweld.templates.attention.cpu.scores import tiles_of_weights
from torchweld.templates.attention.cpu.stages import stages_of


def layouts(comp: Comp) -> dict[str, Buffer]:
    at = {a.name: a.extent - 1 for a in comp.axes}
    touched = [i for i in comp.body if isinstance(i, Load)] + list(comp.stores)
    shapes = {t.buffer: tuple(1 + affine.value(e, at, {}) for e in t.index) for t in touched}
    return {n: Buffer(n, s, dtypes.f32, contiguous_strides(s)) for n, s in shapes.items()}


def roles(name: str, **sizes: int):
    comp = normalised(nest_case(name, **sizes), KEY_AXES.get(name, ("l",)))
    buffers = layouts(comp)
    return roles_of(comp, buffers, {}), buffers


def test_few_rows_are_one_group_and_many_are_whole_ones():
    target = cpu_target(1)
    one = tiles_of(roles("sigmoid", i=1)[0], target, {})
    seven = tiles_of(roles("sigmoid", i=7)[0], target, {})
    many = tiles_of(roles("sigmoid", i=1000, d=64, e=64)[0], target, {})
    assert (one.rows, one.group, one.few) == (1, 1, True)
    assert (seven.rows, seven.group, seven.few) == (8, 4, False)
    assert many.rows % many.part == many.part % many.group == 0 and not many.few


def test_small_caches_and_many_threads_take_smaller_tiles():
    nest, _ = roles("sigmoid", i=4000, l=4000, d=256, e=256)
    target = replace(cpu_target(1), row_bytes=512 << 10)
    small = replace(target, row_bytes=128 << 10)
    assert tiles_of(nest, small, {}).rows < tiles_of(nest, target, {}).rows
    assert tiles_of(nest, replace(target, units=64), {}).rows < tiles_of(nest, target, {}).rows


def test_scores_are_kept_between_the_maximum_and_the_sum():
    nest, _ = roles("forward")
    (walk,) = (stages_of(nest, w) for w in nest.nest.walks)
    maximum = next(v for v in walk.statistics if nest.comp.body[v].monoid == "max")
    assert len(walk.loops) == 2
    assert walk.kept == {nest.comp.body[maximum].args[0]}
    assert list(tiles_of_weights(walk).values()) == [0]  # over the scores


@pytest.mark.parametrize("name", TEXTS)
def test_every_form_is_taken(name):
    nest, _ = roles(name)
    assert unsupported(nest) is None


def test_keys_outside_a_mask_cost_nothing():
    causal, buffers = roles("sigmoid", i=1024, l=1024)
    assert 0.45 < share_seen(causal, {}) < 0.55
    target = cpu_target(2)
    free = replace(causal, nest=replace(causal.nest, bound=type(causal.nest.bound)()))
    tiles = tiles_of(causal, target, {})
    assert nest_s(causal, tiles, buffers, {}, target) < nest_s(free, tiles, buffers, {}, target)
