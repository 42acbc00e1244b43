"""Messages of the right type with the worst values, made from the descriptors of the contract."""

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

DEEPEST = 3
HUGE = "x" * 100_000
TEXTS = [
    "",
    "\0",
    "a\0b",
    "\u202egnp.exe",
    "\u2066\u2069\ufeff",
    "\x1b[31m\r\n\x07",
    "\U0010ffff\ufffe",
    "é" * 500,
    HUGE,
    "../../etc/passwd",
    "'; DROP SCHEMA cache CASCADE; --",
    "{{7*7}} %s%n $(id)",
    "-1",
    "NaN",
    "9" * 40,
    "2026-02-31",
    "0001-01-01",
    "99999-12-31",
]
# What gets past the first checks, so that the next ones are met too.
PLAUSIBLE = [
    "alice",
    "en",
    "zh-Hans",
    "explain_page",
    "page_explanation",
    "document_markdown",
    "gpt-4.1-mini",
    "lecture",
    "PDF_TIMEOUT",
    "shared",
    "user:alice",
    "0" * 64,
    "00000000-0000-4000-8000-000000000000",
    "ffffffff-ffff-ffff-ffff-ffffffffffff",
    "https://127.0.0.1/",
    "2026-11-18",
]
NUMBERS = [0, 1, -1, 2, 7, 255, 10_000]
FLOATS = [0.0, -0.0, 1.0, float("nan"), float("inf"), float("-inf"), 1e308, 5e-324]
BYTES = [b"", b"\0", b"\xff\xfe", b"%PDF-1.7", b"y" * 100_000]

_SIGNED = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


def scalars(field: FieldDescriptor, known: Sequence[str]) -> st.SearchStrategy[Any]:
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        if field.type == FieldDescriptor.TYPE_BYTES:
            return st.sampled_from(BYTES) | st.binary(max_size=40)
        anything = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
        return st.sampled_from(TEXTS) | st.sampled_from([*PLAUSIBLE, *known, *known]) | anything
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return st.booleans()
    if field.cpp_type in {FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT}:
        return st.sampled_from(FLOATS)
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        assert field.enum_type is not None
        named = [value.number for value in field.enum_type.values]
        return st.sampled_from([*named, *named, -1, 99, 2**31 - 1])
    least, most = _SIGNED[field.cpp_type]
    fitting = [number for number in NUMBERS if least <= number]
    return st.sampled_from([*fitting, least, most]) | st.integers(least, most)


@st.composite
def messages(
    draw: st.DrawFn, descriptor: Descriptor, known: Sequence[str] = (), depth: int = 0
) -> Message:
    """A message with some of its fields, each as bad as it can be; `known` ids lead far in."""
    message: Any = GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if draw(st.booleans()) or draw(st.booleans()):
            _fill(draw, message, field, known, depth)
    return message  # type: ignore[no-any-return]


def _fill(
    draw: st.DrawFn, message: Any, field: FieldDescriptor, known: Sequence[str], depth: int
) -> None:
    nested = field.message_type
    if nested is None:
        if field.is_repeated:
            getattr(message, field.name).extend(draw(st.lists(scalars(field, known), max_size=4)))
        else:
            setattr(message, field.name, draw(scalars(field, known)))
        return
    if depth >= DEEPEST:
        return
    if nested.GetOptions().map_entry:
        value = nested.fields_by_name["value"].message_type
        assert value is not None, "the only map of the contract is that of a Struct"
        for key in draw(st.lists(st.sampled_from(TEXTS + PLAUSIBLE), max_size=3)):
            entry = getattr(message, field.name)[key]
            entry.CopyFrom(draw(messages(value, known, depth + 1)))
    elif field.is_repeated:
        items = draw(st.lists(messages(nested, known, depth + 1), max_size=3))
        getattr(message, field.name).extend(items)
    else:
        getattr(message, field.name).CopyFrom(draw(messages(nested, known, depth + 1)))


