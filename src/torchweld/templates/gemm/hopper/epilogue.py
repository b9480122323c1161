"""What a Gluon kernel does with one slice of the accumulators: a function `finish`, printed by the
same emitter as Triton kernels. What depends on rows alone is computed by a function `prepare`, once
for all slices of a tile.

Values are tiles of [ROWS, COLUMNS] in the layout ACC of the accumulators, or of extent one along a
dimension that they do not depend on. Residuals come, and results go, through slots in shared memory
that TMA fills and empties; what it cannot move is loaded and stored from registers.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from torchweld.codegen.gluon.names import AFTER_LOADS
from torchweld.ir.access import Accesses
from torchweld.ir.contraction import Contraction
from torchweld.ir.nodes import Buffer, Index, Load, Value, store_operands
from torchweld.ir.size import Size
from torchweld.templates.gemm.hopper.schedule import Roles
from torchweld.templates.gemm.hopper.windows import Window
from torchweld.templates.gemm.schedule import ProductSchedule
from torchweld.templates.pointwise_reduce.gpu.laid_out import LaidOut
from torchweld.templates.pointwise_reduce.gpu.schedule import Schedule, extent


class Epilogue(LaidOut):
    """`roles` says which loads and stores pass through shared memory; the others are made from
    registers. `beside`: another epilogue of the same kernel, which is passed the same pointers and
    sizes. `sums`: where the sums of a tile's columns go, by position of the store."""

    def __init__(
        self,
        accesses: Accesses,
        contraction: Contraction,
        buffers: Mapping[str, Buffer],
        schedule: ProductSchedule,
        roles: Roles,
        beside: Epilogue | None = None,
        sums: Mapping[int, Buffer] | None = None,
    ) -> None:
        rows, columns = contraction.rows, contraction.columns
        tile = Schedule(
            "grid", rows, columns, schedule.block_m, schedule.block_n, schedule.num_warps
        )
        super().__init__(accesses, buffers, tile, (rows, columns))
        self.contraction, self.roles, self.sums = contraction, roles, sums or {}
        self.box = schedule.box
        self.products = {p.value: f"v{p.value}" for p in contraction.products}
        self.known |= self.products
        self.prepared: list[Value] = []  # the results of `prepare`
        self.preparation: list[str] = []  # its lines
        if beside is not None:
            self._pointers, self._sizes = beside._pointers, beside._sizes
            self.helpers = beside.helpers

    # names of what is passed to `finish`

    @property
    def accumulators(self) -> list[str]:
        return list(self.products.values())

    @property
    def given(self) -> list[str]:
        """What `prepare` returns."""
        return [f"v{v}" for v in self.prepared]

    @property
    def batch(self) -> list[str]:
        """Where the tile is, beside its row and column: in the batch, and of places in an image."""
        rows = self.contraction.rows if self.box else ()
        return [f"at_{a}" for a in (*self.contraction.batch, *rows)]

    @property
    def lines(self) -> list[str]:
        return [text[4:] for text in self._lines.texts]

    # the body

    def emit(self) -> None:
        """The bodies of `prepare`, if there is to be one, and of `finish`."""
        stores = self.comp.stores
        targets = [v for s in stores for v in store_operands(s)]
        self.prepared = self._made_of_rows(targets)
        if self.prepared:
            self._emit_preparation()
        if self._uses_indices(targets):
            self._define_tile("ACC", "r", "c")
        if self.roles.residuals:
            self.line("slot = turn % FETCHED")
            self.line("mbarrier.wait(came.index(slot), turn // FETCHED & 1)")
        self.compute(targets)
        if self.roles.residuals:
            self.line(AFTER_LOADS)
            self.line("mbarrier.arrive(used.index(slot), count=1)")
        self._store_through_shared()
        for position in self.sums:
            self._store_sum(position)
        direct = [p for p in range(len(stores)) if p not in {*self.roles.results, *self.sums}]
        if direct:
            self._store_direct(direct)

    def _made_of_rows(self, targets: list[Value]) -> list[Value]:
        """Values computed from loads along rows alone, those that others use."""
        rows, columns = set(self.schedule.rows), set(self.schedule.columns)
        every = self.needed(targets)
        alone = {v for v in every if self.axes[v] & rows and not self.axes[v] & columns
                 and any(isinstance(self.body[u], Load) for u in self.needed([v]))}  # fmt: skip
        used = {u for v in every if v not in alone for u in self.operands(v)}.union(targets)
        return sorted(alone & used)

    def _emit_preparation(self) -> None:
        self._define_batch()
        self._define_side("ACC", "r", "row")
        self.compute(self.prepared)
        self.line(f"return {', '.join(self.given)}")
        self.preparation, self._lines.texts = self.lines, []
        self.known = self.products | dict(zip(self.prepared, self.given))

    def _store_through_shared(self) -> None:
        """Slots are written again when their last store has been read."""
        results = self.roles.results
        if not results:
            return
        self.line(f"tma.store_wait({len(results) * (self.roles.result_slots - 1)})")
        for position, window in results.items():
            value = self.value(self.comp.stores[position].value)
            self.line(f"{_flat(f'{result_name(position)}.index(out)', window)}.store({value})")
        self.line("fence_async_shared()")
        for position, window in results.items():
            name = result_name(position)
            self.line(f"copy_out(d_{name}, {self._corner(window)}, {name}.index(out))")

    def _corner(self, window: Window) -> str:
        names = {"rows": "row", "columns": "column"}
        return f"[{', '.join(names.get(d) or f'at_{d}' for d in window.dims)}]"

    def _uses_indices(self, targets: list[Value]) -> bool:
        bodies = [(v, self.body[v]) for v in self.needed(targets)]
        loads = any(isinstance(i, Load) and v not in self.roles.residuals for v, i in bodies)
        direct = len(self.roles.results) < len(self.comp.stores)
        return loads or direct or any(isinstance(i, Index) for _, i in bodies)

    def _define_tile(self, layout: str, rows: str, columns: str) -> None:
        self._define_batch()
        self._define_side(layout, rows, "row")
        self._define_side(layout, columns, "column")

    def _define_batch(self) -> None:
        for axis in self.contraction.batch:
            self.line(f"{self.axis_variable(axis)} = at_{axis}{self._wide}")

    def _define_side(self, layout: str, name: str, start: str) -> None:
        """The linear index `name` of a tile's rows or columns."""
        if start == "row" and self.box:
            self._define_places(layout, name)
            return
        if start == "row":
            lanes = f"gl.arange(0, ROWS, gl.SliceLayout(1, {layout}))[:, None]"
            axes, block = self.schedule.rows, self.block_rows
        else:
            lanes = f"gl.arange(0, COLUMNS, gl.SliceLayout(0, {layout}))[None, :]"
            axes, block = self.schedule.columns, self.block_columns
        covered = _rounded(self._extent(axes), block)
        self.define(name, f"{start}{self._wide}", lanes, axes, covered)

    def _define_places(self, layout: str, name: str) -> None:
        """The same of rows that are a box of places: their place along each axis first."""
        axes, inside, index = self.schedule.rows, [], ""
        self.line(f"{name}_lane = gl.arange(0, ROWS, gl.SliceLayout(1, {layout}))[:, None]")
        for k, (axis, box) in enumerate(zip(axes, self.box)):
            inner, place, size = prod(self.box[k + 1 :]), f"{name}_at_{k}", self.comp.extent(axis)
            self.line(f"{place} = at_{axis}{self._wide} + {name}_lane // {inner} % {box}")
            if len(axes) > 1:
                self.line(f"{self.axis_variable(axis)} = {place}")
            index = f"({index}) * {size} + {place}" if index else place
            inside += [f"({place} < {size})"] if size % box else []
        self.line(f"{name} = {index}")
        self._masks.discard(name)
        if inside:
            self._masks.add(name)
            self.line(f"{name}m = {' & '.join(inside)}")

    @property
    def _wide(self) -> str:
        return ".to(tl.int64)" if self.index_type == "tl.int64" else ""

    def _extent(self, axes: tuple[str, ...]) -> Size:
        return extent(self.accesses, axes)

    def _store_sum(self, position: int) -> None:
        """Of the tile's rows in each column of the slice."""
        partial = self.sums[position]
        value = self.value(self.comp.stores[position].value)
        inside = f"tl.where(rm, {value}, 0.0)" if self.masked("r") else value
        place = f"row // ROWS * {self.size(self._extent(self.schedule.columns))} + c"
        total = f"gl.sum({inside}, 0)[None, :]"
        self.write("store", f"{self.pointer(partial.name)} + ({place})", total, self.mask("c"))

    def _store_direct(self, positions: list[int]) -> None:
        """From registers; whole tiles in a layout in which neighbours in memory share a thread."""
        moved = [p for p in positions if self._is_whole(p)]
        for position in positions:
            if position not in moved:
                self.store(position)
        if not moved:
            return
        other = self.facing(self.schedule, "ro", "co")
        other._define_tile("OUT", "ro", "co")
        for position in moved:
            value = self.comp.stores[position].value
            other.known[value] = f"o{value}"
            self.line(f"o{value} = gl.convert_layout({self.value(value)}, OUT)")
            other.store(position)

    def _is_whole(self, position: int) -> bool:
        store = self.comp.stores[position]
        alone = self._is_of_indices(store.guard) and not self.accesses.stores[position].refs
        return alone and self.along(self.axes[store.value]) == "rc"

    def _is_of_indices(self, guard: Value | None) -> bool:
        """Whether a condition can be told anew in another layout: it is of rows and columns."""
        asked = () if guard is None else self.needed([guard])
        return not any(isinstance(self.body[v], Load) or v in self.products for v in asked)

    def _load(self, value: Value, instr: Load) -> str:
        if value in self.roles.residuals:
            slot = f"{residual_name(value)}.index(slot)"
            return f"{_flat(slot, self.roles.residuals[value])}.load(ACC)"
        return super()._load(value, instr)


def residual_name(value: Value) -> str:
    """Of the tile in shared memory that a Load reads."""
    return f"t{value}"


def result_name(position: int) -> str:
    """Of the tile in shared memory that a Store fills."""
    return f"y{position}"


def _flat(slot: str, window: Window) -> str:
    """A tile in shared memory as a matrix, without the batch."""
    return slot if len(window.dims) == 2 else f"{slot}.reshape((ROWS, COLUMNS))"


def _rounded(length: Size, block: int) -> Size | None:
    return -(-length // block) * block if isinstance(length, int) else None
