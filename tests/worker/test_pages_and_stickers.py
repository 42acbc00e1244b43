"""Long pages are cut without loss and their explanations merged into one."""

from hypothesis import given
from hypothesis import strategies as st

from services.worker.domain import (
    CHUNK_CHARACTERS,
    MAX_CHUNKS,
    MAX_STICKERS,
    Explanation,
    Page,
    Sticker,
    StickerKind,
    Usage,
    chunks,
    merge,
)


def sticker(title: str, kind: StickerKind = StickerKind.TERM, body: str = "b") -> Sticker:
    return Sticker(sticker_id="x", kind=kind, title=title, body_markdown=body)


def explanation(*stickers: Sticker, tokens: int = 1) -> Explanation:
    return Explanation(stickers=stickers, model="m", usage=Usage(input_tokens=tokens))


@given(st.lists(st.sampled_from(["word ", "line\n", "end.\n\n", "x" * 900]), max_size=60))
def test_cutting_a_page_loses_nothing(pieces: list[str]) -> None:
    text = "".join(pieces)[: 10 * CHUNK_CHARACTERS]

    parts = chunks(Page(page=1, text=text, locale="en"))

    assert "".join(part.text for part in parts) == text
    assert all(len(part.text) <= CHUNK_CHARACTERS for part in parts)


def test_a_page_is_cut_between_paragraphs_where_it_has_any() -> None:
    first, second = "a" * 4_000 + ".\n\n", "b" * 4_000

    parts = chunks(Page(page=1, text=first + second, locale="en"))

    assert [part.text for part in parts] == [first, second]


def test_an_endless_page_is_cut_off() -> None:
    parts = chunks(Page(page=1, text="word " * 10**6, locale="en"))

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
