"""Long pages are cut without loss and their explanations merged into one."""

from hypothesis import given
from hypothesis import strategies as st

from services.worker.chunks import CHUNK_CHARACTERS, MAX_CHUNKS, plan_chunks
from services.worker.domain import (
    MAX_STICKERS,
    Explanation,
    Page,
    Sticker,
    StickerKind,
    Usage,
)
from services.worker.merge import merge


def sticker(title: str, kind: StickerKind = StickerKind.TERM, body: str = "b") -> Sticker:
    return Sticker(sticker_id="x", kind=kind, title=title, body_markdown=body)


def cut(text: str) -> tuple[Page, ...]:
    page = Page(page=1, text=text, locale="en")
    return plan_chunks(page).cut(page)


def explanation(*stickers: Sticker, tokens: int = 1) -> Explanation:
    return Explanation(stickers=stickers, model="m", usage=Usage(input_tokens=tokens))


@given(st.lists(st.sampled_from(["word ", "line\n", "end.\n\n", "x" * 900]), max_size=60))
def test_cutting_a_page_loses_nothing(pieces: list[str]) -> None:
    text = "".join(pieces)[: 10 * CHUNK_CHARACTERS]

    parts = cut(text)

    assert "".join(part.text for part in parts) == text
    assert all(len(part.text) <= CHUNK_CHARACTERS for part in parts)


def test_a_page_is_cut_between_paragraphs_where_it_has_any() -> None:
    first, second = "a" * 4_000 + ".\n\n", "b" * 4_000

    parts = cut(first + second)

    assert [part.text for part in parts] == [first, second]


def test_an_endless_page_is_cut_off() -> None:
    parts = cut("word " * 10**6)

    assert len(parts) == MAX_CHUNKS


def test_merging_makes_one_summary_with_one_closing_remark() -> None:
    merged = merge(
        [
            explanation(sticker("In short", StickerKind.SUMMARY, "- one\n\n*note*"), tokens=2),
            explanation(sticker("In short", StickerKind.SUMMARY, "- two\n\n*note*"), tokens=3),
        ]
    )

    (summary,) = merged.stickers
    assert summary.body_markdown == "- one\n\n- two\n\n*note*"
    assert merged.usage.input_tokens == 5


def test_merging_drops_repeated_titles_and_numbers_the_rest() -> None:
    merged = merge([explanation(sticker("Tree"), sticker("Leaf")), explanation(sticker("tree"))])

    assert [(one.sticker_id, one.title) for one in merged.stickers] == [
        ("s1", "Tree"),
        ("s2", "Leaf"),
    ]


def test_merging_keeps_a_bounded_number_of_stickers() -> None:
    many = [explanation(*(sticker(f"T{part}-{n}") for n in range(9))) for part in range(3)]

    assert len(merge(many).stickers) == MAX_STICKERS


def test_merging_drops_what_was_said_before_under_another_title() -> None:
    body = "A heap is a tree in which every parent is larger than its children."
    merged = merge(
        [
            explanation(sticker("Heap", body=body), sticker("C", body="A language.")),
            explanation(
                sticker("The heap property", StickerKind.CONCEPT, body=body.upper()),
                sticker("heap", StickerKind.CONCEPT, body="Something else is told about it here."),
                sticker("C++", body="Another language."),
            ),
        ]
    )

    assert [one.title for one in merged.stickers] == ["Heap", "C", "C++"]


def test_merging_knows_chinese_text_that_was_said_before() -> None:
    merged = merge(
        [
            explanation(sticker("堆", body="堆是一种完全二叉树。")),
            explanation(
                sticker("堆结构", body="堆是一种完全二叉树。"),
                sticker("栈", body="栈中的元素后进先出。"),
            ),
        ]
    )

    assert [one.title for one in merged.stickers] == ["堆", "栈"]


def test_every_part_of_a_long_page_gets_its_share_of_the_stickers() -> None:
    parts = [explanation(*(sticker(f"T{part}-{n}") for n in range(12))) for part in range(4)]

    titles = [one.title for one in merge(parts).stickers]

    assert titles == [f"T{part}-{n}" for part in range(4) for n in range(3)]
