"""Cross-entropy taken apart, so that a backward may keep two numbers of each row and take the last
steps again.

The log probabilities of every class are larger than anything else that a language model saves. In
one piece each, these operations would need them in memory; in steps, the partitioner saves
the logits that are there anyway.

So are the gradients of the soft margin loss, which torch takes apart less exactly, and of the
smooth L1 loss, which loses NaN there. The multi-label margin loss is said in other parts than
torch's, which are wrong.

A 16-bit result is rounded once, after steps in float32, as in one piece.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import CheckpointPolicy

from torchweld.capture import linear
from torchweld.capture.scores import call

aten = torch.ops.aten
_WIDE = (torch.float32, torch.float64)
_MEAN, _SUM = 1, 2  # ATen's numbers for `reduction`
_REDUCTIONS = {"none": 0, "mean": _MEAN, "sum": _SUM}


def log_softmax(x: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    """(x - max) - log(sum(exp(x - max)))"""
    dtype = torch.float32 if half_to_float else x.dtype
    x = _wide(x)
    if x.dtype not in _WIDE or x.dim() == 0 or x.shape[dim] == 0:
        return NotImplemented
    shifted = x - x.amax(dim, keepdim=True)
    return (shifted - shifted.exp().sum(dim, keepdim=True).log()).contiguous().to(dtype)


def log_softmax_backward(
    grad: torch.Tensor, output: torch.Tensor, dim: int, input_dtype: torch.dtype
) -> torch.Tensor:
    """grad - softmax * sum(grad)"""
    grad, output = _wide(grad), _wide(output)
    if output.dtype not in _WIDE or output.dim() == 0:
        return NotImplemented
    return (grad - output.exp() * grad.sum(dim, keepdim=True)).to(input_dtype)


def nll_loss_backward(grad, x, target, weight, reduction, ignore, total_weight):
    """-weight[label] * grad at the label's class, divided by the sum of weights for a mean; 0
    elsewhere. x [N, C, ...], target [N, ...]."""
    dtype, grad, total_weight = x.dtype, _wide(grad), _wide(total_weight)
    if x.dim() < 2 or grad.dtype not in _WIDE:
        return NotImplemented
    along = [1, -1] + [1] * (x.dim() - 2)
    classes = torch.arange(x.shape[1], device=x.device).view(along)
    label = target.unsqueeze(1)
    scale = grad / total_weight if reduction == _MEAN else grad
    scale = -(scale.unsqueeze(1) if scale.dim() else scale)
    if weight is not None:
        scale = scale * _wide(weight).view(along)
    return torch.where((label == classes) & (label != ignore), scale, 0.0).to(dtype)


def _wide(x: torch.Tensor) -> torch.Tensor:
    """As kernels compute with it."""
    return x.to(torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x


def soft_margin_loss_backward(grad, x, target, reduction):
    """-target * sigmoid(-target * x) * grad, divided by the number of elements for a mean. Torch's
    own takes 1 from a sigmoid near 1: nothing is left for x of 20."""
    if x.dtype not in _WIDE:
        return NotImplemented
    scale = grad / x.numel() if reduction == _MEAN else grad
    return -target * torch.sigmoid(-target * x) * scale


def smooth_l1_loss_backward(grad, x, target, reduction, beta):
    """grad times the difference, between -1 and 1 in steps of beta, divided by the number of
    elements for a mean. Torch's own multiplies by a sign, which is 0 of NaN."""
    dtype, grad, x, target = x.dtype, _wide(grad), _wide(x), _wide(target)
    if x.dtype not in _WIDE or beta == 0:
        return NotImplemented
    scale, apart = grad / x.numel() if reduction == _MEAN else grad, x - target
    near = torch.where(apart >= beta, scale, scale * apart / beta)
    return torch.where(apart <= -beta, -scale, near).to(dtype)


def say_margins(gm: torch.fx.GraphModule) -> None:
    """Before autograd: torch's parts of the multi-label margin loss (2.13) count class 0 as a label
    once for each place behind a row's last label."""
    found = [node for node in gm.graph.nodes if node.target in _LABEL_MARGINS]
    for node in found:
        node.target = _LABEL_MARGINS[node.target]
    if found:
        gm.recompile()