# What a field of this name holds in a request that is served; the rest may stay as it is.
USUAL: dict[str, Any] = {
    "user_id": "alice",
    "page": 1,
    "pages": 1,
    "locale": "en",
    "endpoint": "explain_page",
    "operation": "summarise",
    "worker_id": "fuzz",
    "model": "gpt-4.1-mini",
    "outcome": 1,
    "effective_mode": 1,
    "reason": "FUZZ",
    "attempt": 1,
    "ref_type": "lecture",
}


def served(descriptor: Descriptor, known: Mapping[str, str]) -> Message:
    """A message as a good caller would send it, as far as the names of its fields tell."""
    message: Any = GetMessageClass(descriptor)()
    for field in descriptor.fields:
        nested, value = field.message_type, known.get(field.name, USUAL.get(field.name))
        if nested is not None and not nested.full_name.startswith("google."):
            inner = served(nested, known)
            if field.is_repeated:
                getattr(message, field.name).append(inner)
            else:
                getattr(message, field.name).CopyFrom(inner)
        elif nested is None and value is not None:
            if field.type == FieldDescriptor.TYPE_STRING:
                value = str(value)
            elif isinstance(value, str):
                value = 1  # a number or a named value that has the name of a text elsewhere
            if field.is_repeated:
                getattr(message, field.name).append(value)
            else:
                setattr(message, field.name, value)
    return message  # type: ignore[no-any-return]


@st.composite
def poisoned(draw: st.DrawFn, descriptor: Descriptor, known: Mapping[str, str]) -> bytes:
    """Good but for one field, so that no earlier check keeps it from the one it is meant for."""
    message: Any = served(descriptor, known)
    part = message
    while True:
        field = draw(st.sampled_from([*part.DESCRIPTOR.fields] or [None]))
        if field is None:
            break
        nested = field.message_type
        if nested is None or nested.full_name.startswith("google."):
            part.ClearField(field.name)
            _fill(draw, part, field, (), 0)
            break
        part = getattr(part, field.name)
        part = part[0] if field.is_repeated else part
    content: bytes = message.SerializeToString()
    return content


@st.composite
def wire(draw: st.DrawFn, descriptor: Descriptor, known: Sequence[str] = ()) -> bytes:
    """Such a message as bytes; now and then with bytes that no library would send."""
    content = draw(messages(descriptor, known)).SerializeToString()[:3_000_000]
    kind = draw(st.sampled_from(["whole", "whole", "unknown", "flipped", "cut", "deep", "garbage"]))
    if kind == "unknown":
        return content + b"\xfa\x7f\x04left" + b"\xf8\xff\xff\xff\x0f\x01"
    if kind == "flipped" and content:
        place = draw(st.integers(0, len(content) - 1))
        # Among others: lone surrogates and overlong forms, where a string was.
        return content[:place] + draw(st.binary(min_size=1, max_size=4)) + content[place + 1 :]
    if kind == "cut":
        return content[: draw(st.integers(0, len(content)))]
    if kind == "deep":
        return content + nested(draw(st.sampled_from([50, 99, 2000])))
    if kind == "garbage":
        return draw(st.binary(max_size=200)) + b"\xed\xa0\x80"
    return content


def nested(levels: int) -> bytes:
    """Field 2 within field 2 within field 2: a Struct or a filter of itself, if it is one."""
    content = b""
    for _ in range(levels):
        length = len(content)
        size = bytearray()
        while length > 0x7F:
            size.append(length & 0x7F | 0x80)
            length >>= 7
        content = b"\x12" + bytes([*size, length]) + content
    return content


def fixed(descriptor: Descriptor) -> list[bytes]:
    """A handful that is the same every time, for measuring what they leave behind."""
    strings = [field for field in descriptor.fields if field.type == field.TYPE_STRING]
    single = [field for field in strings if not field.is_repeated]
    contents = [
        b"",
        b"\xff" * 64,
        b"\x0a\x02\xed\xa0",
        nested(99),
        nested(2000),
        b"\x08" + b"\xff" * 9,
    ]
    contents.append(struct.pack("<d", float("nan")) * 8)
    for text in ("\0", HUGE, "\u202e"):
        message: Any = GetMessageClass(descriptor)()
        for field in single:
            setattr(message, field.name, text)
        contents.append(message.SerializeToString())
    return contents
