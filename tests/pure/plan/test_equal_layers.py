"""Equal layers are worked on once, and plans are those that no memory of earlier ones gives."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from torchweld.capture.captured import Captured
from torchweld.core.options import Options
from torchweld.ir.memo import CannotMove, Found, Memo
from torchweld.ir.parser import parse_comp, parse_graph
from torchweld.ir.printer import text
from torchweld.pipeline import plan_graph
from torchweld.plan import evaluate
from torchweld.plan.room import has_room, room_of
from torchweld.plan.scores import offer
from torchweld.targets.find import named_target, target_of
from torchweld.templates import registry

WIDTH, HEADS = 32, 2


def mlp(x, w):
    return F.gelu(F.layer_norm(F.linear(x, w, w[0]), (WIDTH,), w[0], w[1]))


def attention(x, w):
    """By hand, so that it is written as a nest."""
    q, k, v = (F.linear(x, m).view(2, -1, HEADS, 16).transpose(1, 2) for m in (w, w.t(), w))
    scores = (q @ k.transpose(-1, -2) * 0.25).softmax(-1)
    joined = (scores @ v).transpose(1, 2).reshape(x.shape)
    return F.layer_norm(x + F.linear(joined, w), (WIDTH,))


def gated(x, w):
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w[0]
    return x + F.linear(F.silu(F.linear(y, w)) * F.linear(y, w.t()), w)


def block(x, w):
    kernel = w.view(WIDTH, WIDTH, 1, 1).expand(WIDTH, WIDTH, 3, 3).contiguous()
    y = F.batch_norm(F.conv2d(x, kernel, padding=1), w[0], w[1], w[2], w[3])
    return torch.relu(x + y)


def outputs(x, w, count):
    """Equal but for a constant; two of them are the same, and one is as often in another place."""
    numbers = (0.5, 1.0, 1.0, -0.0, 0.0, *(k + 2.0 for k in range(count)))
    return [(x * c + w[0]).sin() + c for c in numbers[:count]]


def steps(x, w, count):
    """Of a recurrence over rows of two matrices, which also looks back a row, and elsewhere."""
    y, h, made = x.flatten(0, 1) @ w, x[:, 0] * 0.0, []
    places = torch.arange(WIDTH).flip(0)
    for t in range(1, count):
        gate = torch.sigmoid(x[:, t] + y[t] * y[t + 7])
        h = gate * h + x[:, t - 1] - x[:, t, places] * w[t - 1, t - 1]
        made.append(torch.maximum(h, y[t + 3]))
    return [torch.stack(made, 1), h]


def padded_windows(x, w, count):
    """Rows around which others are read, up to the last of all, and one beyond it."""
    parts = [torch.sin(x[:, k : k + 3] * w[0]) for k in range(1, x.shape[1] - 2)]
    return [F.pad(part, (0, 0, 1, 1)).exp().sum(1) for part in parts[-count:]]


LAYERS = {"mlp": mlp, "attention": attention, "gated": gated, "block": block}
PROGRAMS = {"outputs": outputs, "steps": steps, "padded windows": padded_windows}


def captured(name: str, count: int) -> Captured:
    x = torch.randn(2, 64, WIDTH) if name != "block" else torch.randn(2, WIDTH, 8, 8)
    weights = [torch.randn(WIDTH, WIDTH) for _ in range(count)]

    def run(flat):
        x, *weights = flat
        if name in PROGRAMS:
            return PROGRAMS[name](x, weights[0], count)
        for w in weights:
            x = LAYERS[name](x, w)
        return [x]

    module = make_fx(functionalize(run), tracing_mode="fake", _allow_non_fake_inputs=True)(
        [x, *weights]
    )
    return Captured(module, "test", "inference")


def planned(graph: Captured, target: str) -> tuple[str, list]:
    device = target_of("cpu") if target == "cpu" else named_target(target)
    made = plan_graph(graph, Options(calibrate="off"), device)[1]
    kernels = [(k.template, str(k.schedule), k.uses, k.predicted_s) for k in made.kernels]
    return text(made.graph), kernels


def forgetful(self, question, comps, work, *facts):
    signed = tuple(self.signatures.of(c) for c in comps)
    return Found(work(), signed, signed)


@pytest.mark.parametrize(
    "name, target",
    [(n, "cpu") for n in (*LAYERS, *PROGRAMS)]
    + [(n, "H100") for n in ("attention", "gated", "steps", "padded windows")],
)
def test_a_plan_is_that_without_a_memory(name, target, monkeypatch):
    graph = captured(name, {"outputs": 7, "steps": 12}.get(name, 3))
    remembered = planned(graph, target)
    monkeypatch.setattr(Memo, "named", forgetful)
    assert planned(graph, target) == remembered


@pytest.fixture
def worked(monkeypatch):
    """How often a region was merged, looked at as a nest, or given a kernel."""
    counts = Counter()

    def count(module, name):
        work = getattr(module, name)

        def counted(*args):
            counts[name] += 1
            return work(*args)

        monkeypatch.setattr(module, name, counted)

    count(evaluate, "merge")
    count(evaluate, "cost")
    count(offer, "normalised")
    count(registry, "chosen")
    return counts


@pytest.mark.parametrize("name", ["mlp", "attention", "gated"])
def test_more_layers_are_no_more_work(name, worked):
    """The first and the last differ: they read the input, and make the output."""
    planned(captured(name, 4), "cpu")
    few = Counter(worked)
    worked.clear()
    planned(captured(name, 8), "cpu")
    assert few["merge"]
    # A nest looks back over at most four products: the fourth layer is not yet like the eighth.
    assert worked.pop("normalised", 0) <= 2 * few.pop("normalised", 0)
    assert worked == few


def test_outputs_that_differ_in_a_number_are_no_more_work(worked):
    planned(captured("outputs", 10), "cpu")
    few = Counter(worked)
    worked.clear()
    planned(captured("outputs", 30), "cpu")
    assert worked["merge"] < 1.5 * few["merge"]  # larger kernels of more outputs


def test_steps_that_read_one_row_further_are_hardly_more_work(worked):
    planned(captured("steps", 17), "H100")
    few = Counter(worked)
    worked.clear()
    planned(captured("steps", 33), "H100")
    assert worked["merge"] < 1.3 * few["merge"]  # larger kernels, made by doubling


def test_company_is_looked_for_among_nodes_with_the_same_axes(monkeypatch):
    """Of nodes near by, few have them: only of these it is asked what they cost."""
    asked_of, of = Counter(), evaluate.Evaluator.cost

    def cost(self, comp):
        asked_of[comp.name] += 1
        return of(self, comp)

    monkeypatch.setattr(evaluate.Evaluator, "cost", cost)
    tensors = [torch.randn(n) for n in range(2, 42)]
    module = make_fx(lambda flat: [x.sin() for x in flat], tracing_mode="fake")(tensors)
    planned(Captured(module, "test", "inference"), "cpu")
    assert len(asked_of) == 40 and max(asked_of.values()) < 10


# -- when answers are shared --

_BUFFERS = parse_graph(
    "graph g {\n"
    + "\n".join(f"buffer {n} : f32[8] strides [1] on cpu" for n in "abcde")
    + "\nbuffer wide : f32[8] strides [2] on cpu\ninput a\noutput view(a, [8], [1], 0)\n}"
).buffers


def comp(read: str, written: str, number: float = 2.0, guard: bool = False):
    test = "%2 = lt %0 %1 : b1\n" if guard else "%2 = mul %0 %1 : f32\n"
    last = f"%3 = load {read}[i] if %2 else 2.0 : f32" if guard else "%3 = add %2 %1 : f32"
    return parse_comp(
        f"comp c [i:8] {{\n%0 = load {read}[i] : f32\n%1 = const {number} : f32\n"
        f"{test}{last}\nstore {written}[i] %3\n}}"
    )


def asked(memo: Memo, *groups, facts=()) -> int:
    """How often work was done for `groups` of Comps."""
    done = []
    for group in groups:
        memo.of("?", group, lambda: done.append(1), *facts)
    return len(done)


def test_names_do_not_matter_but_their_pattern_does():
    chain, other = (comp("a", "b"), comp("b", "c")), (comp("c", "d"), comp("d", "e"))
    apart = comp("a", "b"), comp("c", "d")
    assert asked(Memo(_BUFFERS), chain, other) == 1
    assert asked(Memo(_BUFFERS), chain, apart) == 2
    assert asked(Memo(_BUFFERS), (comp("a", "b"),), (comp("wide", "b"),)) == 2


def test_constants_matter_unless_the_question_is_about_more():
    group, other = (comp("a", "b", 2.0),), (comp("a", "b", 3.0),)
    assert asked(Memo(_BUFFERS), group, other) == 2
    assert asked(Memo(_BUFFERS, loose=True), group, other) == 1
    same = comp("a", "b", 2.0), comp("b", "c", 2.0)
    different = comp("a", "b", 2.0), comp("b", "c", 3.0)
    assert asked(Memo(_BUFFERS, loose=True), same, different) == 2
    zeros = (comp("a", "b", 0.0), comp("b", "c", 0.0)), (comp("a", "b", 0.0), comp("b", "c", -0.0))
    assert asked(Memo(_BUFFERS, loose=True), *zeros) == 2


def test_an_answer_has_the_names_and_constants_of_who_asks():
    memo = Memo(_BUFFERS, loose=True)
    first, second = comp("a", "b", 2.0), comp("d", "e", 3.0)
    memo.named("?", (first,), lambda: first)
    found = memo.named("?", (second,), lambda: None)
    assert found.here(found.answer) == second


def step(read: str, written: str, at: int, other: str = "c", further: int = 0):
    """written[i] = read[2 * i + at] * other[at + further] + read[2 * i + at - 1]"""
    return parse_comp(
        f"comp c [i:2] {{\n%0 = load {read}[2*i+{at}] : f32\n"
        f"%1 = load {other}[{at + further}] : f32\n%2 = mul %0 %1 : f32\n"
        f"%3 = load {read}[2*i+{at - 1}] : f32\n%4 = add %2 %3 : f32\n"
        f"store {written}[i] %4\n}}"
    )


def test_places_matter_unless_the_question_is_about_more():
    one, two, apart = step("a", "b", 1), step("a", "b", 2), step("a", "b", 2, further=1)
    assert asked(Memo(_BUFFERS), (one,), (two,)) == 2
    assert asked(Memo(_BUFFERS, loose=True), (one,), (two,)) == 1
    assert asked(Memo(_BUFFERS, loose=True), (one,), (apart,)) == 1  # two buffers, each moved
    same, other = step("a", "b", 1, "a"), step("a", "b", 2, "a", 1)  # one, read in two ways
    assert asked(Memo(_BUFFERS, loose=True), (same,), (other,)) == 2


def test_between_several_comps_distances_matter_and_places_of_what_they_write():
    memo = Memo(_BUFFERS, loose=True)
    alike = [(step("a", "b", t), step("a", "d", t + 1)) for t in (1, 2)]
    farther = step("a", "b", 1), step("a", "d", 3)
    assert asked(memo, *alike, farther) == 2
    written = [(step("a", "b", 1), step("b", "d", t)) for t in (1, 2)]
    assert asked(memo, *written) == 2


def test_an_answer_reads_where_the_comps_asked_about_do():
    memo, first = Memo(_BUFFERS, loose=True), step("a", "b", 1)
    memo.named("?", (first,), lambda: first)
    second = step("c", "d", 3, "e", 2)
    found = memo.named("?", (second,), lambda: None)
    assert found.here(found.answer) == second


def test_an_answer_that_computes_where_it_reads_is_not_moved():
    memo, first, second = Memo(_BUFFERS, loose=True), step("a", "b", 1), step("a", "b", 2)
    answer = parse_comp(
        "comp c [i:2] {\n%0 = index i : i64\n%1 = load a[%0] : f32\nstore b[i] %1\n}")
    memo.named("?", (first,), lambda: answer)
    with pytest.raises(CannotMove):
        memo.named("?", (second,), lambda: None).here(answer)


def test_a_comp_asked_of_again_is_known_by_the_object(monkeypatch):
    memo, one = Memo(_BUFFERS), comp("a", "b")
    assert memo.of("?", (one,), lambda: 1) == 1
    monkeypatch.setattr(Memo, "named", None)
    assert memo.of("?", (one,), lambda: 2) == 1


def test_room_ends_where_a_buffer_does():
    room = room_of(step("a", "b", 3), _BUFFERS)
    assert room == {"a": ((-2, 2),), "c": ((-3, 4),)}  # reads of a from 2 to 5, of c at 3
    assert has_room(room, {"a": (2,), "c": (-3,)}) and not has_room(room, {"a": (3,)})
    guarded = room_of(comp("a", "b", guard=True), _BUFFERS)
    assert guarded == {"a": ((0, 0),)}  # the first of its two reads has none