def _label_margins_by_name(input, target, size_average=None, reduce=None, reduction="mean"):
    if size_average is not None or reduce is not None:  # the names of old
        reduction = "none" if reduce is False else "sum" if size_average is False else "mean"
    return _label_margins(input, target, _REDUCTIONS[reduction])


def _label_margins(x: torch.Tensor, target: torch.Tensor, reduction: int = _MEAN) -> torch.Tensor:
    """sum over labels l and other classes c of max(0, 1 - x[l] + x[c]), by the number of classes.
    x, target [rows, classes] or [classes]; a row's labels end at its first -1."""
    if target.shape != x.shape or x.dim() not in (1, 2) or not x.is_floating_point():
        return aten.multilabel_margin_loss(x, target, reduction)  # raises as it does in eager
    wide, count = _wide(x), x.shape[-1]
    places = torch.arange(count, device=x.device)
    end = torch.where(target == -1, places, count).amin(-1, keepdim=True)
    counted = places < end
    own = wide.gather(-1, torch.where(counted, target, 0))
    is_label = (torch.where(counted, target, -1).unsqueeze(-1) == places).any(-2)
    hinges = F.relu(1 - own.unsqueeze(-1) + wide.unsqueeze(-2))  # [rows, labels, classes]
    used = counted.unsqueeze(-1) & ~is_label.unsqueeze(-2)
    losses = torch.where(used, hinges, 0).sum((-1, -2)) / count
    whole = {_MEAN: losses.mean, _SUM: losses.sum}.get(reduction)
    return (losses if whole is None else whole()).to(x.dtype)


def recompute_log_probabilities(joint: torch.fx.GraphModule) -> None:
    """Tags what `log_softmax` was taken apart to, so that the partitioner saves the logits and two
    numbers a row. Results that are returned are in memory anyway."""
    for log in joint.graph.find_nodes(op="call_function", target=aten.log.default):
        for result in _normalised(log):
            if not any(user.op == "output" for user in result.users):
                narrow = [u for u in result.users if u.target is aten._to_copy.default]
                if any(user.op == "output" for cast in narrow for user in cast.users):
                    continue
                for node in (result, result.args[0], *narrow):
                    node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE


def _normalised(log: torch.fx.Node) -> list[torch.fx.Node]:
    """Each y = shifted - log(sum(exp(shifted))) with shifted = x - amax(x)."""
    total = log.args[0]
    exp = total.args[0] if total.target is aten.sum.dim_IntList else None
    shifted = exp.args[0] if exp is not None and exp.target is aten.exp.default else None
    if shifted is None or shifted.target is not aten.sub.Tensor:
        return []
    if getattr(shifted.args[1], "target", None) is not aten.amax.default:
        return []
    return [y for y in log.users if y.target is aten.sub.Tensor and y.args == (shifted, log)]


def add_up_hits(joint: torch.fx.GraphModule) -> None:
    """sum(where(label == classes & counted, scale, 0), classes) -> where(counted, scale, 0): a
    gradient of the loss is not zero at one class of each row."""
    for total in joint.graph.find_nodes(op="call_function", target=aten.sum.dim_IntList):
        chosen = total.args[0]
        if chosen.target is not aten.where.self or total.args[1:] != ([1], True):
            continue
        hit, scale, zero = chosen.args
        parts = hit.args if hit.target is aten.bitwise_and.Tensor else ()
        if [p.target for p in parts] != [aten.eq.Tensor, aten.ne.Scalar] or not _is_hit(parts[0]):
            continue
        if _classes_of(scale) == _classes_of(zero) == 1:
            total.target, total.args = aten.where.self, (parts[1], scale, zero)


def picked_by_comparison(joint: torch.fx.GraphModule) -> None:
    """scatter_add(zeros, label, g) -> where(label == classes, g, 0): so the gradient of a gather of
    one element a row is made row by row. The gather has checked the labels. Sums over the classes
    are sums of g."""
    for scatter in joint.graph.find_nodes(op="call_function", target=aten.scatter_add.default):
        zeros, dim, index, source = scatter.args
        shape = zeros.meta["val"].shape
        picks = [u for u in index.users if u.target is aten.gather.default and u.args[1] == dim]
        if not linear.is_zero(zeros) or not picks or not _is_one_of_each(index, source, shape, dim):
            continue
        with joint.graph.inserting_before(scatter):
            hit = _hits(joint.graph, index, shape, dim)
            zero = _constant_zero(joint.graph, scatter.meta["val"])
        scatter.target, scatter.args = aten.where.self, (hit, source, zero)
        _add_up_picked(scatter, source, dim)


