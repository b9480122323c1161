"""Numbers that are made of numbers, on the CPU, are known at the capture."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from lowered import capture, check, comps, lowered

from torchweld.capture.lower import lower
from torchweld.core.errors import NotLowered
from torchweld.core.options import Options
from torchweld.pipeline import _Job, compile_graph
from torchweld.targets.find import named_target
from torchweld.templates.generate import kernels_of

X = torch.randn(3, 5)


def scaled(x):
    """As the attention of DeBERTa is."""
    scale = torch.sqrt(torch.tensor(7, dtype=torch.float) * 3)
    return x / scale.to(x.dtype), scale


def test_a_scale_made_of_constants_is_a_number():
    result = lowered(lambda x: scaled(x)[0], X.bfloat16())
    (comp,) = comps(result)
    assert len(comp.reads) == 1 and not result.constants
    check(scaled, X)


def test_what_is_random_or_an_input_is_no_number():
    noise = lowered(lambda x: x * torch.bernoulli(torch.tensor(0.5)), X)
    assert len(noise.graph.nodes) > 1
    read = lowered(lambda x, s: x * s.sqrt(), X, torch.tensor(2.0))
    assert len(set().union(*(comp.reads for comp in comps(read)))) > 1


@pytest.mark.parametrize("index", [[-2], [0, 2], [3, 1], [-4, -3, -2], [0, 1, 2, 3, 4]], ids=str)
def test_integers_at_equal_distances_are_a_slice(index):
    """Lists that index are constants on the CPU, whatever they index."""
    columns = lowered(lambda x: x[:, index] * 2, X)
    assert not columns.constants and len(columns.graph.nodes) == 1
    check(lambda x: (x[:, index] * 2, x.T[index[:1]], torch.tensor(index)), X)


def test_what_is_no_slice_is_gathered():
    for index in ([1, 1], [-1, 0], [-1, 0, 1]):
        assert not lowered(lambda x, i=index: x[:, i], X).constants
        check(lambda x, i=index: (x[:, i], x[[0, 2], [1, 3]]), X)


def test_other_integers_stay_in_memory():
    assert lowered(lambda x: x[:, [0, 3, 1]], X).constants
    check(lambda x: x[:, [0, 3, 1]], X)


def moved(captured, *devices):
    """`captured` with all but numbers on a GPU, the nth tensor on the nth of `devices`."""
    values = [n.meta.get("val") for n in captured.module.graph.nodes]
    places = iter(devices)
    for node, value in zip(captured.module.graph.nodes, values):
        if isinstance(value, torch.Tensor) and value.dim():
            place = next(places, (devices or ("cuda",))[-1])
            with value.fake_mode:
                node.meta["val"] = torch.empty_like(value, device=place)
    return captured


def test_a_kernel_of_a_gpu_takes_such_a_number():
    """What is left on the CPU, the scale itself, is none of the GPU's kernels."""
    graph = lower(moved(capture(scaled, X))).graph
    assert [type(n).__name__ for n in graph.nodes] == ["Comp", "Comp"]
    made = kernels_of(graph, named_target("H100"))
    assert [graph.buffers[b].device for k in made for _, (_, b) in k.uses] == ["cuda:0"]


def test_graphs_of_several_gpus_and_of_no_memory_are_refused():
    for devices, why in ((("cuda:0", "cuda:1"), "several devices"), (("meta", "meta"), "on meta")):
        with pytest.raises(NotLowered, match=why):
            compile_graph(moved(capture(scaled, X), *devices), Options())


def test_a_graph_whose_gpu_tensors_are_not_used_is_the_cpus():
    """A kernel for the GPU would write to the CPU's memory."""

    def made(x):
        return torch.arange(8) * 0.5

    captured = moved(capture(made, X), "cuda:0", "cpu")
    assert _Job.of(captured, Options()).device.type == "cpu"


def test_a_gpus_kernel_for_the_cpus_memory_is_refused():
    captured = capture(lambda x: torch.arange(8) * 0.5, X)
    job = replace(_Job.of(captured, Options()), devices=(torch.device("cuda:0"),))
    with pytest.raises(NotLowered, match="on the CPU"):
        job.lowered()
