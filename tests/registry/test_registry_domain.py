"""Rules that need nothing but Python: names, reading order, one flight per key."""

import asyncio

import pytest

from services.registry.domain import Owner, clean_filename
from services.registry.errors import BY_REASON, PdfUnreadable, pdf_error
from services.registry.reading_order import Block, reading_order
from services.runtime.single_flight import SingleFlight


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("", "document.pdf"),
        ("   ", "document.pdf"),
        ("..", "document.pdf"),
        ("/", "document.pdf"),
        ("slides.pdf", "slides.pdf"),
        ("Größe 图.pdf", "Größe 图.pdf"),
        ("/etc/passwd", "passwd"),
        ("C:\\Users\\me\\slides.pdf", "slides.pdf"),
        ("a\x00b\r\n\x1bc.pdf", "abc.pdf"),
        ("evil\u202efdp.exe", "evilfdp.exe"),
        ("x" * 300 + ".pdf", "x" * 251 + ".pdf"),
        ("x" * 300, "x" * 255),
    ],
)
def test_a_filename_is_shown_safely(name: str, kept: str) -> None:
    assert clean_filename(name) == kept


def test_an_owner_is_a_user_or_a_visitor() -> None:
    for fields in ({}, {"user_id": "a", "visitor_session_id": "b"}):
        with pytest.raises(AssertionError):
            Owner(**fields)


def test_every_reason_the_child_may_give_has_its_error() -> None:
    assert {pdf_error(reason).reason for reason in BY_REASON} == set(BY_REASON)
    assert isinstance(pdf_error("NEVER_HEARD_OF"), PdfUnreadable)


def block(text: str, left: float, top: float, right: float, bottom: float) -> Block:
    return Block(left=left, top=top, right=right, bottom=bottom, text=text)


def read(*blocks: Block) -> str:
    return " ".join(one.text for one in reading_order(blocks, page_width=600))


def test_blocks_below_each_other_are_read_downwards() -> None:
    assert read(block("b", 50, 200, 550, 250), block("a", 50, 100, 550, 150)) == "a b"


def test_columns_between_a_heading_and_a_footer_are_read_in_turn() -> None:
    assert (
        read(
            block("footer", 250, 700, 350, 710),
            block("right-1", 310, 100, 550, 300),
            block("left-2", 50, 210, 290, 400),
            block("heading", 50, 50, 550, 80),
            block("right-2", 310, 310, 550, 400),
            block("left-1", 50, 100, 290, 200),
        )
        == "heading left-1 left-2 right-1 right-2 footer"
    )


def test_columns_whose_paragraphs_line_up_are_still_columns() -> None:
    assert (
        read(
            block("l1", 50, 100, 290, 200),
            block("r1", 310, 100, 550, 200),
            block("l2", 50, 210, 290, 300),
            block("r2", 310, 210, 550, 300),
        )
        == "l1 l2 r1 r2"
    )


def test_bullets_stay_with_their_lines() -> None:
    assert (
        read(
            block("•", 50, 100, 56, 110),
            block("first", 70, 100, 400, 110),
            block("•", 50, 120, 56, 130),
            block("second", 70, 120, 400, 130),
        )
        == "• first • second"
    )


def test_pieces_of_a_formula_are_read_from_left_to_right() -> None:
    assert (
        read(
            block("c", 324, 326, 390, 344),
            block("b", 279, 328, 320, 344),
            block("a", 246, 329, 275, 341),
        )
        == "a b c"
    )


def test_a_page_without_text_has_no_order() -> None:
    assert reading_order([], page_width=600) == []


async def test_everyone_who_asks_at_once_shares_one_flight() -> None:
    flights: SingleFlight[str, int] = SingleFlight()
    calls, landed = 0, asyncio.Event()

    async def work() -> int:
        nonlocal calls
        calls += 1
        await landed.wait()
        return calls

    asked = [asyncio.create_task(flights.run("key", work)) for _ in range(5)]
    await asyncio.sleep(0)
    landed.set()

    assert await asyncio.gather(*asked) == [1] * 5
    assert await flights.run("key", work) == 2


async def test_a_passenger_who_leaves_does_not_stop_the_flight() -> None:
    flights: SingleFlight[str, str] = SingleFlight()
    started, landed = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        started.set()
        await landed.wait()
        return "arrived"

    leaving = asyncio.create_task(flights.run("key", work))
    staying = asyncio.create_task(flights.run("key", work))
    await started.wait()
    leaving.cancel()
    await asyncio.wait([leaving])
    landed.set()

    assert await staying == "arrived"


async def test_a_failed_flight_fails_for_all_and_is_tried_again() -> None:
    flights: SingleFlight[str, str] = SingleFlight()

    async def fail() -> str:
        raise LookupError

    async def succeed() -> str:
        return "fine"

    asked = await asyncio.gather(
        *(flights.run("key", fail) for _ in range(3)), return_exceptions=True
    )
    assert [type(answer) for answer in asked] == [LookupError] * 3
    assert await flights.run("key", succeed) == "fine"