def _add_up_picked(hits: torch.fx.Node, picked: torch.fx.Node, dim: int) -> None:
    """Sums of `hits` over the classes, as they are or cast, add up `picked`, which has one element
    for each row."""
    for user in list(hits.users):
        if user.target is aten.sum.dim_IntList and _is_over(user, dim):
            user.replace_input_with(hits, picked)
        elif user.target is aten._to_copy.default:
            with hits.graph.inserting_before(user):
                cast = call(hits.graph, user.target, (picked,), user, **user.kwargs)
            _add_up_picked(user, cast, dim)


def _is_over(total: torch.fx.Node, dim: int) -> bool:
    """Whether `dim` is among the dimensions of a sum; all of them are where none is named."""
    rank = total.args[0].meta["val"].dim()
    return not total.args[1] or dim % rank in {d % rank for d in total.args[1]}


def _is_one_of_each(index: torch.fx.Node, source: torch.fx.Node, shape, dim: int) -> bool:
    """Whether one element is picked in each row along `dim`, and all rows are there."""
    if not len(shape):
        return False
    sizes = [tuple(n.meta["val"].shape) for n in (index, source)]
    one = (*shape[:dim], 1, *shape[dim % len(shape) + 1 :])
    return sizes == [one, one]


def _hits(graph: torch.fx.Graph, index: torch.fx.Node, shape, dim: int) -> torch.fx.Node:
    """Whether a class is the label, at each class."""
    value = index.meta["val"]
    along = [1] * len(shape)
    along[dim] = shape[dim]
    options = {"device": value.device, "pin_memory": False}
    classes = graph.call_function(aten.arange.default, (shape[dim],), options)
    classes.meta["val"] = value.new_empty((shape[dim],), dtype=torch.int64)
    spread = graph.call_function(aten.view.default, (classes, along))
    spread.meta["val"] = value.new_empty(along, dtype=torch.int64)
    hit = graph.call_function(aten.eq.Tensor, (index, spread))
    hit.meta["val"] = value.new_empty(tuple(shape), dtype=torch.bool)
    return hit


def _constant_zero(graph: torch.fx.Graph, like: torch.Tensor) -> torch.fx.Node:
    options = {"dtype": like.dtype, "device": like.device, "pin_memory": False}
    zero = graph.call_function(aten.full.default, ([], 0.0), options)
    zero.meta["val"] = like.new_empty(())
    return zero


def _is_hit(equal: torch.fx.Node) -> bool:
    """label [N, 1, ...] against all classes, as `nll_loss_backward` compares them."""
    label, classes = equal.args
    return _classes_of(label) == 1 and "arange" in str(_unviewed(classes).target)


def _unviewed(node: torch.fx.Node) -> torch.fx.Node:
    while node.target is aten.view.default:
        node = node.args[0]
    return node


def _classes_of(node: torch.fx.Node) -> int:
    value = node.meta["val"]
    return value.shape[1] if value.dim() > 1 else value.numel()


def norm(x: torch.Tensor, order, dims, keepdim: bool = False):
    """Of order 2, in steps that the partitioner knows: what such a distance is made of counts then
    as computed within its kernel, and the inputs are saved in its place."""
    dtype, wide = x.dtype, _wide(x)
    if order not in (None, 2) or wide.dtype not in _WIDE or not dims:
        return NotImplemented
    return (wide * wide).sum(dims, keepdim).sqrt().to(dtype)


_LABEL_MARGINS = {
    F.multilabel_margin_loss: _label_margins_by_name,
    aten.multilabel_margin_loss: _label_margins,
    aten.multilabel_margin_loss.default: _label_margins,
}

DECOMPOSITIONS = {
    aten.norm.ScalarOpt_dim: norm,
    aten._log_softmax.default: log_softmax,
    aten._log_softmax_backward_data.default: log_softmax_backward,
    aten.nll_loss_backward.default: nll_loss_backward,
    aten.nll_loss2d_backward.default: nll_loss_backward,
    aten.soft_margin_loss_backward.default: soft_margin_loss_backward,
    aten.smooth_l1_loss_backward.default: smooth_l1_loss_backward,
}
