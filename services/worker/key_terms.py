"""Finds the terms a page is about, by frequency, position, headings and definitions."""

# ruff: noqa: RUF001 - look-alike characters of real pages are the subject here.
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from services.worker.page_text import PageText, Sentence, words

_LONGEST_TERM_WORDS = 3


def _read_stop_words() -> tuple[frozenset[str], frozenset[str]]:
    text = Path(__file__).with_name("stop_words.txt").read_text("utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    never, alone = " ".join(lines).casefold().split("---")
    return frozenset(never.split()), frozenset(alone.split())


_NEVER, _NOT_ALONE = _read_stop_words()
# Where these are frequent, nouns are written with a capital.
_GERMAN = frozenset({"der", "die", "das", "und", "ist", "ein", "eine", "von", "für", "sei", "mit"})
_CHINESE_STOP = re.compile(
    "因为|所以|如果|我们|你们|他们|它们|可以|一个|一种|一些|这个|那个|以及|通过|对于|关于|由于|之间|"
    "应该|什么|没有|不是|为了|或者|并且|但是|因此|例如|进行|之后|之前|时候|其中|具有|包括|[的了在和与"
    "及或是有这那其也都就而但把被让从到向将很更最每各某]"
)
_NOT_FIRST = "上下中内外较不用为以所来等地得着"
_NOT_LAST = "上下中内外较不用为以所来等地得着过大小时后前高低多少"
_CHINESE_RUN = re.compile("[\u3400-\u9fff]+")
_DEFINES = (
    r"\b(?:is|are)\s+(?:an?|the|any|called|defined|known|said|one)\b|(?<!by )\bmeans\b(?! of)|"
    r"\brefers?\s+to\b|"
    r"\b(?:is|are)\s+\w+\s+(?:that|which)\b|\bdenotes?\b|\bconsists?\s+of\b|\bdescribes?\b|"
    r"\bheiß(?:t|en)\b|\bnennt\s+man\b|\bbezeichnet\b|\bist\s+(?:eine?|der|die|das)\b|"
    r"是指|称为|叫做|叫作|定义为|是一[种个类]|指的是|所谓"
)
_DEFINITION = re.compile(_DEFINES, re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Term:
    """A key term in the page's spelling, how much it matters, and the sentences that use it."""

    text: str
    weight: float
    sentences: tuple[Sentence, ...]


def defines(sentence: str, term: str = "") -> bool:
    """Whether a sentence defines something: with a term, whether the term comes before the cue."""
    cue = _DEFINITION.search(sentence)
    if not cue or not term:
        return bool(cue)
    place = sentence.casefold().find(term.casefold())
    near_start = 0 <= place <= cue.start() and place <= 15
    # "… is called X", "… heißt X", "称为X": the term follows the cue.
    named = re.search(
        r"called|known as|heiß|nennt|bezeichnet|称为|叫", cue[0] + sentence[cue.end() :][:4]
    )
    return near_start or bool(named and cue.end() <= place <= cue.end() + 40)


def rank_terms(page: PageText) -> list[Term]:
    """The page's terms, the weightiest first; equal ones in the order of their appearance."""
    read = _reader(page)
    found: dict[str, _Finding] = {}
    for sentence in page.sentences:
        for phrase in read(sentence.text):
            found.setdefault(_stem(phrase), _Finding()).add(phrase, sentence)
    for heading in page.headings:
        for phrase in read(heading):
            if _stem(phrase) in found:
                found[_stem(phrase)].headings += 1
    kept = [finding for key, finding in found.items() if not _is_fragment(key, found)]
    if page.chinese:  # a run of characters that does not come back is hardly a word
        kept = [finding for finding in kept if finding.count > 1]
    terms = [finding.as_term() for finding in kept]
    ranked = sorted(terms, key=lambda term: (-term.weight, term.sentences[0].place, term.text))
    return list(_without_overlaps(ranked))


class _Finding:
    """Everything seen of one candidate while reading the page."""

    def __init__(self) -> None:
        self.spellings: Counter[str] = Counter()
        self.sentences: list[Sentence] = []
        self.headings = 0

    def add(self, phrase: str, sentence: Sentence) -> None:
        self.spellings[phrase] += 1
        if sentence not in self.sentences[-1:]:
            self.sentences.append(sentence)

    @property
    def count(self) -> int:
        return self.spellings.total() + self.headings

    @property
    def name(self) -> str:
        spellings = self.spellings
        return min(spellings, key=lambda text: (-spellings[text], text[:1].isupper(), text))

    @property
    def is_defined(self) -> bool:
        return any(defines(sentence.text, self.name) for sentence in self.sentences)

    def as_term(self) -> Term:
        return Term(text=self.name, weight=self._weight(), sentences=tuple(self.sentences))

    def _weight(self) -> float:
        name, extra_words = self.name, self.name.count(" ")
        weight = min(self.count, 6) * (1 + 0.6 * extra_words) if self.count > 1 else 0.6
        weight *= 1.8 if self.headings else 1.0
        weight *= 2.0 if self.is_defined else 1.0
        weight *= 1.25 if name[:1].isupper() and not self._only_opens() else 1.0
        # Long words are rarely small talk.
        weight *= 1.2 if len(name) >= 9 else 0.7 if _is_slight(name) else 1.0
        return weight / (1 + 0.02 * self.sentences[0].place)

    def _only_opens(self) -> bool:
        """Capitals at the start of a sentence say nothing."""
        return all(sentence.text.startswith(self.name) for sentence in self.sentences)


def _is_slight(name: str) -> bool:
    return len(name) <= 3 and name.isascii() and not name.isupper()


def _reader(page: PageText) -> Callable[[str], Iterator[str]]:
    if page.chinese:
        return _chinese_candidates
    found = Counter(word for sentence in page.sentences for word in words(sentence.text))
    german = sum(found[word] for word in _GERMAN) > 0.06 * found.total()
    return _german_candidates if german else _candidates


def _candidates(text: str) -> Iterator[str]:
    for clause in re.split(r"[,;:()\[\]{}“”„\"«»–—|=<>≤≥/]|\.\s|\s-+\s", text):
        found = words(clause)
        for start in range(len(found)):
            for length in range(1, _LONGEST_TERM_WORDS + 1):
                phrase = found[start : start + length]
                if len(phrase) == length and _may_be_term(phrase) and _adjacent(phrase, clause):
                    yield " ".join(phrase)


def _german_candidates(text: str) -> Iterator[str]:
    return (phrase for phrase in _candidates(text) if phrase.split()[-1][0].isupper())


def _adjacent(phrase: list[str], clause: str) -> bool:
    return len(phrase) == 1 or " ".join(phrase) in clause


def _may_be_term(phrase: list[str]) -> bool:
    if any(word.casefold() in _NEVER or len(word) < 3 for word in phrase):
        return False
    ends = phrase[-1].casefold()
    if len(phrase) == 1 and ends in _NOT_ALONE:
        return False
    adverb = ends.endswith("ly") and len(ends) > 4
    return not adverb and not any(mark in word for word in phrase for mark in "'’")


def _chinese_candidates(text: str) -> Iterator[str]:
    for run in _CHINESE_RUN.findall(text):
        for piece in _CHINESE_STOP.split(run):
            for length in range(2, 7):
                for start in range(len(piece) - length + 1):
                    phrase = piece[start : start + length]
                    if phrase[0] not in _NOT_FIRST and phrase[-1] not in _NOT_LAST:
                        yield phrase
    yield from (word for word in words(text) if word.isascii() and _may_be_term([word]))


def _stem(phrase: str) -> str:
    """Joins singular and plural without knowing the language."""
    folded = phrase.casefold()
    if len(folded) > 4 and folded.endswith("ies"):
        return folded[:-3] + "y"
    plural = len(folded) > 4 and folded.endswith("s") and folded[-2] not in "sui"
    return folded[:-1] if plural else folded


def _is_fragment(key: str, found: dict[str, _Finding]) -> bool:
    """Whether "neural" is better said by "neural network"."""
    count = found[key].count
    return any(
        finding.is_defined or (finding.count > 1 and finding.count >= 0.25 * count)
        for other, finding in found.items()
        if len(other) > len(key) and _contains(other, key)
    )


def _contains(longer: str, key: str) -> bool:
    if key not in longer:
        return False
    return f" {key} " in f" {longer} " or not key.isascii()


def _without_overlaps(ranked: list[Term]) -> Iterator[Term]:
    kept: list[str] = []
    for term in ranked:
        key = _stem(term.text)
        if not any(key in other or other in key for other in kept):
            kept.append(key)
            yield term
