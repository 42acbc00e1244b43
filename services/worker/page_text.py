"""Reads the raw text of a PDF page: what is heading, list, formula, sentence, and what is noise."""

# ruff: noqa: RUF001 - look-alike characters of real pages are the subject here.
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

_LIGATURES = str.maketrans(
    {
        "\ufb00": "ff",
        "\ufb01": "fi",
        "\ufb02": "fl",
        "\ufb03": "ffi",
        "\ufb04": "ffl",
        "\ufb05": "st",
        "\ufb06": "st",
        "\u00a0": " ",
        "\u2009": " ",
        "\u202f": " ",
        "\u200b": None,
        "\u00ad": "-",
        "\u2028": "\n",
        "\u2029": "\n",
    }
)
_CJK = "\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(r"[^\W\d_](?:[^\W_]|(?<=\w)['’-](?=\w))*")
_LETTER_WORD = re.compile(r"[^\W\d_]{3,}")
_PAGE_NUMBER = re.compile(
    r"^\W*(?:(?:page|seite|slide|folie|p\.|第)\s*)?(?:\d{1,4}|[ivxlc]{1,6})"
    r"(?:\s*(?:/|of|von|页|頁|共)\s*\d{0,4}\s*页?)?\W*$",
    re.IGNORECASE,
)
_RUNNING_HEAD = re.compile(r"^(?:\d+(?:\.\d+)*\.?\s+)?[^a-z]{4,60}$")
_BULLET = re.compile(
    r"^(?:[•‣▪●◦○■□➢➤✓*–—·-]|\(?[ivx]{1,4}\)|\(?[a-zA-Z0-9]{1,2}\)|[①-⑳])\s*(?=\S)"
)
_SECTION = re.compile(r"^(?:\d{1,2}(?:\.\d{1,2})*\.?|[IVX]{1,4}\.|第.{1,3}[章节講讲])\s+\S")
_LABEL = re.compile(
    r"^(?P<label>definition|theorem|lemma|corollary|proposition|example|remark|exercise|"
    r"satz|korollar|beispiel|bemerkung|aufgabe|定义|定理|引理|推论|例|例题|备注)"
    r"\s*\d[\d.]*\.?:?\s*(?:\((?P<name>[^()]+)\))?[.:]?\s*$",
    re.IGNORECASE,
)
_CAPTION = re.compile(r"^(?:figure|fig\.|table|abbildung|abb\.|tabelle|图|表)\s*\d", re.IGNORECASE)
_FOOTNOTE = re.compile(r"^\d{1,2}\s?[A-ZÄÖÜ„“\"][a-zäöü„“]")
_EQUATION = re.compile(r"[=≤≥≈≡⇔∼∝]")
_RELATION = re.compile(r"[=≤≥≈≡⇔⇒→↦∈⊆⊂∼∝<>]|:=")
_SENTENCE_END = re.compile(
    r"(?<=[.!?…])[\"'”’»)\]]*\s+(?=[\"'“„‘«(\[]*[^\W_a-zß-öø-ÿ])|(?<=[。！？；])"
)
_ABBREVIATION = re.compile(
    r"\b(?:e\.g|i\.e|etc|cf|vs|dr|prof|mr|mrs|ms|st|fig|figs|eq|eqs|no|nr|vol|pp?|ch|sec|ed|al|"
    r"vgl|bzw|ca|usw|abb|bsp|evtl|ggf|sog|resp|approx|inc|z|d|u)\.$",
    re.IGNORECASE,
)
# "J. Smith" goes on after the full stop, "a point of X." does not.
_INITIAL = re.compile(r"(?:^|\b[A-Z][\w.]*\s)[A-Z]\.$")


# A sentence ends inside the line: this is running text.
_CLOSED = re.compile(r"[^\d\sIVX][.!?]\d*(?:\s|$)|[。！？]")


class LineKind(Enum):
    NOISE = "noise"
    HEADING = "heading"
    LABEL = "label"
    BULLET = "bullet"
    FORMULA = "formula"
    PROSE = "prose"


@dataclass(frozen=True, kw_only=True)
class Line:
    kind: LineKind
    text: str
    # The first of its block: there is an empty line before it.
    opens: bool = False


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """A sentence or list item, the heading it stands under, and its place on the page."""

    text: str
    place: int
    heading: str = ""
    is_item: bool = False


@dataclass(frozen=True, kw_only=True)
class Formula:
    """A formula on a line of its own, with the sentence that leads to it."""

    text: str
    lead: str


@dataclass(frozen=True, kw_only=True)
class PageText:
    headings: tuple[str, ...]
    sentences: tuple[Sentence, ...]
    formulas: tuple[Formula, ...]
    chinese: bool


def words(text: str) -> list[str]:
    return _WORD.findall(text)


def is_chinese(text: str) -> bool:
    letters = sum(character.isalpha() for character in text)
    return letters > 0 and len(re.findall(f"[{_CJK}]", text)) > 0.25 * letters


def read_page(text: str, neighbours: Iterable[str] = ()) -> PageText:
    """Takes a page apart. Lines that the neighbours repeat at their edges are running heads."""
    lines = read_lines(text, neighbours)
    chinese = is_chinese(text)
    return PageText(
        headings=tuple(heading_text(line.text) for line in lines if line.kind is LineKind.HEADING),
        sentences=tuple(_sentences(lines, chinese)),
        formulas=tuple(_formulas(lines)),
        chinese=chinese,
    )


def read_lines(text: str, neighbours: Iterable[str] = ()) -> list[Line]:
    """The lines of a page and what each of them is; empty ones are left out."""
    every = [line.strip() for line in text.translate(_LIGATURES).splitlines()]
    opening = [not before for before, line in zip(["", *every], every, strict=False) if line]
    raw = [line for line in every if line]
    repeated = {edge for page in neighbours for edge in _edges(page)}
    return [
        Line(kind=kind, text=line, opens=opens)
        for (kind, line), opens in zip(_classified(raw, repeated), opening, strict=True)
    ]


def heading_text(line: str) -> str:
    """A heading without its number; a label by its name where it has one."""
    label = _LABEL.match(line)
    if label:
        return label["name"] or line.rstrip(".: ")
    return re.sub(r"^(?:\d{1,2}(?:\.\d{1,2})*\.?|[IVX]{1,4}\.)\s+", "", line).rstrip(":： ")


def bullet_text(line: str) -> str:
    """A list item without its sign."""
    return _BULLET.sub("", line)


def _edges(page: str) -> set[str]:
    lines = [line.strip() for line in page.translate(_LIGATURES).splitlines() if line.strip()]
    return {_without_digits(line) for line in [*lines[:3], *lines[-3:]]}


def _without_digits(line: str) -> str:
    return re.sub(r"[\d\s]+", "", line).casefold()


def _classified(raw: list[str], repeated: set[str]) -> Iterator[tuple[LineKind, str]]:
    previous = ""
    footnotes = _first_footnote(raw)
    for index, line in enumerate(raw):
        at_edge = index < 3 or index >= len(raw) - 3
        following = raw[index + 1] if index + 1 < len(raw) else ""
        running = at_edge and _is_running_head(line, index, repeated)
        if index >= footnotes or running or _is_noise(line):
            previous = ""
            yield LineKind.NOISE, line
            continue
        kind = _kind(line, previous, following)
        previous = line
        yield kind, line


def _first_footnote(raw: list[str]) -> int:
    """Where the notes at the foot of the page begin; a numbered heading is not so far down."""
    bottom = max(len(raw) - 6, len(raw) // 2)
    found = (index for index in range(bottom, len(raw)) if _FOOTNOTE.match(raw[index]))
    return next(found, len(raw))


def _is_noise(line: str) -> bool:
    # U+FFFD stands for glyphs that the PDF does not name: such a line cannot be quoted.
    if _PAGE_NUMBER.match(line) or _CAPTION.match(line) or "\ufffd" in line:
        return True
    if re.search(f"[{_CJK}]{{2}}", line):
        return False
    return not _LETTER_WORD.search(line) and not _is_formula(line)


def _is_running_head(line: str, index: int, repeated: set[str]) -> bool:
    bare = _without_digits(line)
    if bare in repeated and len(bare) > 2:
        return True
    # "1.2. METRIC SPACES" at the very top repeats the section's title in capitals.
    return index < 2 and bool(re.match(r"^\d", line)) and bool(_RUNNING_HEAD.match(line))


def _is_formula(line: str) -> bool:
    if not _EQUATION.search(line) or not 8 <= len(line) <= 120:
        return False
    if re.search(f"[{_CJK}]{{2}}", line):
        return False
    known = {"sin", "cos", "tan", "exp", "log", "max", "min", "lim", "det", "dim", "ker", "mod"}
    plain = [word for word in _LETTER_WORD.findall(line) if word.casefold() not in known]
    sides = [side for side in _EQUATION.split(line, maxsplit=1) if re.search(r"\w", side)]
    return len(plain) <= 1 and len(sides) == 2 and _balanced(line)


def _balanced(line: str) -> bool:
    return all(
        line.count(opening) == line.count(closing) for opening, closing in ("()", "[]", "{}")
    )


def _kind(line: str, previous: str, following: str) -> LineKind:
    if _LABEL.match(line):
        return LineKind.LABEL
    if _is_formula(line):
        return LineKind.FORMULA
    if _BULLET.match(line):
        return LineKind.BULLET
    if _is_heading(line, previous, following):
        return LineKind.HEADING
    return LineKind.PROSE


def _is_heading(line: str, previous: str, following: str) -> bool:
    if len(line) > 70 or len(words(line)) > 9 or line[-1] in ".,;!?。，；！？…-(":
        return False
    if _RELATION.search(line) or not (line[0].isupper() or line[0].isdigit() or line[0] > "\u2e80"):
        return False
    if (following and following[0].islower()) or line.count(",") > 1 or _CLOSED.search(line):
        return False
    if _SECTION.match(line):
        return True
    closed = not previous or previous[-1] in ".!?:。！？：" or len(previous) <= 45
    return closed and (not _BULLET.match(following) or line.endswith((":", "：")))


def _sentences(lines: list[Line], chinese: bool) -> Iterator[Sentence]:
    place = 0
    for heading, is_item, text in _paragraphs(lines, chinese):
        for sentence in split_sentences(text):
            yield Sentence(text=sentence, place=place, heading=heading, is_item=is_item)
            place += 1


def _paragraphs(lines: list[Line], chinese: bool) -> Iterator[tuple[str, bool, str]]:
    heading, is_item, parts = "", False, list[str]()
    for line in lines:
        if line.kind is LineKind.FORMULA and parts and parts[-1][-1] not in ".:。：":
            parts.append(line.text)  # the sentence goes on through the formula
            continue
        breaks = line.kind is not LineKind.PROSE
        # A closed item followed by a new sentence is over; an open one runs on over the line break.
        breaks = breaks or bool(is_item and parts and parts[-1][-1] in ".。;；")
        if breaks and parts:
            yield heading, is_item, join_lines(parts, chinese)
            is_item, parts = False, []
        if line.kind in (LineKind.HEADING, LineKind.LABEL):
            heading = heading_text(line.text)
        elif line.kind is LineKind.BULLET:
            is_item, parts = True, [bullet_text(line.text)]
        elif line.kind is LineKind.PROSE:
            parts.append(line.text)
    if parts:
        yield heading, is_item, join_lines(parts, chinese)


def join_lines(parts: list[str], chinese: bool) -> str:
    """Undoes line breaks: hyphenated words are made whole, Chinese is joined without spaces."""
    joined = parts[0]
    for part in parts[1:]:
        if re.search(r"[^\W\d_]-$", joined) and part[0].islower():
            joined = joined[:-1] + part
        elif chinese and re.search(f"[{_CJK}，、。；：]$", joined) and part[0] > "\u2e80":
            joined += part
        else:
            joined += " " + part
    return re.sub(r"\s+", " ", joined)


def split_sentences(text: str) -> list[str]:
    sentences, start = [], 0
    for match in _SENTENCE_END.finditer(text):
        head = text[start : match.start()]
        if _ends_with_abbreviation(head):
            continue
        sentences.append(text[start : match.end()].strip())
        start = match.end()
    sentences.append(text[start:].strip())
    return [sentence for sentence in sentences if sentence]


def _ends_with_abbreviation(text: str) -> bool:
    tail = text[-24:]
    return bool(_ABBREVIATION.search(tail) or _INITIAL.search(tail))


def _formulas(lines: list[Line]) -> Iterator[Formula]:
    lead = ""
    for line in lines:
        if line.kind is LineKind.FORMULA:
            yield Formula(text=bullet_text(line.text).rstrip(".,; "), lead=lead)
        elif line.kind in (LineKind.HEADING, LineKind.LABEL):
            lead = heading_text(line.text)
        elif line.kind is not LineKind.NOISE:
            lead = bullet_text(line.text)
