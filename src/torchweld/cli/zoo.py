"""`torchweld zoo`: the models that `report` knows by name."""
from __future__ import annotations

from rich.console import Console
from rich.table import Table

from torchweld.zoo.models import TABLE, Size


def show_zoo() -> None:
    """Prints the names of the zoo's models, with their sizes on a GPU and on a CPU."""
    table = Table(box=None, pad_edge=False)
    for column in ("name", "what", "on a GPU", "on a CPU"):
        table.add_column(column)
    for name, entry in TABLE.items():
        table.add_row(name, entry.what, _size(entry.cuda), _size(entry.cpu))
    Console().print(table)


def _size(size: Size) -> str:
    return f"batch {size.batch}" + (f", length {size.length}" if size.length else "")
