"""Layers of LSTM, GRU and RNN as one call in the graph, which does what eager does.

Taken apart, each step of a sequence is a dozen operations, and a sequence of another length another
graph. The call is ATen's own, with ATen's gradient: the forward keeps what autograd recorded until
the backward asks for it. A forward whose backward does not come is forgotten after the next ones
of the same call; a backward that comes late, or again, records it anew from what the graph saved.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F

from torchweld.core import torch_private

_FUNCTIONS = {
    "lstm": torch.lstm, "gru": torch.gru, "rnn_tanh": torch.rnn_tanh, "rnn_relu": torch.rnn_relu
}  # fmt: skip
_KINDS = {function: kind for kind, function in _FUNCTIONS.items()}
_HOW = "bool biases, int layers, bool train, bool two_ways, bool batch_first, bool own_weights"
_KEPT = 2  # forwards of one call that wait for their backward

_library = torch.library.Library("torchweld", "FRAGMENT")
_library.define(
    f"recurrent(str kind, Tensor x, Tensor[] state, Tensor[] weights, {_HOW}, int site) "
    "-> (Tensor, Tensor, Tensor, Tensor)"
)
_library.define(
    "recurrent_backward(Tensor[] gradients, Tensor number, str kind, Tensor x, Tensor[] state, "
    f"Tensor[] weights, {_HOW}, int site) -> Tensor[]"
)
ops = torch.ops.torchweld
_sites, _numbers = itertools.count(1), itertools.count(1)
_waiting: dict[int, deque] = {}
_lock = threading.Lock()


def keep_whole(gm: torch.fx.GraphModule) -> None:
    """Before autograd: torch.lstm and its like on padded sequences become one call each."""
    found = [n for n in gm.graph.nodes if n.op == "call_function" and _is_padded(n)]
    for node in found:
        own = all(w.op in ("placeholder", "get_attr") for w in node.args[2])
        node.target = partial(_layers, _KINDS[node.target], own)
    if found:
        gm.recompile()


def _is_padded(node: torch.fx.Node) -> bool:
    """Its arguments are (x, state, weights, ...), no packed sequence, no projections."""
    if node.target not in _KINDS or len(node.args) != 9 or node.kwargs:
        return False
    _, _, weights, biases, layers, _, _, two_ways, _ = node.args
    if not isinstance(weights, (list, tuple)) or not isinstance(layers, int):
        return False
    return len(weights) == layers * (1 + bool(two_ways)) * (4 if biases else 2)


def _layers(
    kind: str, own_weights: bool, x, state, weights, biases, layers, dropout, train, two_ways,
    batch_first,
):
    """What torch.lstm gives. `own_weights`: they have memory of their own, which no kernel of the
    graph will write to. With dropout layer by layer, since the masks are the graph's."""
    if torch.is_autocast_enabled(x.device.type):
        function = _FUNCTIONS[kind]
        return function(
            x, state, weights, biases, layers, dropout, train, two_ways, batch_first
        )
    state = list(state) if isinstance(state, (list, tuple)) else [state]
    how = (biases, layers, bool(train), two_ways, batch_first, own_weights)
    if not (dropout and train and layers > 1):
        return _results(kind, _call(kind, x, state, weights, how))
    ends: list[Sequence[torch.Tensor]] = []
    ways, each = 1 + two_ways, len(weights) // layers
    for layer in range(layers):
        x = F.dropout(x, dropout) if layer else x
        own = [s[layer * ways : (layer + 1) * ways] for s in state]
        part = weights[layer * each : (layer + 1) * each]
        x, *last = _call(kind, x, own, part, (biases, 1, True, two_ways, batch_first, own_weights))
        ends.append(last)
    return _results(kind, (x, *(torch.cat(parts) for parts in zip(*ends))))


def _call(kind: str, x, state, weights, how) -> Sequence[torch.Tensor]:
    grad = torch.is_grad_enabled() and any(t.requires_grad for t in (x, *state, *weights))
    site = next(_sites) if grad else 0
    return ops.recurrent(kind, x, state, list(weights), *how, site)[:3]


def _results(kind: str, made: Sequence[torch.Tensor]):
    return tuple(made[:3]) if kind == "lstm" else tuple(made[:2])


def run(kind, x, state, weights, biases, layers, train, two_ways, batch_first, own_weights, site):
    """(y, h, c, number): y [batch, time, features], or time first; h and c [layers, batch,
    features], c empty but for an LSTM; `number` [], on the CPU: which forward it was, 0 where
    nobody will ask for a gradient (`site` is 0)."""
    how = (biases, layers, 0.0, train, two_ways, batch_first)
    if not site:
        # Above: a first call is watched by AOTAutograd, below whose mode torch takes layers apart.
        with torch_private.above_autograd(), torch.no_grad():
            made = _FUNCTIONS[kind](x, _state(kind, state), weights, *how)
        results = _laid_out(made, x, batch_first)
        return (*results, torch.zeros((), dtype=torch.int64))
    recorded = _record(kind, x, state, weights, how, own_weights)
    number = next(_numbers)
    with _lock:
        _waiting.setdefault(site, deque(maxlen=_KEPT)).append((number, recorded))
    results = _laid_out([t.detach().clone() for t in recorded[1]], x, batch_first)
    return (*results, torch.full((), number, dtype=torch.int64))


