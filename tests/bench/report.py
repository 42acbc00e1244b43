"""What a row of the table says, and how rows are run: alone, or one after the other."""

import asyncio
import json
import math
import statistics
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

JSON_OPTION = "--json"


class NotRun(Exception):
    """The other side of a comparison is missing: said so, and never a pass."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure of a row, and the bar it is held against."""

    row: int
    what: str
    ours: str
    # The limit or peer, measured in the same run.
    reference: str
    value: float
    unit: str
    bar: float
    # Whether the bar is the least or the most that passes.
    at_least: bool
    # What must hold besides, whatever the figure: nothing lost, one call, everybody answered.
    broken: str = ""
    # Why the bar cannot be judged on this machine; the figure is shown all the same.
    unjudged: str = ""

    @property
    def verdict(self) -> str:
        if self.broken:
            return "MISSED"
        if self.unjudged:
            return "not judged"
        reached = self.value >= self.bar if self.at_least else self.value <= self.bar
        return "ok" if reached and not math.isnan(self.value) else "MISSED"


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Round by round, for the machine is not the same from one round to the next."""
    return statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))


def figures_table(figures: Sequence[Figure], not_run: Sequence[tuple[int, str]] = ()) -> Table:
    table = Table(show_edge=False, header_style="bold")
    for name in ("row", "what", "Glossa", "limit or peer", "reached", "bar", ""):
        table.add_column(name, justify="right" if name in {"row", "reached", "bar"} else "left")
    for figure in figures:
        sign = "≥" if figure.at_least else "≤"
        colour = {"ok": "green", "MISSED": "bold red"}.get(figure.verdict, "yellow")
        why = figure.broken or figure.unjudged
        table.add_row(
            str(figure.row),
            figure.what,
            figure.ours,
            figure.reference,
            f"{_rounded(figure.value)} {figure.unit}",
            f"{sign} {figure.bar:g} {figure.unit}",
            f"[{colour}]{figure.verdict}[/]" + (f" ({why})" if why else ""),
        )
    for row, why in not_run:
        table.add_row(str(row), why, "", "", "", "", "[yellow]not run[/]")
    return table


def _rounded(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 10 else f"{value:,.0f}"


def standalone(run: Callable[[], Coroutine[Any, Any, list[Figure]]]) -> int:
    """The main function of a row: prints its part of the table, or writes it for who runs all."""
    try:
        figures = asyncio.run(run())
    except NotRun as missing:
        if JSON_OPTION in sys.argv:
            _write({"not_run": str(missing)})
        else:
            print(f"not run: {missing}")
        return 2
    if JSON_OPTION in sys.argv:
        _write({"figures": [asdict(figure) for figure in figures]})
    else:
        Console().print(figures_table(figures))
    return int(any(figure.verdict == "MISSED" for figure in figures))


def _write(content: dict[str, object]) -> None:
    Path(sys.argv[sys.argv.index(JSON_OPTION) + 1]).write_text(json.dumps(content))
