"""The terminal as every command sees it; free of everything that is slow to import."""

from rich.console import Console

WIDTH_LIMIT = 96


def make_console(*, stderr: bool = False) -> Console:
    # Long lines are hard to read, however wide the window is.
    return Console(highlight=False, width=min(Console().width, WIDTH_LIMIT), stderr=stderr)


def show_seconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
