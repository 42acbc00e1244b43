"""The offline explainer is deterministic, extractive and sensible on lecture pages."""

# ruff: noqa: RUF001 - Chinese punctuation is part of what is tested.
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.runtime.settings import OFFLINE_MODEL
from services.worker.domain import Page, Sticker, StickerKind
from services.worker.markdown import locate_quote
from services.worker.offline import OfflineExplainer, extract_stickers

LECTURE = """CS 231: Operating Systems
Lecture 7
Virtual Memory
Virtual memory is an abstraction that gives every process its own private address space. The
operating system and the memory management unit (MMU) translate virtual addresses to phys-
ical addresses by means of page tables.
Why do we need it?
• Isolation: a process cannot read the memory of another process.
• Processes may use more memory than the machine has.
Page Faults
A page fault occurs when a process touches a page that is not in physical memory. The
kernel then loads the page from disk and restarts the instruction. Page faults are expensive,
because a disk is a hundred thousand times slower than memory.
The effective access time is
EAT = (1 - p) * m + p * f
where p is the page fault rate.
7 / 32
"""
CHINESE = """第三章 机器学习基础
监督学习是一种从带标签的数据中学习模型的方法。在监督学习中，训练数据由输入和对应的标签组
成，算法的目标是找到一个函数。过拟合是指模型在训练数据上表现很好，但在测试数据上表现较差的
现象。为了避免过拟合，可以使用正则化。损失函数用来衡量模型预测与真实标签之间的差距。梯度下降
沿着损失函数的负梯度方向更新参数，逐步减小损失函数的值。
12
"""


def stickers_of(text: str, *, locale: str = "en", beside: str = "") -> tuple[Sticker, ...]:
    return extract_stickers(Page(page=1, text=text, locale=locale, neighbours=(beside,)))


def kinds(stickers: tuple[Sticker, ...], kind: StickerKind) -> list[Sticker]:
    return [sticker for sticker in stickers if sticker.kind is kind]


async def test_it_says_what_it_is() -> None:
    explanation = await OfflineExplainer().explain(Page(page=1, text=LECTURE, locale="en"))

    assert explanation.model == OFFLINE_MODEL
    assert explanation.stickers[0].kind is StickerKind.SUMMARY
    assert "no language model was asked" in explanation.stickers[0].body_markdown


def test_the_same_page_always_gives_the_same_stickers() -> None:
    assert stickers_of(LECTURE) == stickers_of(LECTURE)


def test_a_lecture_page_yields_its_terms_with_their_definitions() -> None:
    terms = {sticker.title: sticker for sticker in stickers_of(LECTURE)}

    assert "Virtual memory is an abstraction" in terms["Virtual memory"].body_markdown
    assert "A page fault occurs when" in terms["Page fault"].body_markdown
    assert terms["Virtual memory"].kind is StickerKind.TERM


def test_a_formula_on_its_own_line_is_a_sticker_with_its_lead() -> None:
    (formula,) = kinds(stickers_of(LECTURE), StickerKind.FORMULA)

    assert formula.quote == "EAT = (1 - p) * m + p * f"
    assert formula.body_markdown.startswith("The effective access time is")


def test_every_quote_stands_on_the_page() -> None:
    for text in (LECTURE, CHINESE):
        for sticker in stickers_of(text):
            assert sticker.quote
            assert sticker.quote in text


def test_hyphenated_words_are_made_whole() -> None:
    assert "translate virtual addresses to physical addresses" in "".join(
        sticker.body_markdown for sticker in stickers_of(LECTURE)
    )


def test_page_numbers_and_running_heads_are_not_explained() -> None:
    page = "Prof. Example 4\nTrees\nA tree is a connected graph without cycles.\n17"
    beside = "Prof. Example 3\nGraphs are sets of nodes and edges.\n16"

    titles = {sticker.title for sticker in stickers_of(page, beside=beside)}

    assert "Tree" in titles
    assert not any("17" in title or "Example" in title for title in titles)


def test_lines_with_unreadable_glyphs_are_left_out() -> None:
    page = "A cusp is a singular point of a curve.\n(x, y) \ufffd\ufffd x3 = y2\n"

    assert not any("\ufffd" in str(sticker) for sticker in stickers_of(page))


def test_chinese_pages_are_read_in_chinese() -> None:
    stickers = stickers_of(CHINESE, locale="zh-Hans")
    titles = [sticker.title for sticker in stickers]

    assert titles[0] == "要点"
    assert {"监督学习", "损失函数", "过拟合"} <= set(titles)
    assert "未经语言模型改写" in stickers[0].body_markdown
    assert "训练数据由输入和对应的标签组成" in stickers[0].body_markdown


def test_headings_follow_the_locale_and_sentences_stay_in_their_language() -> None:
    stickers = stickers_of(LECTURE, locale="zh-Hans")

    assert stickers[0].title == "要点"
    assert "Virtual memory is an abstraction" in stickers[0].body_markdown


@pytest.mark.parametrize(("locale", "word"), [("en", "cannot look"), ("zh-Hans", "无法识别")])
def test_a_page_that_is_only_a_picture_is_told_so(locale: str, word: str) -> None:
    page = Page(page=1, text=" \n", locale=locale, images_count=1)

    [sticker] = extract_stickers(page)

    assert sticker.kind is StickerKind.FIGURE
    assert word in sticker.body_markdown


def test_an_empty_page_gets_no_stickers() -> None:
    assert stickers_of("") == ()
    assert stickers_of(" \n\n 12 \n") == ()


def test_markdown_of_a_page_is_shown_not_rendered() -> None:
    page = "A pointer is a *value* that names [memory](http://evil.example) in a <b>process</b>."

    body = stickers_of(page)[0].body_markdown

    assert "\\*value\\*" in body
    assert "evil.example" not in body
    assert "<b>" not in body


@given(st.text(max_size=400))
def test_any_text_is_survived(text: str) -> None:
    for sticker in stickers_of(text):
        assert sticker.title
        assert sticker.body_markdown
        assert not any(unicodedata.category(one) == "Cs" for one in sticker.body_markdown)
        assert sticker.quote == "" or locate_quote(sticker.quote, text)


@pytest.mark.parametrize(
    ("locale", "title"), [("en", "Text you cannot see"), ("zh-Hans", "看不见的文字")]
)
def test_of_a_page_with_hidden_text_it_says_only_that(locale: str, title: str) -> None:
    [sticker] = extract_stickers(
        Page(page=1, text=LECTURE, locale=locale, has_hidden_text=True, images_count=1)
    )

    assert (sticker.title, sticker.quote) == (title, "")
    assert "memory" not in sticker.body_markdown
