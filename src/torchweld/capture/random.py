"""Dropout without a stored mask: a seed drawn from torch's generator, and numbers that are a
function of (seed, element).

`torchweld::seed(count, salt, device)` draws `count` int64 seeds from the device's default
generator, so `torch.manual_seed` makes a run repeat; it is one `randint` launch, which a CUDA graph
may capture (torch advances the generator's offset at each replay). `torchweld::philox_uniform(seed,
size)` is the stream of `ir/philox.py`, indexed by the logical row-major element number. A backward
that has the seed draws the same numbers again: the partitioner is made to save the seeds and
nothing else.
"""

from __future__ import annotations

import itertools

import torch
from torch.utils.checkpoint import CheckpointPolicy

from torchweld.ir import philox

_library = torch.library.Library("torchweld", "DEF")
_library.define(
    "seed(int count, int salt, *, Device device) -> Tensor",
    tags=(torch.Tag.nondeterministic_seeded,),
)
_library.define(
    "philox_uniform(Tensor seed, SymInt[] size) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,)
)

_INT64 = torch.iinfo(torch.int64)
_salts = itertools.count()  # makes each call unlike the others, so that no pass merges two of them


def _draw_seed(count: int, salt: int, *, device: torch.device) -> torch.Tensor:
    return torch.randint(_INT64.min, _INT64.max, (count,), dtype=torch.int64, device=device)


def _fake_seed(count: int, salt: int, *, device: torch.device) -> torch.Tensor:
    return torch.empty((count,), dtype=torch.int64, device=device)


def _uniform(seed: torch.Tensor, size: list[int]) -> torch.Tensor:
    count = 1
    for extent in size:
        count *= extent
    index = torch.arange(count, dtype=torch.int64, device=seed.device)
    return philox.uniform(seed, index).reshape(size)


def _fake_uniform(seed: torch.Tensor, size: list[int]) -> torch.Tensor:
    return torch.empty(size, dtype=torch.float32, device=seed.device)


_library.impl("seed", _draw_seed, "BackendSelect")
_library.impl("seed", _draw_seed, "CompositeExplicitAutograd")
_library.impl("philox_uniform", _uniform, "CompositeExplicitAutograd")
torch.library.register_fake("torchweld::seed", _fake_seed)
torch.library.register_fake("torchweld::philox_uniform", _fake_uniform)

SEED = torch.ops.torchweld.seed.default
UNIFORM = torch.ops.torchweld.philox_uniform.default


def keep_mask(like: torch.Tensor, p: float) -> torch.Tensor:
    """A bool tensor of `like`'s shape, each element false with probability `p` (in [0, 1])."""
    return UNIFORM(draw_seed(like.device), like.shape) >= p


def draw_seed(device: torch.device) -> torch.Tensor:
    """One seed, unlike that of any other call."""
    return SEED(1, new_salt(), device=device)


def new_salt() -> int:
    """A number that no other call has."""
    return next(_salts)


def native_dropout(x: torch.Tensor, p: float, train: bool | None):
    """aten.native_dropout: (output, mask). As eager, an element that is dropped is x * 0, so NaN
    and infinity stay visible."""
    if train is False or x.numel() == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    mask = keep_mask(x, p)
    scale = 0.0 if p == 1 else 1.0 / (1.0 - p)
    return x * mask * scale, mask


def native_dropout_backward(grad: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    return grad * mask * scale


def bernoulli(x: torch.Tensor, p: float, generator=None) -> torch.Tensor:
    """aten.bernoulli.p: ones with probability `p`, what dropout is made of where no gradient is
    needed."""
    if generator is not None:
        return NotImplemented
    return torch.logical_not(keep_mask(x, p)).to(x.dtype)


DECOMPOSITIONS = {
    torch.ops.aten.native_dropout.default: native_dropout,
    torch.ops.aten.native_dropout_backward.default: native_dropout_backward,
    torch.ops.aten.bernoulli.p: bernoulli,
}


def gather_seeds(gm: torch.fx.GraphModule) -> None:
    """seed(1), seed(1), ... -> one seed(n) and slices of it, in place: one launch a step, and one
    small tensor to save."""
    by_device: dict[torch.device, list[torch.fx.Node]] = {}
    for node in gm.graph.find_nodes(op="call_function", target=SEED):
        by_device.setdefault(node.kwargs["device"], []).append(node)
    for device, nodes in by_device.items():
        _merge(gm.graph, device, nodes)


def _merge(graph: torch.fx.Graph, device: torch.device, nodes: list[torch.fx.Node]) -> None:
    with graph.inserting_before(nodes[0]):
        seeds = graph.call_function(SEED, (len(nodes), nodes[0].args[1]), {"device": device})
    fake = nodes[0].meta["val"]
    seeds.meta = {
        **nodes[0].meta,
        "val": fake.new_empty((len(nodes),)),
        "recompute": CheckpointPolicy.MUST_SAVE,
    }
    for position, node in enumerate(nodes):
        with graph.inserting_before(node):
            part = graph.call_function(
                torch.ops.aten.slice.Tensor, (seeds, 0, position, position + 1)
            )
        part.meta = {**node.meta, "val": fake}
        node.replace_all_uses_with(part)
        graph.erase_node(node)


def recompute_masks(gm: torch.fx.GraphModule) -> None:
    """Tags what lies between a seed and a dropout mask, so that the partitioner draws it again in
    the backward."""
    for node in gm.graph.find_nodes(op="call_function", target=UNIFORM):
        for drawn in (node, node.args[0], *_comparisons(node)):
            drawn.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE


def _comparisons(node: torch.fx.Node) -> list[torch.fx.Node]:
    return [user for user in node.users if user.target is torch.ops.aten.ge.Scalar]
