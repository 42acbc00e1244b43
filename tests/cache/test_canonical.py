"""The key of a response: the same for what means the same, another for everything else.

The golden vectors are canonical JSON (RFC 8785) written by hand; only `hashlib` is asked.
"""

import hashlib
from typing import Any

import pytest

from services.cache.canonical import response_key
from services.runtime.errors import InvalidInput


def key(question: dict[str, Any], *, operation: str = "summarise", scope: str = "") -> str:
    return response_key(operation, question, scope)


def written(canonical_input: str) -> str:
    """The key of an input whose canonical form somebody has written down."""
    text = f'{{"input":{canonical_input},"operation":"summarise","scope":""}}'
    return hashlib.sha256(text.encode()).hexdigest()


GOLDEN: list[tuple[dict[str, Any], str]] = [
    ({}, "{}"),
    ({"a": "b"}, '{"a":"b"}'),
    ({"b": 1.0, "a": 2.0}, '{"a":2,"b":1}'),
    (
        {"a": {"y": [1.0, {"n": None, "m": True}], "x": False}},
        '{"a":{"x":false,"y":[1,{"m":true,"n":null}]}}',
    ),
    ({"a": [], "b": [[]], "c": {}}, '{"a":[],"b":[[]],"c":{}}'),
    # Numbers as ECMAScript writes them.
    ({"n": 0.1}, '{"n":0.1}'),
    ({"n": -0.0}, '{"n":0}'),
    ({"n": 1e21}, '{"n":1e+21}'),
    ({"n": 1e20}, '{"n":100000000000000000000}'),
    ({"n": 1e-7}, '{"n":1e-7}'),
    ({"n": 1e-6}, '{"n":0.000001}'),
    ({"n": 4.5}, '{"n":4.5}'),
    ({"n": 0.1 + 0.2}, '{"n":0.30000000000000004}'),
    ({"n": 333333333.33333329}, '{"n":333333333.3333333}'),
    ({"n": 2.0**53}, '{"n":9007199254740992}'),
    ({"n": 5e-324}, '{"n":5e-324}'),
    ({"n": -1.7976931348623157e308}, '{"n":-1.7976931348623157e+308}'),
    # Letters stay as they are; only what JSON cannot hold is escaped.
    ({"t": "€ é 汉字 🎓"}, '{"t":"€ é 汉字 🎓"}'),
    ({"t": '"\\/\b\f\n\r\t\x0f\x7f'}, '{"t":"\\"\\\\/\\b\\f\\n\\r\\t\\u000f\x7f"}'),
    # Composed and decomposed are different texts.
    ({"t": "\u00e9"}, '{"t":"\u00e9"}'),
    ({"t": "e\u0301"}, '{"t":"e\u0301"}'),
    # Names in the order of their UTF-16 units: the emoji (d83d…) comes before the ligature (fb33).
    (
        {"\ufb33": 1.0, "😀": 2.0, "€": 3.0, "1": 4.0, "\r": 5.0},
        '{"\\r":5,"1":4,"€":3,"😀":2,"\ufb33":1}',
    ),
]


@pytest.mark.parametrize(("question", "canonical"), GOLDEN, ids=[pair[1] for pair in GOLDEN])
def test_golden_vectors(question: dict[str, Any], canonical: str) -> None:
    assert key(question) == written(canonical)


@pytest.mark.parametrize(
    ("operation", "question", "scope", "digest"),
    [
        ("summarise", {}, "", "c29c3c2992badb5e5ad712e08b2c0ef66770666969bf94d47ec7793b65532674"),
        (
            "summarise",
            {"page": 1.0, "text": "Entropy"},
            "",
            "0477de2134fdce5b581a71be4182fbc48623a37ed6ab59c7c0fd869925b5e544",
        ),
        (
            "summarise",
            {"page": 1.0, "text": "Entropy"},
            "user:alice",
            "83c197dd84ed1ca6554461b74576ac3d1c837282f485919db91abd50030448d2",
        ),
        (
            "translate",
            {"page": 1.0, "text": "Entropy"},
            "",
            "f024cd89f1d0cb064f88169485063165e2bf45aa087900a1dcca40e44c2b09ef",
        ),
    ],
)
def test_keys_never_change_from_release_to_release(
    operation: str, question: dict[str, Any], scope: str, digest: str
) -> None:
    assert response_key(operation, question, scope) == digest


def test_no_two_of_different_meaning_share_a_key() -> None:
    """The sources' encoding kept only listed names, so that all inputs had one key."""
    questions: list[dict[str, Any]] = [
        {},
        {"text": "a"},
        {"text": "b"},
        {"text": "a", "page": 1.0},
        {"text": "a", "page": 2.0},
        {"text": "a", "page": "1"},
        {"text": ["a"]},
        {"text": {"a": None}},
        {"text": {"a": 1.0}},
        {"text": None},
        {"text": True},
        {"text": 1.0},
        {"deep": {"er": {"still": [1.0, 2.0]}}},
        {"deep": {"er": {"still": [2.0, 1.0]}}},
    ]

    assert len({key(question) for question in questions}) == len(questions)


def test_operation_scope_and_input_cannot_be_mistaken_for_each_other() -> None:
    keys = {
        response_key("a", {"x": "b"}, ""),
        response_key("a", {"x": ""}, "b"),
        response_key("ab", {"x": ""}, ""),
        response_key("a", {}, "xb"),
        response_key('a","scope":"b', {}, ""),
        response_key("a", {}, "b"),
    }

    assert len(keys) == 6


def test_neither_the_order_of_names_nor_the_way_a_number_is_written_matters() -> None:
    one = {"a": 1.0, "b": {"c": 100.0, "d": [0.5]}}
    other = {"b": {"d": [5e-1], "c": 1e2}, "a": 1}

    assert key(one) == key(other)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_what_has_no_canonical_form_is_refused(number: float) -> None:
    with pytest.raises(InvalidInput) as refused:
        key({"deep": [{"n": number}]})

    assert refused.value.field == "input"
