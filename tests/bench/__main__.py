"""`make bench`: every row, each in a process of its own, one table.

`python -m tests.bench 1 4` runs those two. Ends with 1 if a bar is missed, and with 2 if a row was
not run because a peer is not installed: that is never a pass.
"""

import asyncio
import json
import os
import platform
import re
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.bench.report import JSON_OPTION, Figure, figures_table

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results.json"
# Far beyond what any takes: a row that hangs must not hang the rest.
MOST_SECONDS = 300
LAST_WORDS = 12


@dataclass(kw_only=True)
class Outcome:
    """What came of a row: figures, or why there are none."""

    row: int
    module: str
    seconds: float = 0.0
    figures: list[Figure] = field(default_factory=list)
    not_run: str = ""
    failed: str = ""


def rows(wanted: Sequence[str]) -> list[tuple[int, str]]:
    """Number and module of each row, in order."""
    found = []
    for path in sorted(FOLDER.glob("row_*.py")):
        match = re.match(r"row_(\d+)_", path.name)
        assert match is not None, path
        if not wanted or match[1].lstrip("0") in wanted:
            found.append((int(match[1]), f"tests.bench.{path.stem}"))
    return found


async def measure(row: int, module: str) -> Outcome:
    outcome = Outcome(row=row, module=module)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="glossa-bench-") as folder:
        answer = Path(folder) / "figures.json"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, JSON_OPTION, str(answer)), stdout=DEVNULL, stderr=PIPE
        )
        try:
            async with asyncio.timeout(MOST_SECONDS):
                _, said = await process.communicate()
            if answer.exists():
                told = json.loads(answer.read_text())
                outcome.figures = [Figure(**figure) for figure in told.get("figures", ())]
                outcome.not_run = told.get("not_run", "")
                if not outcome.figures and not outcome.not_run:
                    outcome.failed = "the row measured nothing"
            else:
                outcome.failed = "\n".join(said.decode().splitlines()[-LAST_WORDS:])
        except TimeoutError:
            outcome.failed = f"no answer within {MOST_SECONDS} s"
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    outcome.seconds = time.monotonic() - began
    return outcome


async def measure_all(wanted: Sequence[tuple[int, str]], console: Console) -> list[Outcome]:
    outcomes = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        bar = progress.add_task("", total=len(wanted))
        for row, module in wanted:
            title = module.rpartition(".row_")[2].partition("_")[2].replace("_", " ")
            progress.update(bar, description=f"row {row}: {title}")
            outcomes.append(await measure(row, module))
            progress.advance(bar)
        progress.update(bar, description="all rows")
    return outcomes


def write_results(outcomes: Sequence[Outcome]) -> None:
    machine = {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load_average": os.getloadavg(),
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    rows_ = [
        asdict(outcome) | {"verdicts": [figure.verdict for figure in outcome.figures]}
        for outcome in outcomes
    ]
    RESULTS.write_text(json.dumps({"machine": machine, "rows": rows_}, indent=2) + "\n")


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """1 for a miss; whoever did not measure everything has not shown that everything is fast: 2."""
    verdicts = [figure.verdict for outcome in outcomes for figure in outcome.figures]
    if "MISSED" in verdicts or any(outcome.failed for outcome in outcomes):
        return 1
    return 2 if any(outcome.not_run for outcome in outcomes) else 0


def main() -> int:
    console = Console(width=max(Console().width, 140))
    wanted = rows(sys.argv[1:])
    if not wanted:
        numbers = sorted({row for row, _ in rows(())})
        console.print(f"there is no such row; there are {', '.join(map(str, numbers))}")
        return 2
    load = os.getloadavg()[0]
    console.print(f"{os.cpu_count()} cores, load {load:.1f} before the first row")
    outcomes = asyncio.run(measure_all(wanted, console))
    write_results(outcomes)
    figures = [figure for outcome in outcomes for figure in outcome.figures]
    absent = [(outcome.row, outcome.not_run) for outcome in outcomes if outcome.not_run]
    console.print(figures_table(figures, absent))
    for outcome in outcomes:
        if outcome.failed:
            console.print(f"[bold red]{outcome.module} failed:[/]\n{outcome.failed}", markup=True)
    missed = [figure for figure in figures if figure.verdict == "MISSED"]
    failed = [outcome for outcome in outcomes if outcome.failed]
    seconds = sum(outcome.seconds for outcome in outcomes)
    console.print(
        f"{len(figures) - len(missed)} of {len(figures)} figures reach their bar,"
        f" {len(absent)} rows not run, {len(failed)} failed; {seconds:.0f} s,"
        f" written to {RESULTS.relative_to(Path.cwd())}"
    )
    return exit_code(outcomes)


if __name__ == "__main__":
    sys.exit(main())
