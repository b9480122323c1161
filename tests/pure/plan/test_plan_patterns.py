"""The seams of real models, each the number of kernels that it should be."""

from __future__ import annotations

from itertools import pairwise

from plan_programs import kernels, planned, program

from torchweld.ir.frame import frame_of


def test_scaled_masked_softmax_is_one_kernel_and_the_mask_is_recomputed():
    graph = program(
        "x bf16 2 4 16 32; m f32 16 32; t bf16 2 4 16 32; y bf16 2 4 16 32", "x",
        """
        comp mask [i:16, j:32] {
          %0 = index j-i : i64
          %1 = const 8 : i64
          %2 = gt %0 %1 : b1
          %3 = const -inf : f32
          %4 = const 0.0 : f32
          %5 = where %2 %3 %4 : f32
          store m[i, j] %5
        }
        comp scale [b:2, h:4, i:16, j:32] {
          %0 = load x[b, h, i, j] : bf16
          %1 = cast %0 : f32
          %2 = const 0.125 : f32
          %3 = mul %1 %2 : f32
          %4 = load m[i, j] : f32
          %5 = add %3 %4 : f32
          %6 = cast %5 : bf16
          store t[b, h, i, j] %6
        }
        comp softmax [b:2, h:4, i:16, j:32] {
          %0 = load t[b, h, i, j] : bf16
          %1 = cast %0 : f32
          %2 = reduce.max[j] %1 : f32
          %3 = sub %1 %2 : f32
          %4 = exp %3 : f32
          %5 = reduce.sum[j] %4 : f32
          %6 = div %4 %5 : f32
          %7 = cast %6 : bf16
          store y[b, h, i, j] %7
        }
        """, "y",
    )  # fmt: skip
    (kernel,) = kernels(planned(graph))
    assert kernel.reads == ("x",)


def test_log_softmax_and_picked_targets_are_one_kernel():
    """The row's maximum and sum come from all columns, the value from one that is looked up."""
    graph = program(
        "x f32 16 30; at i64 16; t f32 16 30; y f32 16", "x at",
        """
        comp log_softmax [i:16, j:30] {
          %0 = load x[i, j] : f32
          %1 = reduce.logsumexp[j] %0 : f32
          %2 = pick.0 %1 : f32
          %3 = pick.1 %1 : f32
          %4 = log %3 : f32
          %5 = add %2 %4 : f32
          %6 = sub %0 %5 : f32
          store t[i, j] %6
        }
        comp nll [i:16] {
          %0 = load at[i] : i64
          %1 = load t[i, %0] : f32
          %2 = neg %1 : f32
          store y[i] %2
        }
        """, "y",
    )  # fmt: skip
    result = planned(graph)
    (kernel,) = kernels(result)
    assert "t" not in result.graph.buffers
    assert frame_of(kernel).columns == ("j",)


def test_the_log_probabilities_of_a_mean_loss_stay_out_of_memory():
    """As the joint graph of a training step has it: maxima and logarithms are saved, and each row's
    loss is its own node before the mean."""
    graph = program(
        "x bf16 4096 128; at i64 4096; w f32 4096 128; m f32 4096 1; d f32 4096 128;"
        "e f32 4096 128; s f32 4096 1; t f32 4096 128; l f32 4096; y f32", "x at",
        """
        comp widen [i:4096, j:128] {
          %0 = load x[i, j] : bf16
          %1 = cast %0 : f32
          store w[i, j] %1
        }
        comp amax [i:4096, j:128] {
          %0 = load w[i, j] : f32
          %1 = reduce.max[j] %0 : f32
          store m[i, 0] %1
        }
        comp shift [i:4096, j:128] {
          %0 = load w[i, j] : f32
          %1 = load m[i, 0] : f32
          %2 = sub %0 %1 : f32
          store d[i, j] %2
        }
        comp sum [i:4096, j:128] {
          %0 = load d[i, j] : f32
          %1 = exp %0 : f32
          %2 = reduce.sum[j] %1 : f32
          %3 = log %2 : f32
          store s[i, 0] %3
        }
        comp log_softmax [i:4096, j:128] {
          %0 = load d[i, j] : f32
          %1 = load s[i, 0] : f32
          %2 = sub %0 %1 : f32
          store t[i, j] %2
        }
        comp each [i:4096] {
          %0 = load at[i] : i64
          %1 = load t[i, %0] : f32
          %2 = neg %1 : f32
          store l[i] %2
        }
        comp mean [i:4096] {
          %0 = load l[i] : f32
          %1 = reduce.sum[i] %0 : f32
          store y[] %1
        }
        """, "m s y",
    )  # fmt: skip
    rows, loss = kernels(planned(graph))
    assert rows.reads == ("x",) and set(rows.writes) == {"m", "s"}
    assert loss.writes == ("y",) and "t" not in loss.reads


