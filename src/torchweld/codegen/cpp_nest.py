"""The loop nest of one stage: over the inner axes, computing each value at the depth where it first varies.

Lane "column" (the accumulators are scalars):      Lane "row" (they are arrays along the lane):
    for outer columns                                  for outer columns
      for blocks of SUM_BLOCK columns                    for blocks of ROW_SUM_BLOCK columns
        a = identity                                       a[] = identity
        simd reduction loop: a += v                        for columns, simd lane: a[l] += v
        A += a                                             A[] += a[]
"""

from __future__ import annotations

from contextlib import ExitStack

from torchweld.codegen import cpp_expr as x
from torchweld.codegen.cpp_columns import accumulate_column
from torchweld.codegen.cpp_kernel import Kernel
from torchweld.codegen.cpp_values import Texts, define, store, widened
from torchweld.codegen.emitter import Emitter
from torchweld.ir.nodes import Reduce, Scan, Value
from torchweld.schedule.cpu import combines_in_lane

SUM_BLOCK = 1024
ROW_SUM_BLOCK = 64


def emit_nest(k: Kernel, e: Emitter, stage: int, reductions: list[Value], texts: Texts) -> None:
    _Nest(k, e, stage, reductions, dict(texts)).emit()


class _Nest:
    def __init__(
        self, k: Kernel, e: Emitter, stage: int, reductions: list[Value], texts: Texts
    ) -> None:
        self.k, self.e, self.stage, self.reductions, self.texts = k, e, stage, reductions, texts
        self.axes = k.schedule.nest
        inner = set(self.axes)
        self.values = k.stages.loops[stage]
        self.stores = [s for s in k.stores_of(stage) if k.store_axes(s) & (inner - {k.row_lane})]
        self.over_rows = [
            v
            for v in k.frame.column_reductions
            if k.stages.home[v] == stage and k.body[v].args[0] in k.stages.varying
        ]
        # Where the blocks of partial sums are cut: the lane's own loop, or the last column's.
        self.block_at = len(self.axes) - (2 if k.row_lane else 1)

    def emit(self) -> None:
        with ExitStack() as stack:
            for depth in range(len(self.axes)):
                self._at_depth(depth)
                if depth == self.block_at and self.reductions:
                    self._open_block(stack)
                self._open_loop(depth, stack)
            self._innermost()

    def _depth(self, axes: frozenset[str]) -> int:
        """How many loops must be open for the axes to be bound."""
        return max((d + 1 for d, a in enumerate(self.axes) if a in axes), default=0)

    def _at_depth(self, depth: int) -> None:
        for value in self.values:
            if self._depth(self.k.stages.axes[value]) == depth:
                self._value(value)
        for position in self.stores:
            if self._depth(self.k.store_axes(position)) == depth:
                store(self.k, self.e, position, self.texts)
        for value in self.over_rows:
            if self._depth(self.k.stages.axes[self.k.body[value].args[0]]) == depth:
                accumulate_column(self.k, self.e, value, self.texts)

    def _value(self, value: Value) -> None:
        """Computes a value, or reads it back where an earlier stage kept it."""
        k, kept = self.k, value in self.k.stages.kept
        if kept and any(value in loop for loop in k.stages.loops[: self.stage]):
            kind = x.ctype(k.body[value].dtype)
            self.e.line(f"const {kind} v{value} = k{value}[{k.column_offset(value)}];")
            self.texts[value] = f"v{value}"
            return
        define(k, self.e, value, self.texts)
        if kept:
            self.e.line(f"k{value}[{k.column_offset(value)}] = v{value};")

    # -- loops ------------------------------------------------------------------------------------------

    def _open_block(self, stack: ExitStack) -> None:
        """A loop over blocks of partial sums, if the axis is longer than one block, and the partial sums."""
        k, axis = self.k, self.axes[self.block_at]
        block = ROW_SUM_BLOCK if k.row_lane else SUM_BLOCK
        name, (low, high), extent = k.names[axis], k.bounds(axis), k.comp.extent(axis)
        self.range = (low, high)
        if any(k.accumulator(v)[0] != k.accumulator(v)[1] for v in self.reductions) and not (
            isinstance(extent, int) and extent <= 2 * block
        ):
            stack.enter_context(
                self.e.block(
                    f"for (int64_t b_{name} = {low}, end_{name} = {high}; b_{name} < end_{name}; b_{name} += {block})"
                )
            )
            self.e.line(
                f"const int64_t e_{name} = b_{name} + {block} < end_{name} ? b_{name} + {block} : end_{name};"
            )
            self.range = (f"b_{name}", f"e_{name}")
        stack.callback(self._flush)
        for value in self.reductions:
            self._declare_partial(value)

    def _declare_partial(self, value: Value) -> None:
        kind, start = self.k.accumulator(value)[0], self.k.identity(value)
        if not self.k.row_lane:
            self.e.line(f"{kind} a{value} = {start};")
            if self._flags_nan(value):
                self.e.line(f"int32_t nan{value} = 0;")
            return
        self.e.line(f"alignas(64) {kind} a{value}[{self.k.lane_block}];")
        self.e.line(f"for (int64_t l = 0; l < {self.k.lane_block}; ++l) a{value}[l] = {start};")

    def _flush(self) -> None:
        for value in self.reductions:
            if self.k.row_lane:
                merged = self.k.merged(
                    value, f"A{value}[l]", f"({self.k.accumulator(value)[1]})a{value}[l]"
                )
                self.e.line(
                    f"for (int64_t l = 0; l < {self.k.lane_block}; ++l) A{value}[l] = {merged};"
                )
            else:
                partial = f"({self.k.accumulator(value)[1]})a{value}"
                if self._flags_nan(value):
                    partial = f"nan{value} ? {x.nan(self.k.body[value].dtype)} : {partial}"
                self.e.line(f"A{value} = {self.k.merged(value, f'A{value}', partial)};")

    def _open_loop(self, depth: int, stack: ExitStack) -> None:
        axis, k = self.axes[depth], self.k
        name = k.names[axis]
        blocked = depth == self.block_at and self.reductions
        low, high = self.range if blocked else k.bounds(axis)
        if depth == len(self.axes) - 1:
            self._pragma()
        stack.enter_context(
            self.e.block(f"for (int64_t {name} = {low}; {name} < {high}; ++{name})")
        )

    def _pragma(self) -> None:
        """Whether and how the innermost loop is vectorised."""
        k = self.k
        scans = any(isinstance(k.body[v], Scan) for v in self.values) and not k.row_lane
        colliding = any(k.comp.stores[s].combine or k.accesses.stores[s].refs for s in self.stores)
        if scans or (colliding and combines_in_lane(k.accesses, self.axes[-1])):
            return
        clauses = "" if k.row_lane else "".join(map(self._clause, self.reductions))
        self.e.line(f"#pragma omp simd{clauses}")

    def _clause(self, value: Value) -> str:
        flag = f" reduction(| : nan{value})" if self._flags_nan(value) else ""
        return f" reduction({x.simd_operator(self.k.body[value].monoid)} : a{value}){flag}"

    def _flags_nan(self, value: Value) -> bool:
        """A float maximum along the lane leaves NaN to a flag: an operator that carries NaN would take
        a custom OpenMP reduction, which gcc makes twice as slow."""
        instr = self.k.body[value]
        return not self.k.row_lane and instr.monoid in ("max", "min") and instr.dtype.is_float

    def _innermost(self) -> None:
        self._at_depth(len(self.axes))
        for value in self.reductions:
            arg = widened(self.k, self._argument(value), self.texts)
            partial = f"a{value}[{self.k.lane_position}]" if self.k.row_lane else f"a{value}"
            if self._flags_nan(value):
                better = ">" if self.k.body[value].monoid == "max" else "<"
                self.e.line(f"{partial} = {arg} {better} {partial} ? {arg} : {partial};")
                self.e.line(f"nan{value} |= {arg} != {arg};")
            else:
                self.e.line(f"{partial} = {self.k.merged(value, partial, arg)};")

    def _argument(self, value: Value) -> Value:
        instr = self.k.body[value]
        assert isinstance(instr, Reduce)
        return instr.args[0]
