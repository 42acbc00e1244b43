"""Untrusted text becomes inert Markdown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.worker.markdown import (
    BODY_CHARACTERS,
    QUOTE_CHARACTERS,
    clean_markdown,
    clean_title,
    locate_quote,
)


@pytest.mark.parametrize(
    ("given_text", "kept"),
    [
        ("plain **bold** and `code`", "plain **bold** and `code`"),
        ("see [the docs](https://evil.example/x(1)) now", "see the docs now"),
        ("![a cat](data:image/png;base64,AAAA)", "a cat"),
        ("[![alt](http://a)](http://b)", "alt"),
        ("[text][ref]\n\n[ref]: javascript:alert(1)", "text"),
        ("go to https://www.evil.example/a", "go to evil.example/a"),
        ("<https://evil.example>", "evil.example"),
        ("a<script>alert(1)</script>b", "ab"),
        ("<img src=x onerror=alert(1)>after", "after"),
        ("<b>bold</b> <!-- hidden --> text", "bold  text"),
        ("javascript:alert(1)", "alert(1)"),
        ("<scr<script></script>ipt>alert(1)</script>", "alert(1)"),
        ("NUL\x00 and \ud800 lone \u202e override", "NUL and  lone  override"),
        ("if x<y and z>w", "if x< y and z>w"),
        ("a < b, c > d", "a < b, c > d"),
        ("<x-tag onclick=1>", "< x-tag onclick=1>"),
        ("[broken](http://a\nb)", "[broken] (a\nb)"),
        ("the data: three rows", "the data: three rows"),
    ],
)
def test_what_acts_is_dropped_and_words_stay(given_text: str, kept: str) -> None:
    assert clean_markdown(given_text) == kept


@given(st.text(alphabet=list("<>[]()!:/ab\x00\njscript@&\"'=-"), max_size=300))
def test_nothing_that_looks_like_a_tag_or_link_survives(text: str) -> None:
    cleaned = clean_markdown(text)

    assert not any(f"<{letter}" in cleaned for letter in "abcijprst/!")
    assert "](" not in cleaned
    assert "]:" not in cleaned
    assert "\x00" not in cleaned
    assert clean_markdown(cleaned) == cleaned


def test_layers_upon_layers_do_not_outlast_the_cleaning() -> None:
    nested = "<" * 300 + "b>" * 300 + "javascript:x"

    cleaned = clean_markdown(nested)

    assert "<b" not in cleaned
    assert "javascript:" not in cleaned


def test_bodies_and_titles_are_bounded() -> None:
    assert len(clean_markdown("word " * 10_000)) <= BODY_CHARACTERS
    assert clean_title("# A **title**\nover two lines") == "A **title** over two lines"
    assert len(clean_title("word " * 100)) <= 120


@pytest.mark.parametrize(
    ("quote", "found"),
    [
        ("physical addresses", "phys-\nical   addresses"),
        ("THE MMU", "The MMU"),
        ("deﬁnition", "definition"),
        ("not on the page", ""),
        ("", ""),
        ("set", "set"),
    ],
)
def test_a_quote_is_given_in_the_pages_own_spelling(quote: str, found: str) -> None:
    page = "Subset. The MMU finds phys-\nical   addresses. A definition of a set."

    assert locate_quote(quote, page) == found


def test_whole_words_are_preferred_to_parts_of_words() -> None:
    assert locate_quote("raum", "RAUMZEIT ist kein Raum.") == "Raum"
    assert locate_quote("学习", "机器学习基础") == "学习"


def test_a_long_quote_is_cut_but_stays_exact() -> None:
    page = "word " * 200

    quote = locate_quote(page, page)

    assert len(quote) <= QUOTE_CHARACTERS
    assert quote in page