def test_a_norm_and_a_rotation_of_its_halves_are_one_kernel():
    graph = program(
        "x f32 16 32; t f32 16 32; y f32 16 32", "x",
        """
        comp norm [i:16, j:32] {
          %0 = load x[i, j] : f32
          %1 = mul %0 %0 : f32
          %2 = reduce.sum[j] %1 : f32
          %3 = rsqrt %2 : f32
          %4 = mul %0 %3 : f32
          store t[i, j] %4
        }
        comp rotate [i:16, j:32] {
          %0 = index j : i64
          %1 = const 16 : i64
          %2 = lt %0 %1 : b1
          %3 = load t[i, j+16] if %2 else 0 : f32
          %4 = neg %3 : f32
          %5 = ge %0 %1 : b1
          %6 = load t[i, j+-16] if %5 else 0 : f32
          %7 = where %2 %4 %6 : f32
          %8 = load t[i, j] : f32
          %9 = add %7 %8 : f32
          store y[i, j] %9
        }
        """, "y",
    )  # fmt: skip
    (kernel,) = kernels(planned(graph))
    assert sum(type(i).__name__ == "Reduce" for i in kernel.body) == 1


def test_norm_backward_is_one_kernel_with_sums_over_rows():
    graph = program(
        "g f32 64 32; x f32 64 32; r f32 64; w f32 32; dx f32 64 32; dw f32 32; db f32 32",
        "g x r w",
        """
        comp dx [i:64, j:32] {
          %0 = load g[i, j] : f32
          %1 = load w[j] : f32
          %2 = mul %0 %1 : f32
          %3 = load x[i, j] : f32
          %4 = load r[i] : f32
          %5 = mul %3 %4 : f32
          %6 = mul %2 %5 : f32
          %7 = reduce.sum[j] %6 : f32
          %8 = mul %5 %7 : f32
          %9 = sub %2 %8 : f32
          %10 = mul %9 %4 : f32
          store dx[i, j] %10
        }
        comp dw_db [i:64, j:32] {
          %0 = load g[i, j] : f32
          %1 = load x[i, j] : f32
          %2 = load r[i] : f32
          %3 = mul %1 %2 : f32
          %4 = mul %0 %3 : f32
          %5 = reduce.sum[i] %4 : f32
          store dw[j] %5
          %6 = reduce.sum[i] %0 : f32
          store db[j] %6
        }
        """.replace("          store dw[j] %5\n          %6 = reduce.sum[i] %0 : f32\n",
                    "          %6 = reduce.sum[i] %0 : f32\n          store dw[j] %5\n"),
        "dx dw db",
    )  # fmt: skip
    (kernel,) = kernels(planned(graph))
    frame = frame_of(kernel)
    assert frame.columns == ("j",) and len(frame.column_reductions) == 2


def test_heads_are_split_inside_the_kernel():
    """What is stored as [rows, heads * size] and read per head needs a split axis, no copy."""
    graph = program(
        "x f32 8 64; t f32 8 64; y f32 4 8 16", "x",
        """
        comp bias [i:8, n:64] {
          %0 = load x[i, n] : f32
          %1 = exp %0 : f32
          store t[i, n] %1
        }
        comp heads [h:4, i:8, d:16] {
          %0 = load t[i, 16*h+d] : f32
          %1 = neg %0 : f32
          store y[h, i, d] %1
        }
        """, "y",
    )  # fmt: skip
    assert len(kernels(planned(graph))) == 1


