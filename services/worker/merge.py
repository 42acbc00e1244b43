"""Makes one explanation out of those of a page's chunks: one summary, nothing told twice."""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest

from services.worker.domain import (
    MAX_STICKERS,
    Explanation,
    Sticker,
    StickerKind,
    Usage,
    numbered,
)

# So many of a sticker's words must be another's before it tells nothing new.
SAME_BODY = 0.9
FEWEST_WORDS = 4


def merge(explanations: Sequence[Explanation]) -> Explanation:
    """The summaries become one, repetitions go, and every chunk gets its share of the room."""
    parts = [explanation.stickers for explanation in explanations]
    summary = _one_summary([one for part in parts for one in part if _is_summary(one)])
    others = [[one for one in part if not _is_summary(one)] for part in parts]
    stickers = [*summary, *_fair_share(others, room=MAX_STICKERS - len(summary))]
    return Explanation(
        stickers=numbered(stickers),
        model=explanations[0].model,
        usage=sum((explanation.usage for explanation in explanations), Usage()),
    )


def _is_summary(sticker: Sticker) -> bool:
    return sticker.kind is StickerKind.SUMMARY


def _one_summary(summaries: Sequence[Sticker]) -> list[Sticker]:
    if len(summaries) < 2:
        return list(summaries)
    paragraphs = [part for one in summaries for part in one.body_markdown.split("\n\n")]
    # Of equal paragraphs the last stays, so that a closing remark closes the whole.
    kept = list(dict.fromkeys(reversed(paragraphs)))[::-1]
    return [replace(summaries[0], body_markdown="\n\n".join(kept))]


def _fair_share(parts: Sequence[Sequence[Sticker]], *, room: int) -> list[Sticker]:
    """Chunks take turns until there is no room; what was taken stays in the order of the page."""
    places = [[(at, place) for place in range(len(part))] for at, part in enumerate(parts)]
    turns = [place for turn in zip_longest(*places) for place in turn if place is not None]
    distinct = _Distinct()
    taken = [
        (at, place) for at, place in turns if distinct.room(room) and distinct.add(parts[at][place])
    ]
    return [parts[at][place] for at, place in sorted(taken)]


class _Distinct:
    """Stickers that were taken already, by what a reader would recognise them by."""

    def __init__(self) -> None:
        self._titles: set[str] = set()
        self._bodies: list[set[str]] = []

    def room(self, most: int) -> bool:
        return len(self._bodies) < most

    def add(self, sticker: Sticker) -> bool:
        """Takes a sticker unless it says again what one before it said."""
        title, words = _folded(sticker.title), set(_words(sticker.body_markdown))
        if title in self._titles or any(_same(words, other) for other in self._bodies):
            return False
        self._titles.add(title)
        self._bodies.append(words)
        return True


def _same(words: set[str], other: set[str]) -> bool:
    # A short body shares its few words with many.
    if min(len(words), len(other)) < FEWEST_WORDS:
        return False
    return len(words & other) >= SAME_BODY * max(len(words), len(other))


def _folded(text: str) -> str:
    """White space aside; signs count, or C would be C++."""
    return "".join(unicodedata.normalize("NFKC", text).casefold().split())


def _words(text: str) -> Iterator[str]:
    """Words, and pairs of characters where a script writes no spaces."""
    for word in unicodedata.normalize("NFKC", text).casefold().split():
        letters = "".join(character for character in word if character.isalnum())
        if letters and letters[0] > "\u2e80":
            yield from (letters[at : at + 2] for at in range(max(1, len(letters) - 1)))
        elif letters:
            yield letters
