"""A product of matrices with all that its left or right factor is made of, back to the products
before, written as one Comp over common axes: a score nest (templates/attention/nest.py).

    extern s = bmm(q, k)
    comp p [b, i, j] { m = max[j] s; e = exp(s - m); store p[b, i, j] e / sum[j] e }
    extern o = bmm(p, v)
 -> comp o [b, i, e, j, d] { s = sum[d] q * k; m = max[j] s; ...; store o[b, i, e] sum[j] ... * v }

What is inlined is what has a value for each row and key, the statistics of such values, and what
costs next to nothing: indices, and copies of keys that repeat heads. The rest is read from memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

from torchweld.core import dtypes
from torchweld.ir.affine import Affine, axis
from torchweld.ir.build import BodyBuilder
from torchweld.ir.nodes import (
    Axis,
    Cast,
    Comp,
    Graph,
    IndexMap,
    Load,
    Node,
    Op,
    Reduce,
    Ref,
    Scan,
    Store,
    Value,
    map_axes,
    value_axes,
)
from torchweld.ir.scalar import TABLE
from torchweld.ir.size import hint, product
from torchweld.plan.inline import Place, copy_instr, copy_store, fresh, index_image, split_in_two
from torchweld.plan.refusals import Reason, Refusal
from torchweld.plan.unify import Extents, Image, Mismatch, Split, covered, solve, writes_all
from torchweld.templates.attention.schedule import LARGEST_HEAD
from torchweld.templates.gemm.comp import is_product, product_comp

_MOST_SPLITS = 8
_MOST_PRODUCTS = 4  # two of differential attention, and their gradients'
_DEEPEST = 40  # nodes above each other that are written by calls within calls
_CHEAP = 4.0  # multiply-adds for an operation that is repeated at each score, as an index may be
_DEAR = 8.0  # for one that is as good as a read of 4 bytes
Images = Mapping[str, Image]


@dataclass(frozen=True, slots=True)
class Sources:
    """Who makes each buffer of a graph, and of which products it is computed by Comps alone."""

    graph: Graph
    makers: Mapping[str, Node] = field(default_factory=dict)
    place: Mapping[str, int] = field(default_factory=dict)
    _elements: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: Graph) -> Sources:
        """Buffers that are written twice, or given by the caller, have no maker."""
        found: dict[str, Node | None] = {n: None for n in graph.inputs if n}
        for node in graph.nodes:
            for name in node.writes:
                found[name] = None if name in found else node
        place = {n.name: k for k, n in enumerate(graph.nodes)}
        return cls(graph, {name: n for name, n in found.items() if n is not None}, place)

    def behind(self, buffer: str, least: int, first: int = 0) -> Iterator[Node]:
        """The nodes that a buffer is computed by, back to products, as far as each makes at least
        so many elements and is not in front of place `first`."""
        found, todo = set(), [buffer]
        while todo:
            name = todo.pop()
            node = self.makers.get(name)
            if node is None or node.name in found or self.elements(name) < least:
                continue
            if self.place[node.name] >= first:
                found.add(node.name)
                yield node
                todo += node.reads if isinstance(node, Comp) else ()

    def products(self, buffer: str, least: int) -> frozenset[str]:
        """The products among these, by their names; of more than the most that a nest can have,
        some: along sums of layers there are as many as layers."""
        found = (n.name for n in self.behind(buffer, least) if is_product(n))
        return frozenset(islice(found, _MOST_PRODUCTS + 1))

    def bytes(self, buffer: str) -> int:
        return self.elements(buffer) * self.graph.buffers[buffer].dtype.bytes

    def elements(self, buffer: str) -> int:
        if buffer not in self._elements:
            shape = self.graph.buffers[buffer].shape
            self._elements[buffer] = hint(product(shape), self.graph.hints)
        return self._elements[buffer]


@dataclass(frozen=True, slots=True)
class Member:
    """A node at the first place where a nest needs it: its Comp, the images of its axes, and the
    values of the nest that its own are."""

    comp: Comp
    images: Images
    values: tuple[Value, ...]
    is_product: bool

    def stores(self, axes: Extents) -> tuple[Store, ...]:
        """What the node stores, by the nest, whose axes have these extents; nothing if that is not
        each element once."""
        made = []
        for store in self.comp.stores:
            places = {n: self.images[n] for n in map_axes(store.index)}
            indirect = any(isinstance(e, Ref) for e in store.index)
            once = covered(places, self.comp.extents, axes) is not None
            if indirect or store.guard is not None or not once:
                return ()
            index = tuple(e.substitute(self.images) for e in store.index)
            made.append(replace(store, index=index, value=self.values[store.value]))
        return tuple(made)


@dataclass(frozen=True, slots=True)
class Written:
    """`comp`: the nest, as it was put together; `keys`: what it reduces scores over. `members`: the
    nodes inside, by name. `position`: the factor of the product that they are behind, None for a
    sum over a batch. `readers`: computations that read scores without being behind the product, and
    are inside all the same."""

    comp: Comp
    keys: frozenset[str]
    members: Mapping[str, Member]
    position: int | None
    readers: tuple[Comp, ...] = ()


class _Cannot(Exception):
    """Why something cannot be written; a Split says which axis must be cut first."""

    def __init__(self, why: Refusal | Split) -> None:
        self.why = why


class _Deeper(Exception):
    """What has to be written first: so deep below it is the rest that calls would be too many."""


def may_end(node: Node) -> bool:
    """Whether a nest may end in `node`: a product, or a sum of one tensor."""
    if not isinstance(node, Comp):
        return is_product(node)
    sums = [i for i in node.body if isinstance(i, Reduce)]
    one = len(node.stores) == len(sums) == sum(isinstance(i, Load) for i in node.body) == 1
    return one and sums[0].monoid == "sum" and not any(isinstance(i, Op) for i in node.body)


def written(root: Node, sources: Sources) -> Iterator[Written | Refusal]:
    """The nests that end in the product `root`: one for each factor that products are behind. Or
    the one that ends in a sum."""
    if isinstance(root, Comp):
        found = _written(root, None, sources)
        if found is not None:
            yield found
        return
    comp = product_comp(root, sources.graph.buffers)
    sums = [i for i in comp.body if isinstance(i, Reduce)] if comp else []
    if len(sums) != 1:
        return
    for position in (0, 1):
        found = _written(comp, position, sources)
        if found is not None:
            yield found


def with_reader(
    root: Node, before: Written, reader: Comp, sources: Sources
) -> Written | Refusal | None:
    """The nest with one more computation that reads its scores, a sum of weights."""
    comp, readers = product_comp(root, sources.graph.buffers), (*before.readers, reader)
    return comp and _written(comp, before.position, sources, readers)


def _written(
    comp: Comp, position: int | None, sources: Sources, readers: tuple[Comp, ...] = ()
) -> Written | Refusal | None:
    for _ in range(_MOST_SPLITS):
        sides = _Sides.of(comp, position, sources.graph.hints)
        inner = sides.inner_products(sources) if sides else ()
        least = 2 if position is None else 1  # a gradient of scores is made of two
        if not least <= len(inner) <= _MOST_PRODUCTS:
            return None
        columns = product(comp.extents[n] for n in sides.columns)
        if isinstance(columns, int) and columns > LARGEST_HEAD:
            return None  # layers of a network, no heads of attention
        try:
            return replace(_Writer(comp, sides, sources).written(readers), position=position)
        except _Cannot as cannot:
            if isinstance(cannot.why, Refusal):
                return cannot.why
            split = cannot.why
        if split.axis not in comp.extents:
            return Refusal(Reason.MAPS, f"{split.axis} would have to be cut")
        comp = split_in_two(comp, split.axis, split.inner)
    return Refusal(Reason.MAPS, "too many splits")


@dataclass(frozen=True, slots=True)
class _Sides:
    """Axes of a product by what they are to the scores that `weight`, one of its factors, holds."""

    weight: str
    rows: frozenset[str]
    keys: frozenset[str]
    columns: frozenset[str]
    least: int  # elements of the scores
    over: frozenset[str]  # what scores are reduced over

    @classmethod
    def of(cls, comp: Comp, position: int | None, hints: Mapping[str, int]) -> _Sides | None:
        total = next(i for i in comp.body if isinstance(i, Reduce))
        if position is None:
            return cls.of_sum(comp, total, hints)
        factors = comp.body[total.args[0]]
        if not isinstance(factors, Op) or factors.name != "mul":
            return None
        axes = value_axes(comp.body)
        weight, other = factors.args[position], factors.args[1 - position]
        load = _load_behind(comp, weight)
        rows, keys = axes[weight] - axes[other], frozenset(total.axes)
        columns = axes[other] - axes[weight] - keys
        least = hint(product(comp.extents[n] for n in axes[weight]), hints)
        return cls(load.buffer, rows, keys, columns, least, keys) if rows and load else None

    @classmethod
    def of_sum(cls, comp: Comp, total: Reduce, hints: Mapping[str, int]) -> _Sides | None:
        """Of a sum over a batch. Statistics belong to what is stored far apart: those are the keys,
        so that statistics are read from memory."""
        load, (store,), over = _load_behind(comp, total.args[0]), comp.stores, frozenset(total.axes)
        if load is None or map_axes(load.index[-2:]) & over or not store.index:
            return None
        rows = map_axes(store.index[-1:])
        keys = map_axes(store.index) - rows
        least = hint(product(comp.extents.values()), hints)
        return cls(load.buffer, rows, keys, frozenset(), least, over) if rows and keys else None

    def inner_products(self, sources: Sources) -> frozenset[str]:
        return sources.products(self.weight, self.least)


def _load_behind(comp: Comp, value: Value) -> Load | None:
    instr = comp.body[value]
    while isinstance(instr, Cast):
        instr = comp.body[instr.arg]
    return instr if isinstance(instr, Load) else None


class _Writer:
    """Writes one nest; raises _Cannot."""

    def __init__(self, root: Comp, sides: _Sides, sources: Sources) -> None:
        self.root, self.sides, self.sources = root, sides, sources
        self.inner = sides.inner_products(sources)
        self.chain = {n.name for n in sources.behind(sides.weight, sides.least)}
        self._first = min(sources.place[n] for n in self.chain)
        self.axes = dict(root.extents)
        self.body = BodyBuilder()
        self.members: dict[str, Member] = {}
        self._instances: dict[tuple, list[Value]] = {}
        self._bounds: dict[tuple, Images] = {}
        self._depth = 0

    def written(self, readers: tuple[Comp, ...]) -> Written:
        at = self._deep(lambda: self._copied(self.root, {n: axis(n) for n in self.root.extents}))
        place = self._place({})
        stores = tuple(copy_store(self.body, s, at, place) for s in self.root.stores)
        stores += tuple(s for reader in readers for s in self._beside(reader))
        origins = [member.comp.origins for member in self.members.values()]
        every = tuple(dict.fromkeys(o for part in origins for o in part)) + self.root.origins
        axes = tuple(Axis(n, e) for n, e in self.axes.items())
        comp = Comp(self.root.name, axes, self.body.body, stores, every)
        return Written(comp, self.sides.over, self.members, 0, readers)

    def _deep(self, write: Callable[[], list[Value]]) -> list[Value]:
        """What `write` gives, and before it what lies too deep below it, deepest first."""
        todo = [write]
        while True:
            self._depth = 0
            try:
                values = todo[-1]()
            except _Deeper as deeper:
                todo.append(partial(self._instance, *deeper.args[0]))
                continue
            todo.pop()
            if not todo:
                return values

    def _beside(self, reader: Comp) -> tuple[Store, ...]:
        """What a computation stores that reads scores which are inside."""
        images: dict[str, Image] = {}
        for load in (i for i in reader.body if isinstance(i, Load)):
            member = self.members.get(getattr(self.sources.makers.get(load.buffer), "name", ""))
            if member is None:
                continue
            store = next(s for s in member.comp.stores if s.buffer == load.buffer)
            index = tuple(e.substitute(member.images) for e in store.index)
            found = solve(load.index, index, reader.extents, self.axes)
            images |= found if isinstance(found, dict) else {}
        if images.keys() != reader.extents.keys():
            raise _Cannot(Refusal(Reason.MAPS, reader.name))
        self._check_reduced(reader, images)
        values = tuple(self._deep(lambda: self._copied(reader, images)))
        self.members[reader.name] = Member(reader, images, values, False)
        return self.members[reader.name].stores(self.axes)

    def _place(self, images: Images) -> Place:
        return Place(images, self.axes)

    def _copied(self, comp: Comp, images: Images) -> list[Value]:
        """The values of `comp` at a place, with what it loads inlined where that should be."""
        at: list[Value] = []
        for instr in comp.body:
            value = self._loaded(instr, at, images) if isinstance(instr, Load) else None
            at.append(copy_instr(self.body, instr, at, self._place(images))
                      if value is None else value)  # fmt: skip
        return at

    def _loaded(self, load: Load, at: list[Value], images: Images) -> Value | None:
        """The value in the place of a load; None if it is read from memory."""
        node = self.sources.makers.get(load.buffer)
        index = index_image(self.body, load.index, at, images)
        indirect = any(isinstance(e, Ref) for e in index)
        if node is None or (indirect and not isinstance(node, Comp)):
            return None
        if not self._belongs(node, load.buffer, self._axes_of(index)):
            return None
        if load.guard is not None:
            raise _Cannot(Refusal(Reason.MAPS, f"{load.buffer} is read where it is not made"))
        comp = self._comp_of(node)
        store = next(s for s in comp.stores if s.buffer == load.buffer)
        if store.combine or store.guard is not None:
            raise _Cannot(Refusal(Reason.PARTIAL_WRITE, load.buffer))
        shape = self.sources.graph.buffers[load.buffer].shape
        if not writes_all(store.index, comp.extents, shape):
            raise _Cannot(Refusal(Reason.PARTIAL_WRITE, load.buffer))
        if isinstance(node, Comp) and _is_copy(node) and (
            not self._reads_rows(comp, store, index) or self._is_widened(node, load.buffer)
        ):
            return None
        value = self._instance(node, comp, store, index)[store.value]
        if isinstance(self.body[value], Cast) and (load.exact or load.buffer == self.sides.weight):
            # A product rounds its factors by itself: the user's rounding of the weights is that.
            value = self.body.emit(replace(self.body[value], must_round=load.exact))
        return value

    def _is_widened(self, copy: Comp, buffer: str) -> bool:
        """Whether it is the factor beside weights of float32, which a product with the 16-bit
        original would round."""
        weights = self.sources.graph.buffers[self.sides.weight].dtype
        beside = buffer in self.root.reads and buffer != self.sides.weight
        (load,) = (i for i in copy.body if isinstance(i, Load))
        return beside and weights == dtypes.f32 and load.dtype.is_low_precision

    def _reads_rows(self, comp: Comp, store: Store, index: IndexMap) -> bool:
        """Whether what a copy is of has depth or columns innermost too, or is no factor."""
        (load,) = (i for i in comp.body if isinstance(i, Load))
        images = solve(store.index, index, comp.extents, self.axes)
        if not isinstance(images, dict) or not load.index:
            return True
        wide = (self.axes.keys() - self.root.extents.keys()) | self.sides.columns
        strides = self.sources.graph.buffers[load.buffer].strides
        inner = [self._axes_at(e, images) for e, s in zip(load.index, strides) if s == 1]
        return not self._axes_of(index) & wide or any(axes & wide for axes in inner)

    def _axes_at(self, index: Affine, images: Images) -> frozenset[str]:
        """What a copy's index depends on, where axes of the copy have such images."""
        return self._axes_of(tuple(images.get(name, axis(name)) for name in index.axes))

    def _axes_of(self, index: IndexMap) -> frozenset[str]:
        indirect = (e.value for e in index if isinstance(e, Ref))
        return map_axes(index).union(*map(self.body.axes, indirect))

    def _comp_of(self, node: Node) -> Comp:
        comp = node if isinstance(node, Comp) else product_comp(node, self.sources.graph.buffers)
        if comp is None:
            raise _Cannot(Refusal(Reason.TEMPLATE, f"{node.name}: an input is not a plain view"))
        if any(isinstance(i, Scan) for i in comp.body):
            raise _Cannot(Refusal(Reason.SCAN, node.name))
        return comp

    # -- what belongs inside --

    def _belongs(self, node: Node, buffer: str, axes: frozenset[str]) -> bool:
        """Whether what `node` makes is computed where it is read along `axes`."""
        is_score = bool(axes & self.sides.keys) and bool(axes & self.sides.rows)
        if not isinstance(node, Comp):
            return is_score and node.name in self.inner
        if is_score:
            return not self._is_dear(node, buffer)
        if self._is_index(node):
            return True
        return _is_copy(node) or self._is_statistic(node, buffer, axes)

    def _is_dear(self, node: Comp, buffer: str) -> bool:
        """Whether a CPU reads it in less time than it computes it again for each point of the
        batch: logarithms of distances (T5's bias)."""
        graph = self.sources.graph
        few = 2 * self.sources.elements(buffer) <= self.sources.elements(self.sides.weight)
        dear = any(isinstance(i, Op) and TABLE[i.name].cost > _DEAR for i in node.body)
        if not (few and dear) or graph.buffers[buffer].device != "cpu":
            return False
        return not self.sources.products(buffer, 0)

    def _is_statistic(self, node: Comp, buffer: str, axes: frozenset[str]) -> bool:
        """A reduction over keys, or what is made of such."""
        behind = self.sources.behind(buffer, 0, self._first)
        return not axes & self.sides.keys and any(n.name in self.chain for n in behind)

    def _is_index(self, node: Comp) -> bool:
        """Made of indices and numbers alone, by cheap operations."""
        seen, todo = {node.name}, [node]
        while todo:
            node = todo.pop()
            if not isinstance(node, Comp) or not _is_cheap(node):
                return False
            makers = {m and m.name: m for m in map(self.sources.makers.get, node.reads)}
            todo += [m for name, m in makers.items() if name not in seen]
            seen |= makers.keys()
        return True

    # -- one node at one place --

    def _instance(self, node: Node, comp: Comp, store: Store, index: IndexMap) -> list[Value]:
        images = solve(store.index, index, comp.extents, self.axes)
        if isinstance(images, Split):
            raise _Cannot(images)
        if isinstance(images, Mismatch):
            raise _Cannot(Refusal(Reason.MAPS, f"{store.buffer}: {images.evidence}"))
        key = node.name, tuple(sorted((n, repr(i)) for n, i in images.items()))
        if key not in self._instances:
            if self._depth == _DEEPEST:
                raise _Deeper((node, comp, store, index))
            if key not in self._bounds:  # one that was left for what lies deeper has its axes
                self._bounds[key] = {**images, **self._bound(comp, images)}
            images = self._bounds[key]
            self._check_reduced(comp, images)
            self._depth += 1
            self._instances[key] = self._copied(comp, images)
            self._depth -= 1
            member = Member(comp, images, tuple(self._instances[key]), is_product(node))
            self.members.setdefault(node.name, member)
        return self._instances[key]

    def _bound(self, comp: Comp, images: Images) -> Images:
        """Axes of the nest for those that a producer reduces and does not store along: of a product
        new ones, of a statistic the keys."""
        free = [a for a in comp.axes if a.name not in images]
        reduced = {n for i in comp.body if isinstance(i, Reduce) for n in i.axes}
        if any(a.name not in reduced for a in free):
            raise _Cannot(Refusal(Reason.MAPS, f"{comp.name} has other axes"))
        keys = [a for a in self.root.axes if a.name in self.sides.keys]
        if isinstance(self.sources.makers.get(comp.stores[0].buffer), Comp):
            if [a.extent for a in free] != [a.extent for a in keys][: len(free)]:
                raise _Cannot(Refusal(Reason.COLUMNS, comp.name))
            return {a.name: axis(k.name) for a, k in zip(free, keys)}
        taken = set(self.axes)
        made = {a.name: fresh(a.name, taken) for a in free}
        self.axes |= {made[a.name]: a.extent for a in free}
        return {old: axis(new) for old, new in made.items()}

    def _check_reduced(self, comp: Comp, images: Images) -> None:
        """A reduction runs over each of its points once."""
        for instr in comp.body:
            if not isinstance(instr, Reduce):
                continue
            over = {n: images[n] for n in instr.axes}
            if covered(over, comp.extents, self.axes) is None:
                raise _Cannot(Refusal(Reason.COLUMNS, f"{comp.name} reduces {instr.axes}"))


def _is_cheap(node: Comp) -> bool:
    """Without reductions, and of cheap operations."""
    if any(isinstance(i, (Reduce, Scan)) for i in node.body):
        return False
    return all(TABLE[i.name].cost <= _CHEAP for i in node.body if isinstance(i, Op))


def _is_copy(node: Comp) -> bool:
    """A copy in another layout, or with heads repeated, or of 16 bits that are widened."""
    loads = [i for i in node.body if isinstance(i, Load)]
    casts = [i for i in node.body if isinstance(i, Cast)]
    if len(node.stores) != 1 or len(loads) != 1 or len(node.body) != 1 + len(casts):
        return False
    plain = loads[0].guard is None and all(isinstance(e, Affine) for e in loads[0].index)
    widens = all(c.dtype.bytes >= node.body[c.arg].dtype.bytes for c in casts)
    return plain and widens and all(c.dtype.is_float for c in casts)
