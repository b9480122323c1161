"""What a call of torchweld's programs should take, from their plans and the device's rates alone:
none of the model's own times goes into it."""
from __future__ import annotations

from collections.abc import Iterable

from torchweld.core.machine import device_name
from torchweld.observe.predict.calibrate import calibrated, roofline
from torchweld.observe.predict.limits import predict_us
from torchweld.observe.predict.work import node_work
from torchweld.observe.record.profile import Roofline

_ADAMW_PASSES = 7  # over each parameter's bytes: it and two moments read and written, its gradient


def predicted_ms(records: Iterable, device: str, optimised=None) -> float:
    """`records`: the pipeline's, of one model. `optimised`: the module whose parameters a step of
    AdamW follows. Measures the device once."""
    line = roofline(device, device_name(device))
    table = calibrated(line)
    nodes = [(node, record.graph) for record in records for node in record.graph.nodes]
    kernels_us = sum(predict_us(node_work(node, graph), line, table) for node, graph in nodes)
    return (kernels_us + (_adamw_us(optimised, line) if optimised else 0.0)) * 1e-3


def _adamw_us(model, line: Roofline) -> float:
    parameters = sum(p.nbytes for p in model.parameters())
    return _ADAMW_PASSES * parameters / line.memory_bytes_per_s * 1e6
