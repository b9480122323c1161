"""The order of the folders, read from the imports: docs/design.md, "One direction"."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "torchweld"

# A folder imports only itself and what stands before it. Modules of the package itself are layers
# of one file; a large folder has layers inside.
LAYERS = (
    "core", "targets", "ir", "capture", "rewrite", "codegen", "templates", "layout", "plan",
    "passes", "runtime", "calibration", "exact", "tuning", "pipeline", "fused", "api", "operators",
    "ops", "nn", "integrations", "deploy",
    "observe", "observe.record", "observe.measure", "observe.predict", "observe.profile",
    "observe.report", "observe.views", "observe.entry", "__init__", "pytest_plugin", "zoo",
    "elsewhere", "cli", "__main__",
)  # fmt: skip
PRIVATE_TORCH = (  # the last: samples of torch's operators, which nothing public has
    "core/torch_private.py", "capture/torch_private.py", "runtime/torch_private.py",
    "exact/torch_private.py",
)  # fmt: skip
PUBLIC = ("integrations",)  # a package that users import from
_PUBLIC = {"__version__", "__file__", "__name__", "__dict__", "__class__"}


def _module(path: Path) -> str:
    """src/torchweld/ir/nodes.py -> torchweld.ir.nodes"""
    parts = ("torchweld", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {_module(p): p for p in sorted(PACKAGE.rglob("*.py"))}


@cache
def _nodes(module: str) -> list[ast.AST]:
    return _named(SOURCES[module].read_text())


def _named(text: str) -> list[ast.AST]:
    """Imports; and attributes of anything, where the text may have a private name of torch."""
    tree = ast.parse(text)
    nodes = ast.walk(tree) if re.search(r"\btorch\b[\w.]*\._", text) else _statements(tree)
    kinds = ast.Import, ast.ImportFrom, ast.Attribute
    return [node for node in nodes if isinstance(node, kinds)]


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """All, without their expressions: a thirteenth of the nodes."""
    bodies = ("body", "orelse", "finalbody", "handlers", "cases")
    for node in (n for name in bodies for n in getattr(tree, name, ())):
        yield node
        yield from _statements(node)


@cache
def _imports(module: str) -> list[tuple[int, str]]:
    """(line, module of this package) that it imports anywhere, inside functions and for type
    checking too."""
    found = []
    for node in _nodes(module):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found += [(node.lineno, _target(node.module, alias.name)) for alias in node.names]
    return [(line, name) for line, name in found if name.split(".")[0] == "torchweld"]


def _target(module: str, name: str) -> str:
    """`from torchweld.ir import affine` imports the module torchweld.ir.affine."""
    return f"{module}.{name}" if f"{module}.{name}" in SOURCES else module


def _layer(module: str) -> str:
    parts = module.split(".")
    inner = ".".join(parts[1:3])
    return inner if inner in LAYERS else parts[1] if len(parts) > 1 else "__init__"


def _where(module: str, line: int) -> str:
    return f"{SOURCES[module].relative_to(ROOT)}:{line}"


def test_every_folder_has_its_place():
    unknown = sorted({_layer(m) for m in SOURCES} - set(LAYERS))
    assert not unknown, (
        f"no place in the order of layers: {unknown}. Add them to docs/design.md and LAYERS."
    )


def test_imports_go_one_way():
    """A violation: move what is needed into the lower folder, or pass it in as an argument."""
    wrong = [
        f"{_where(module, line)}: {_layer(module)} may not import {target}: it comes after it"
        for module in SOURCES
        for line, target in _imports(module)
        if LAYERS.index(_layer(target)) > LAYERS.index(_layer(module))
    ]
    assert not wrong, "\n" + "\n".join(wrong) + f"\nThe order is {' '.join(LAYERS)}."


def test_imports_exist():
    wrong = [
        f"{_where(module, line)}: imports {target}, which does not exist"
        for module in SOURCES
        for line, target in _imports(module)
        if target not in SOURCES
    ]
    assert not wrong, "\n" + "\n".join(wrong)


def test_no_module_cycles():
    graph = {m: {t for _, t in _imports(m) if t != m} for m in SOURCES}
    cycle = _find_cycle(graph)
    assert not cycle, "modules import each other in a circle: " + " -> ".join(cycle)


def _find_cycle(graph: dict[str, set[str]]) -> list[str]:
    """One cycle as a path whose last node is its first; empty if there is none."""
    done: set[str] = set()

    def visit(node: str, path: list[str]) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return []
        for target in sorted(graph.get(node, ())):
            cycle = visit(target, [*path, node])
            if cycle:
                return cycle
        done.add(node)
        return []

    return next((c for c in (visit(m, []) for m in graph) if c), [])


def test_a_cycle_would_be_found():
    assert _find_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert _find_cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_private_torch_names_stay_in_three_modules():
    """torch._dynamo, torch._C, torch.fx._x, torch.utils._pytree and the like: through
    torch_private.py, with a reason."""
    wrong = [
        f"{_where(module, line)}: {name} is private: go through {' or '.join(PRIVATE_TORCH)}"
        for module, path in SOURCES.items()
        if path.relative_to(PACKAGE).as_posix() not in PRIVATE_TORCH
        for line, name in _private_torch_names(_nodes(module))
    ]
    assert not wrong, "\n" + "\n".join(wrong)


def _private_torch_names(nodes: list[ast.AST]) -> list[tuple[int, str]]:
    found = []
    for node in nodes:
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
        elif isinstance(node, ast.Attribute) and _is_of_torch(node):
            found.append((node.lineno, ast.unparse(node)))
    private = [(line, name) for line, name in found if _is_private(name)]
    return [
        (line, name)
        for line, name in private
        if not any(other.startswith(f"{name}.") for at, other in private if at == line)
    ]


def _is_of_torch(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id == "torch"


def _is_private(name: str) -> bool:
    """A dotted name under torch with a part that begins with an underscore; operator names of ATen
    are data, not API."""
    if not re.fullmatch(r"torch(\.\w+)+", name) or name.startswith(
        ("torch.ops.", "torch.return_types.")
    ):
        return False
    return any(part.startswith("_") and part not in _PUBLIC for part in name.split(".")[1:])


def test_private_names_are_recognised():
    text = """import torch._inductor
from torch.utils import _pytree
x = torch._C._y()
z = torch.ops.aten._softmax
self._torch = torch.float32"""
    assert [line for line, _ in _private_torch_names(_named(text))] == [1, 2, 3]


def test_sub_packages_re_export_nothing():
    full = [
        str(p.relative_to(ROOT)) for p in PACKAGE.glob("*/**/__init__.py")
        if p.read_text().strip() and p.parent.name not in PUBLIC
    ]  # fmt: skip
    assert not full, f"__init__ files of sub-packages stay empty: {full}"