def run_backward(
    gradients, number, kind, x, state, weights, biases, layers, train, two_ways, batch_first,
    own_weights, site,
) -> list[torch.Tensor]:
    """Gradients of x, each state and each weight, from those of (y, h, c)."""
    recorded = _take(site, int(number))
    if recorded is None:
        how = (biases, layers, 0.0, train, two_ways, batch_first)
        recorded = _record(kind, x, state, weights, how, own_weights)
    leaves, results = recorded
    given = [g for g, _ in zip(gradients, results)]
    with torch_private.above_autograd():
        made = torch.autograd.grad(results, leaves, given, allow_unused=True)
    return [_like(t, g) for t, g in zip(leaves, made)]


def _record(
    kind: str, x, state, weights, how, own_weights: bool
) -> tuple[list, Sequence[torch.Tensor]]:
    """(leaves, results) of a forward that autograd has seen. What it keeps is copied, as are the
    results that are handed out: the graph's memory is planned without it."""
    given = [t.detach().clone() for t in (x, *state)]
    leaves = [*given, *(w.detach() if own_weights else w.detach().clone() for w in weights)]
    leaves = [t.requires_grad_() for t in leaves]
    own, rest = leaves[1 : 1 + len(state)], leaves[1 + len(state) :]
    with torch_private.above_autograd(), torch.enable_grad():
        return leaves, _FUNCTIONS[kind](leaves[0], _state(kind, own), rest, *how)


def _take(site: int, number: int):
    """What the forward of this number has recorded; None where it is forgotten."""
    with _lock:
        waiting = _waiting.get(site, ())
        found = next((entry for entry in waiting if entry[0] == number), None)
        if found is not None:
            waiting.remove(found)
    return found and found[1]


def _state(kind: str, state):
    return list(state) if kind == "lstm" else state[0]


def _like(leaf: torch.Tensor, gradient: torch.Tensor | None) -> torch.Tensor:
    return torch.zeros_like(leaf) if gradient is None else gradient.contiguous()


def _laid_out(made, x, batch_first: bool) -> tuple[torch.Tensor, ...]:
    """(y, h, c) with the strides that fake tensors promise: time is outermost in memory."""
    y, h, c = (*made, x.new_empty(0))[:3]
    y = y.transpose(0, 1).contiguous().transpose(0, 1) if batch_first else y.contiguous()
    return y, h.contiguous(), c.contiguous()


def _fake(kind, x, state, weights, biases, layers, train, two_ways, batch_first, own_weights, site):
    time, batch = (x.shape[1], x.shape[0]) if batch_first else (x.shape[0], x.shape[1])
    y = x.new_empty(time, batch, state[0].shape[2] * (1 + two_ways))
    y = y.transpose(0, 1) if batch_first else y
    h, c = (*(s.new_empty(s.shape) for s in state), x.new_empty(0))[:2]
    return y, h, c, torch.empty((), dtype=torch.int64, device="cpu")


def _fake_backward(gradients, number, kind, x, state, weights, *how):
    return [t.new_empty(t.shape) for t in (x, *state, *weights)]


def _keep(ctx, inputs, output) -> None:
    kind, x, state, weights, *how = inputs
    ctx.kind, ctx.how, ctx.states = kind, how, len(state)
    ctx.save_for_backward(output[3], x, *state, *weights)


def _backward(ctx, *gradients):
    number, x, *others = ctx.saved_tensors
    state, weights = others[: ctx.states], others[ctx.states :]
    made = ops.recurrent_backward(
        list(gradients[:3]), number, ctx.kind, x, state, weights, *ctx.how
    )
    of_state, of_weights = made[1 : 1 + ctx.states], made[1 + ctx.states :]
    return None, made[0], of_state, of_weights, *(None for _ in ctx.how)


_library.impl("recurrent", run, "CompositeExplicitAutograd")
_library.impl("recurrent_backward", run_backward, "CompositeExplicitAutograd")
torch.library.register_fake("torchweld::recurrent", _fake, lib=_library)
torch.library.register_fake("torchweld::recurrent_backward", _fake_backward, lib=_library)
torch.library.register_autograd(
    "torchweld::recurrent", _backward, setup_context=_keep, lib=_library
)
CALLS = {"torchweld.recurrent.default": run, "torchweld.recurrent_backward.default": run_backward}
