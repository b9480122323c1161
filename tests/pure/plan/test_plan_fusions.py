"""What fuses, and into how many kernels."""

from __future__ import annotations

from plan_programs import kernels, planned, program


def test_pointwise_chain_is_one_kernel():
    graph = program(
        "x f32 64 128; t f32 64 128; y f32 64 128", "x",
        """
        comp exp [i:64, j:128] {
          %0 = load x[i, j] : f32
          %1 = exp %0 : f32
          store t[i, j] %1
        }
        comp neg [i:64, j:128] {
          %0 = load t[i, j] : f32
          %1 = neg %0 : f32
          store y[i, j] %1
        }
        """, "y",
    )  # fmt: skip
    result = planned(graph)
    assert len(kernels(result)) == 1
    assert "t" not in result.graph.buffers
    assert len(result.fusions) == 1 and result.fusions[0].launches_before == 2


ADD_LAYER_NORM = """
    comp add [i:16, j:96] {
      from "aten.add.Tensor" "layer.0" "model.py:1"
      %0 = load x[i, j] : bf16
      %1 = cast %0 : f32
      %2 = load r[i, j] : bf16
      %3 = cast %2 : f32
      %4 = add %1 %3 : f32
      %5 = cast %4 : bf16
      store h[i, j] %5
    }
    comp norm [i:16, j:96] {
      from "aten.native_layer_norm.default" "layer.0" "model.py:2"
      %0 = load h[i, j] : bf16
      %1 = cast %0 : f32
      %2 = reduce.welford[j] %1 : f32
      %3 = pick.0 %2 : f32
      %4 = pick.1 %2 : f32
      %5 = const 96.0 : f32
      %6 = div %4 %5 : f32
      %7 = const 1e-5 : f32
      %8 = add %6 %7 : f32
      %9 = rsqrt %8 : f32
      %10 = sub %1 %3 : f32
      %11 = mul %10 %9 : f32
      %12 = load w[j] : f32
      %13 = mul %11 %12 : f32
      %14 = cast %13 : bf16
      store y[i, j] %14
      store rstd[i] %9
    }
"""
NORM_BUFFERS = "x bf16 16 96; r bf16 16 96; w f32 96; h bf16 16 96; y bf16 16 96; rstd f32 16"


def test_add_and_layer_norm_are_one_kernel_and_both_results_are_kept():
    graph = program(NORM_BUFFERS, "x r w", ADD_LAYER_NORM, "y h rstd")
    (kernel,) = kernels(planned(graph))
    assert kernel.name == "fused_add_layer_norm"
    assert set(kernel.writes) == {"h", "y", "rstd"}


def test_a_rounding_that_nobody_sees_goes_and_a_stored_one_stays():
    def narrowings(graph, **options):
        (kernel,) = kernels(planned(graph, **options))
        return sum(1 for i in kernel.body if getattr(i, "dtype", None).name == "bf16"
                   and type(i).__name__ == "Cast")  # fmt: skip

    unseen = program(NORM_BUFFERS, "x r w", ADD_LAYER_NORM, "y")
    stored = program(NORM_BUFFERS, "x r w", ADD_LAYER_NORM, "y h")
    assert narrowings(unseen) == 1
    assert narrowings(stored) == 2
    assert narrowings(unseen, numerics="eager") == 2


_SWAPPED = "x f32 512 1024; z f32 512 1024; w f32 512 1024; y f32 512 1024; v f32 512 1024"


def _differences(first: str, second: str) -> str:
    """y = x - z, and v = the difference of two others."""
    def comp(name: str, left: str, right: str, to: str) -> str:
        return f"""
        comp {name} [i:512, j:1024] {{
          %0 = load {left}[i, j] : f32
          %1 = load {right}[i, j] : f32
          %2 = sub %0 %1 : f32
          store {to}[i, j] %2
        }}"""
    return comp("one", "x", "z", "y") + comp("other", first, second, "v")


def test_equal_kernels_that_read_the_same_tensors_read_them_once():
    graph = program(_SWAPPED, "x z w", _differences("z", "x"), "y v")
    (kernel,) = kernels(planned(graph))
    assert sorted(kernel.reads) == ["x", "z"] and len(kernel.writes) == 2


def test_equal_kernels_on_tensors_of_their_own_keep_their_loops():
    graph = program(_SWAPPED.replace("y f32", "u f32 512 1024; y f32"), "x z w u",
                    _differences("w", "u"), "y v")  # fmt: skip
    assert len(kernels(planned(graph))) == 2
