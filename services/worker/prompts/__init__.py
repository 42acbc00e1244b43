"""What models are told, as files; `PROMPT_VERSION` changes with every one of them."""

from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent
FALLBACK_LOCALE = "en"


@cache
def explain_page(locale: str) -> str:
    """How to explain a page, written in the language the notes are to be written in."""
    file = FOLDER / f"explain_page.{locale}.md"
    known = file if file in prompt_files() else FOLDER / f"explain_page.{FALLBACK_LOCALE}.md"
    return known.read_text("utf-8")


@cache
def describe_image() -> str:
    """How to describe a picture; always in English, whoever reads the page."""
    return (FOLDER / "describe_image.md").read_text("utf-8")


def prompt_files() -> tuple[Path, ...]:
    return tuple(sorted(FOLDER.glob("*.md")))
