"""The built-in explainer: extracts a page's own sentences and terms; no network, no chance."""

# ruff: noqa: RUF001 - look-alike characters of real pages are the subject here.
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from services.runtime.settings import OFFLINE_MODEL
from services.worker.domain import (
    Description,
    Explanation,
    Image,
    Page,
    Sticker,
    StickerKind,
    numbered,
)
from services.worker.key_terms import Term, defines, rank_terms
from services.worker.markdown import clean_markdown, clean_text, clean_title, locate_quote, shorten
from services.worker.model import ModelBadOutput
from services.worker.page_text import Formula, PageText, Sentence, read_page, words
from services.worker.thinking import think

_SUMMARY_SENTENCES = 3
_MOST_TERMS = 6
_MOST_FORMULAS = 2
_TEXT_CHARACTERS = 1_200


@dataclass(frozen=True, kw_only=True)
class _Phrases:
    """The few words that are ours and not the page's."""

    in_short: str
    formula: str
    note: str
    picture: str
    unread_picture: str
    hidden: str
    unread_hidden: str


_PHRASES = {
    "en": _Phrases(
        in_short="In short",
        formula="Formula",
        note="*Sentences taken from this page as they stand; no language model was asked.*",
        picture="Picture",
        unread_picture=(
            "This page shows a picture and no text. The offline explainer cannot look at pictures;"
            " a language model can."
        ),
        hidden="Text you cannot see",
        unread_hidden=(
            "Some text of this page is hidden from its readers. The offline explainer cannot tell"
            " it from the rest and quotes none of it; a language model looks at the page as you do."
        ),
    ),
    "zh-Hans": _Phrases(
        in_short="要点",
        formula="公式",
        note="*以上内容逐句摘自本页原文，未经语言模型改写。*",
        picture="图片",
        unread_picture="本页只有图片，没有文字。离线解释器无法识别图片，语言模型可以。",
        hidden="看不见的文字",
        unread_hidden=(
            "本页有一部分文字读者看不见。离线解释器无法将其与其余文字区分，因此不作摘录；"
            "语言模型会像读者一样查看页面。"
        ),
    ),
}


class OfflineExplainer:
    """Deterministic and extractive: the same page always gives the same stickers."""

    model = OFFLINE_MODEL
    kind = "offline"
    sees = False

    async def explain(self, page: Page) -> Explanation:
        # Beside the loop, so that a long page does not hold up heartbeats.
        stickers = await think(extract_stickers, page)
        return Explanation(stickers=stickers, model=self.model)

    async def describe(self, image: Image) -> Description:
        raise ModelBadOutput("the offline explainer cannot look at pictures")


def extract_stickers(page: Page) -> tuple[Sticker, ...]:
    """The whole extraction; an empty page has nothing to say and gets no stickers."""
    phrases = _PHRASES.get(page.locale, _PHRASES["en"])
    if page.has_hidden_text:
        return numbered(
            [_unread_sticker(StickerKind.SUMMARY, phrases.hidden, phrases.unread_hidden)]
        )
    text = read_page(clean_text(page.text), page.neighbours)
    terms = rank_terms(text)
    summary = _summary(text, terms)
    stickers = [
        *_summary_sticker(summary, text, phrases),
        *_term_stickers(text, terms),
        *_formula_stickers(text.formulas, phrases),
    ]
    if not stickers and page.images_count:
        stickers = [_unread_sticker(StickerKind.FIGURE, phrases.picture, phrases.unread_picture)]
    return numbered(_anchored(sticker, page.text) for sticker in stickers)


def _unread_sticker(kind: StickerKind, title: str, body: str) -> Sticker:
    """Honest about what we cannot see: a reader who gets nothing would think nothing is there."""
    return Sticker(sticker_id="", kind=kind, title=title, body_markdown=body, quote="")


def _anchored(sticker: Sticker, page_text: str) -> Sticker:
    return Sticker(
        sticker_id=sticker.sticker_id,
        kind=sticker.kind,
        title=clean_title(sticker.title),
        body_markdown=clean_markdown(sticker.body_markdown),
        quote=locate_quote(sticker.quote, page_text),
    )


def _summary(page: PageText, terms: list[Term]) -> list[Sentence]:
    """The most central sentences in the order of the page."""
    weights = {term.text.casefold(): term.weight for term in terms[:20]}
    distinct = list({sentence.text: sentence for sentence in reversed(page.sentences)}.values())
    scored = [(_centrality(sentence, weights), sentence) for sentence in distinct]
    best = sorted(scored, key=lambda pair: (-pair[0], pair[1].place))
    chosen: list[Sentence] = []
    for score, sentence in best:
        if score > 0 and not any(_alike(sentence.text, other.text) for other in chosen):
            chosen.append(sentence)
        if len(chosen) == _SUMMARY_SENTENCES:
            break
    return sorted(chosen, key=lambda sentence: sentence.place)


