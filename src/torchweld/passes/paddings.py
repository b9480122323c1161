"""Zeros around an image that a convolution reads, as the convolution's own padding.

    before: comp p[n, c, h, w] { x[n, c, h-1, w-1] inside, 0 elsewhere };  y = convolution(p, v)
    after:  y = convolution(x, v), padding (1, 1)

What makes x is then free to join with the kernel before it, and the larger image is in no memory.
Padding that differs before and behind the image (TensorFlow's "same" in steps of two, causal
rows) is taken in where the convolution becomes a kernel of ours on a CPU
(plan/convolutions.py): libraries pad alike on both ends.

Only without gradients: a backward reads the larger image. capture/paddings.py does it before
autograd where both ends are alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from torchweld.core.options import Options
from torchweld.ir.affine import Affine
from torchweld.ir.nodes import Buffer, Comp, Extern, Graph, Load, Node, View, readers, views
from torchweld.ir.size import Size
from torchweld.layout.channels import is_whole
from torchweld.layout.coarse import coarsened
from torchweld.plan.convolutions import is_own
from torchweld.plan.unify import writes_all
from torchweld.rewrite.flow import mutated_buffers
from torchweld.targets.target import Target
from torchweld.templates.conv.comp import CONVOLUTION, UNEVEN, call_of
from torchweld.templates.conv.cpu.schedule import is_inside


@dataclass(frozen=True, slots=True)
class Padded:
    """`source` with zeros around it: as many `before` and `after` as there are for each side."""

    source: View
    before: tuple[int, ...]
    after: tuple[int, ...]


def paddings_taken_in(graph: Graph, target: Target, options: Options) -> Graph:
    """`graph` with such convolutions, and without the images that nobody else reads."""
    if not options.fuse or not any(map(call_of, graph.nodes)):
        return graph
    seen = coarsened(graph, _shapes(graph))
    padded = dict(_padded(seen))
    changed = {n.name: _taken_in(n, padded, seen, target) for n in seen.nodes}
    gone = {n.args[0].buffer for n in seen.nodes if changed[n.name] is not None}
    nodes = (changed[n.name] or n for n in seen.nodes if not gone.intersection(n.writes))
    return replace(seen, nodes=tuple(nodes)) if gone else graph


def _shapes(graph: Graph) -> Iterator[tuple[str, tuple[Size, ...]]]:
    """Buffers that lack the dimension of a batch of one: images of calls, and what those pad."""
    makers = {name: n for n in graph.nodes if isinstance(n, Comp) for name in n.writes}
    for call in filter(None, map(call_of, graph.nodes)):
        shape, maker = call.image.shape, makers.get(call.image.buffer)
        if shape[0] != 1 or call.image.offset != 0 or maker is None:
            continue
        for name in (call.image.buffer, *maker.reads):
            if len(graph.buffers[name].shape) == len(shape) - 1:
                yield name, (1, *graph.buffers[name].shape)


def _padded(graph: Graph) -> Iterator[tuple[str, Padded]]:
    """The buffers that are images with zeros around them, and that one node reads."""
    read_by, mutated = readers(graph.nodes), mutated_buffers(graph)
    returned = {v.buffer for v in views(graph.outputs)}
    for node in (n for n in graph.nodes if isinstance(n, Comp)):
        made = node.writes[0]
        found = padding_of(node, graph.buffers) if len(read_by.get(made, ())) == 1 else None
        if found and made not in returned and not mutated & {made, found.source.buffer}:
            yield made, found


def padding_of(comp: Comp, buffers: Mapping[str, Buffer]) -> Padded | None:
    """What `comp` pads, with zeros; None if it is anything else."""
    (store, *more), sides = comp.stores, []
    load = comp.body[store.value] if isinstance(store.value, int) else None
    if more or store.guard is not None or not isinstance(load, Load) or load.fill != 0:
        return None
    source, result = buffers[load.buffer], buffers[store.buffer]
    ranks = {len(source.shape), len(result.shape), len(load.index), len(store.index)}
    numbers = (*source.shape[2:], *result.shape[2:])
    if source.dtype != result.dtype or len(ranks) > 1 or len(source.shape) < 3:
        return None
    if source.shape[:2] != result.shape[:2] or not all(isinstance(n, int) for n in numbers):
        return None
    for at, put, size, larger in zip(load.index, store.index, source.shape, result.shape):
        plain = isinstance(at, Affine) and isinstance(put, Affine)
        shift = at + put * -1 if plain else None
        if shift is None or shift.axes or not isinstance(shift.const, int):
            return None
        sides.append((-shift.const, larger - size + shift.const))
    places = list(zip(load.index, source.shape))
    padded = is_inside(comp, load.guard, places) and min(map(min, sides)) >= 0
    before, after = zip(*sides[2:])
    whole = writes_all(store.index, comp.extents, result.shape)
    return Padded(source.view, before, after) if padded and whole else None


def _taken_in(
    node: Node, padded: Mapping[str, Padded], graph: Graph, target: Target
) -> Extern | None:
    call = call_of(node)
    if call is None or call.transposed or node.target != CONVOLUTION:
        return None
    found = padded.get(call.image.buffer)
    if found is None or not is_whole(call.image, graph):
        return None
    _, weight, bias, stride, _, *rest = node.args
    before = tuple(p + b for p, b in zip(call.padding, found.before))
    after = tuple(p + a for p, a in zip(call.padding, found.after))
    if before == after:
        return replace(node, args=(found.source, weight, bias, stride, before, *rest))
    both = tuple(n for pair in zip(before, after) for n in pair)
    made = replace(node, target=UNEVEN, args=(found.source, weight, bias, stride, both, *rest))
    return made if is_own(made, graph, target) else None
