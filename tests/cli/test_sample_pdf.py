"""The hand-written lecture is a PDF that a strict reader opens without repairs."""

from typing import Any

import pymupdf

from services.cli.sample_pdf import LECTURE, lecture_pdf


def opened(nonce: str) -> Any:
    document: Any = pymupdf.Document  # which has no types
    return document(stream=lecture_pdf(nonce), filetype="pdf")


def test_the_lecture_opens_with_all_its_text_and_needs_no_repair() -> None:
    with opened("abc123") as document:
        pages = [" ".join(page.get_text().split()) for page in document]
        assert not document.is_repaired
        assert document.metadata["subject"] == "Handout abc123"

    assert len(pages) == len(LECTURE) == 3
    for slide, text in zip(LECTURE, pages, strict=True):
        assert slide.title in text
        assert all(paragraph in text for paragraph in slide.paragraphs)


def test_no_line_runs_over_the_edge_of_the_page() -> None:
    with opened("abc123") as document:
        for page in document:
            right_edges = [word[2] for word in page.get_text("words")]
            assert max(right_edges) < page.rect.width - 20


def test_every_run_has_other_words_on_every_page() -> None:
    texts = []
    for nonce in ("one", "two"):
        with opened(nonce) as document:
            texts.append([page.get_text() for page in document])

    assert all(first != second for first, second in zip(*texts, strict=True))


def test_the_same_nonce_gives_the_same_bytes() -> None:
    assert lecture_pdf("x") == lecture_pdf("x")
