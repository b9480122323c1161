"""Tables on a terminal, of profiles and of reports alike."""

from __future__ import annotations

from rich.table import Table


def table_of(first: str, *others: str, title: str) -> Table:
    """A column of text that folds, then columns of figures."""
    table = Table(title=title, title_justify="left", title_style="bold", pad_edge=False, box=None)
    table.add_column(first, ratio=None, overflow="fold")
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def and_more(table: Table, rows: int, shown: int) -> Table:
    """`table` with a line below that tells of the rows that it does not show."""
    if rows > shown:
        table.caption = f"and {rows - shown} more (--json FILE has all)"
        table.caption_justify = "left"
    return table