def test_siblings_become_one_kernel_with_two_results():
    graph = program(
        "x f32 512 128; y f32 512 128; z f32 512 128", "x",
        """
        comp a [i:512, j:128] {
          %0 = load x[i, j] : f32
          %1 = exp %0 : f32
          store y[i, j] %1
        }
        comp b [r:512, c:128] {
          %0 = load x[r, c] : f32
          %1 = neg %0 : f32
          store z[r, c] %1
        }
        """, "y z",
    )  # fmt: skip
    (kernel,) = kernels(planned(graph))
    assert set(kernel.writes) == {"y", "z"} and kernel.reads == ("x",)


def test_short_kernels_that_share_nothing_keep_company():
    count = 12
    graph = program(
        "; ".join(f"x{k} i64; y{k} i64" for k in range(count)),
        " ".join(f"x{k}" for k in range(count)),
        "\n".join(f"""
        comp add{k} [] {{
          %0 = load x{k}[] : i64
          %1 = const 1 : i64
          %2 = add %0 %1 : i64
          store y{k}[] %2
        }}""" for k in range(count)),
        " ".join(f"y{k}" for k in range(count)),
    )  # fmt: skip
    assert len(kernels(planned(graph))) == 1


def test_equal_layers_are_planned_alike():
    layer = """
        comp a{k} [i:64, j:32] {{
          %0 = load t{p}[i, j] : f32
          %1 = exp %0 : f32
          store u{k}[i, j] %1
        }}
        comp b{k} [i:64, j:32] {{
          %0 = load u{k}[i, j] : f32
          %1 = neg %0 : f32
          store v{k}[i, j] %1
        }}
        extern call{k} t{k} = "aten.relu.default"(view(v{k}, [64, 32], [32, 1], 0)) {{
        }}
    """
    count = 6
    buffers = ["t0 f32 64 32"]
    buffers += [f"{n}{k} f32 64 32" for k in range(1, count + 1) for n in "uvt"]
    layers = "\n".join(layer.format(k=k, p=k - 1) for k in range(1, count + 1))
    result = planned(program("; ".join(buffers), "t0", layers, f"t{count}"))
    assert len(kernels(result)) == count
    assert len({k.body[1:] for k in kernels(result)}) == 1
    assert len({f.saved_us for f in result.fusions}) == 1


def test_a_sum_that_is_needed_again_behind_library_calls_is_stored():
    """Computed again at the end, its two terms would stay in memory all the way."""
    names = ["h", "t", *(f"v{k}" for k in range(5))]
    calls = [
        f"""extern call{k} {b} = "aten.relu.default"(view({a}, [1024, 1024], [1024, 1], 0)) {{
        }}"""
        for k, (a, b) in enumerate(pairwise(names[1:]))
    ]
    graph = program(
        "; ".join(f"{n} f32 1024 1024" for n in ("b", "b2", *names, "y"))
        + "; a bf16 1024 1024; a2 bf16 1024 1024", "a b",
        """
        extern left a2 = "aten.relu.default"(view(a, [1024, 1024], [1024, 1], 0)) {
        }
        extern right b2 = "aten.relu.default"(view(b, [1024, 1024], [1024, 1], 0)) {
        }
        comp add [i:1024, j:1024] {
          %0 = load a2[i, j] : bf16
          %1 = cast %0 : f32
          %2 = load b2[i, j] : f32
          %3 = add %1 %2 : f32
          store h[i, j] %3
        }
        comp exp [i:1024, j:1024] {
          %0 = load h[i, j] : f32
          %1 = exp %0 : f32
          store t[i, j] %1
        }
        """ + "\n".join(calls) + """
        comp end [i:1024, j:1024] {
          %0 = load v4[i, j] : f32
          %1 = load h[i, j] : f32
          %2 = add %0 %1 : f32
          store y[i, j] %2
        }
        """, "y",
    )  # fmt: skip
    result = planned(graph)
    assert "h" in result.graph.buffers and "h" in kernels(result)[-1].reads
