"""The C++ that generated kernels may call. A kernel is compiled with what it uses of them, and no
more: parsing all of them takes gcc 15 ms and more, of 60 to 120 ms for a small kernel."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

KERNEL_MARK = "// The kernel.\n"  # between headers and kernel

_WORD = re.compile(r"\b(?:tw_\w+|TW\w*)")
# What an item may declare: functions, tables, types, macros.
_DECLARED = re.compile(
    r"\b(?:TW|static)\b(?: __attribute__\(\(noinline\)\))?[^(;{}=]*?\b([\w#]+)\("
    r"|\b(tw_\w+)\[\d+\] = |\bstruct (tw_\w+)|\b(tw_\w+) __attribute__\(\(vector_size"
    r"|#define (TW\w*)"
)


def with_headers(text: str, *headers: str) -> str:
    """`text`, a kernel, behind the items of the common header and then of `headers` that it uses,
    directly or through others."""
    items, declaring = _indexed("".join((common_header(), *headers)))
    wanted = set(declaring[None])
    left, seen = {*_WORD.findall(text)}.union(*(items[at][1] for at in wanted)), set()
    while left:
        seen.add(word := left.pop())
        for at in declaring.get(word, set()) - wanted:
            wanted.add(at)
            left |= items[at][1] - seen
    return "".join(items[at][0] for at in sorted(wanted)) + KERNEL_MARK + text


def kernel_alone(text: str) -> str:
    """What `with_headers` was given."""
    return text.partition(KERNEL_MARK)[2] or text


@cache
def common_header() -> str:
    """Vector types and mathematics: the text of fastmath.h and vectors.h."""
    here = Path(__file__)
    return "".join(here.with_name(name).read_text() for name in ("fastmath.h", "vectors.h"))


@cache
def _indexed(headers: str) -> tuple[list, dict]:
    """([text of an item, words in it], {name: items that declare it}). Under None: those that are
    always kept (pragmas, constants)."""
    texts, declaring = _items(headers), {None: set()}
    macros = {m[1]: t for t in texts for m in re.finditer(r"#define (TW_\w+)\(", t)}
    for at, text in enumerate(texts):
        for name in _declared(text, macros) or (None,):
            declaring.setdefault(name, set()).add(at)
    return [(text, frozenset(_WORD.findall(text))) for text in texts], declaring


def _declared(text: str, macros: dict[str, str]) -> set[str]:
    """A call of a macro declares what the macro does, with its first argument for `name`."""
    call = re.match(r"(TW_\w+)\((\w+)", text)
    found = _DECLARED.findall(macros[call[1]] if call else text)
    names = {name for groups in found for name in groups if name}
    if call is None:
        return names
    return {re.sub(r"^name$|##name", call[2], n) for n in names if not n.startswith("TW")}


def _items(headers: str) -> list[str]:
    """Functions, types, macros and so on, without comments; from #if to #endif is one."""
    items, lines, depth, conditions = [], [], 0, 0
    for line in re.sub(r"[ \t]*//.*", "", headers).splitlines():
        if not line:
            continue
        lines.append(line)
        conditions += line.startswith("#if") - line.startswith("#endif")
        depth += line.count("{") - line.count("}")
        called = lines[0].startswith("TW_") and line.endswith(")")
        ends = line.startswith("#") or line.endswith((";", "}")) or called
        if ends and not depth and not conditions and not line.endswith("\\"):
            items.append("\n".join(lines) + "\n")
            lines = []
    return items