def _centrality(sentence: Sentence, weights: dict[str, float]) -> float:
    text = sentence.text
    if not _is_complete(sentence):
        return 0.0
    folded = text.casefold()
    score = sum(weight for term, weight in weights.items() if term in folded)
    score *= 1.5 if defines(text) else 1.0
    score *= 0.4 if text.endswith(("?", "？", ":", "：")) else 1.0
    score *= 0.5 if len(text) > 320 else 1.0
    return (score + 0.5) / (1 + 0.04 * sentence.place)


def _is_complete(sentence: Sentence) -> bool:
    text = sentence.text
    opens = text.lstrip("\"'“„‘«(")[:1]
    ends = text.rstrip("\"'”’»)")[-1:]
    if not (opens.isalnum() and not opens.islower()) or ends not in tuple(".!?:。！？："):
        return False
    return len(words(text)) >= 4 or len(re.findall("[\u3400-\u9fff]", text)) >= 8


def _alike(one: str, other: str) -> bool:
    first, second = _features(one), _features(other)
    shared = sum((first & second).values())
    return shared > 0.6 * min(first.total(), second.total())


def _features(text: str) -> Counter[str]:
    return Counter([*words(text.casefold()), *re.findall("[\u3400-\u9fff]{2}", text)])


def _summary_sticker(
    summary: list[Sentence], page: PageText, phrases: _Phrases
) -> Iterator[Sticker]:
    sentences = summary or page.sentences[:_SUMMARY_SENTENCES]
    texts = [sentence.text for sentence in sentences] or list(dict.fromkeys(page.headings))[:5]
    if not texts:
        return
    lines = "\n".join(f"- {_as_text(text)}" for text in texts)
    yield Sticker(
        sticker_id="",
        kind=StickerKind.SUMMARY,
        title=phrases.in_short,
        body_markdown=f"{lines}\n\n{phrases.note}",
        quote=page.headings[0] if page.headings else texts[0],
    )


def _term_stickers(page: PageText, terms: list[Term]) -> list[Sticker]:
    length = sum(len(sentence.text) for sentence in page.sentences)
    wanted = max(4, min(_MOST_TERMS, length // (50 if page.chinese else 180)))
    chosen: list[Sticker] = []
    told: set[str] = set()
    for term in terms:
        body = _sentences_about(term, told)
        if not body or len(chosen) == wanted:
            continue
        told.update(sentence.text for sentence in body)
        chosen.append(_term_sticker(term, body))
    return chosen


def _sentences_about(term: Term, told: set[str]) -> list[Sentence]:
    """One or two sentences: a definition if there is one, and none that another sticker told."""
    fresh = [sentence for sentence in term.sentences if sentence.text not in told]
    fresh = list({sentence.text: sentence for sentence in fresh}.values())
    usable = [sentence for sentence in fresh if _is_complete(sentence) or sentence.is_item]
    best = sorted(usable, key=lambda one: (not defines(one.text, term.text), one.place))
    return sorted(best[:2], key=lambda sentence: sentence.place)


def _term_sticker(term: Term, body: list[Sentence]) -> Sticker:
    defined = any(defines(sentence.text, term.text) for sentence in body)
    return Sticker(
        sticker_id="",
        kind=StickerKind.TERM if defined else StickerKind.CONCEPT,
        title=term.text[:1].upper() + term.text[1:],
        body_markdown="\n\n".join(_as_text(sentence.text) for sentence in body),
        quote=term.text,
    )


def _formula_stickers(formulas: tuple[Formula, ...], phrases: _Phrases) -> Iterator[Sticker]:
    for formula in formulas[:_MOST_FORMULAS]:
        # A lead that begins in the middle of a sentence leads nowhere.
        leads = formula.lead and not formula.lead[0].islower()
        lead = f"{_as_text(formula.lead)}\n\n" if leads else ""
        yield Sticker(
            sticker_id="",
            kind=StickerKind.FORMULA,
            title=f"{phrases.formula}: {shorten(formula.text, 60)}",
            body_markdown=f"{lead}`{formula.text.replace('`', '')}`",
            quote=formula.text,
        )


def _as_text(sentence: str) -> str:
    """A sentence of the page as Markdown that shows it literally."""
    escaped = re.sub(r"([\\`*_\[\]#|~])", r"\\\1", sentence)
    return shorten(escaped, _TEXT_CHARACTERS)
