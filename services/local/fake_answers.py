"""What the loopback model server answers: as the real API does, and in every way it can fail."""

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

JSON = {"content-type": "application/json"}
NOTES = {
    "stickers": [
        {
            "kind": "summary",
            "title": "What this page says",
            "body_markdown": "It introduces its subject.",
            "quote": "",
        }
    ]
}
PICTURE = {"image_type": "diagram", "ocr_text": "", "alt_text": "A drawing with boxes and arrows."}
USAGE = {
    "input_tokens": 900,
    "input_tokens_details": {"cached_tokens": 100, "cache_write_tokens": 0},
    "output_tokens": 80,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 980,
}
HOSTILE = {
    "kind": "concept",
    "title": "<script>alert(1)</script>Heap",
    "body_markdown": (
        "A heap [grows](javascript:alert(1)) <img src=x onerror=alert(1)> up."
        " ![x](data:text/html;base64,PHNjcmlwdD4=) https://evil.example/steal"
    ),
    "quote": "",
}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One HTTP answer, sent as a whole unless told otherwise."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    # Tokens the provider bills once the answer has been sent.
    usage: Mapping[str, Any] | None = None
    # Never sends anything.
    hang: bool = False
    # Breaks the connection in the middle.
    reset: bool = False
    # Never stops sending.
    endless: bool = False
    # Sends a byte now and then, and never the last one.
    drips: bool = False


@dataclass(frozen=True, kw_only=True)
class Question:
    """A request as a model would read it."""

    body: Mapping[str, Any]

    @property
    def about(self) -> str:
        """What is asked for: the name of the output's schema."""
        name: str = self.body.get("text", {}).get("format", {}).get("name", "")
        return name

    @property
    def instructions(self) -> str:
        return str(self.body.get("instructions", ""))

    @property
    def text(self) -> str:
        return "".join(part.get("text", "") for part in self._parts())

    @property
    def material(self) -> dict[str, Any]:
        """What the user's message holds, when it is the JSON it should be."""
        try:
            found = json.loads(self.text)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def images(self) -> list[bytes]:
        """The pictures that were sent along; one that is not a data URL of base64 is refused."""
        return [
            base64.b64decode(part["image_url"].partition(";base64,")[2], validate=True)
            for part in self._parts()
            if part.get("type") == "input_image"
        ]

    def _parts(self) -> list[dict[str, Any]]:
        given = self.body.get("input", "")
        if isinstance(given, str):
            return [{"type": "input_text", "text": given}]
        return [part for message in given for part in message.get("content", [])]


def response(text: str, **changes: Any) -> dict[str, Any]:
    """A completed response as the API sends it, with `text` as its output."""
    content = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [content],
    }
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1_700_000_000,
        "status": "completed",
        "model": "gpt-4.1-mini",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "output": [message],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": dict(USAGE),
        **changes,
    }


def ok(document: Any) -> Answer:
    usage = document.get("usage") if isinstance(document, dict) else None
    return Answer(body=json.dumps(document).encode(), headers=JSON, usage=usage)


def notes(*stickers: Mapping[str, str]) -> Answer:
    return ok(response(json.dumps({"stickers": list(stickers)} if stickers else NOTES)))


def picture(**changes: str) -> Answer:
    return ok(response(json.dumps({**PICTURE, **changes})))


def usual(question: Question) -> Answer:
    """The same answer to everybody, in the form that was asked for."""
    return picture() if question.about == "image" else notes()


def refusal() -> Answer:
    document = response("")
    document["output"][0]["content"] = [{"type": "refusal", "refusal": "I cannot help with that."}]
    return ok(document)


def truncated() -> Answer:
    changes = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    return ok(response('{"stickers": [{"kind": "summ', **changes))


def error(status: int, code: str | None = None, **headers: str) -> Answer:
    body = {"error": {"message": "no", "type": "error", "param": None, "code": code}}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status=status, body=json.dumps(body).encode(), headers={**JSON, **named})


def lifelike(question: Question) -> Answer:
    """Speaks about the page it was given, and counts tokens as if by a tokenizer."""
    text = json.dumps(_picture(question) if question.about == "image" else _notes(question))
    cached = _tokens(question.instructions) // 128 * 128
    given = _tokens(question.instructions + question.text) + 765 * len(question.images)
    usage = {
        **USAGE,
        "input_tokens": given,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": _tokens(text),
        "total_tokens": given + _tokens(text),
    }
    return ok(response(text, usage=usage))


def _tokens(text: str) -> int:
    return len(text) // 4 + 1


def _notes(question: Question) -> dict[str, Any]:
    material = question.material
    lines = [line for line in str(material.get("page_text", "")).splitlines() if line.strip()]
    first = lines[0].strip() if lines else ""
    summary = {
        "kind": "summary",
        "title": "What this page says",
        "body_markdown": f"It begins with: {first}" if first else "It is a picture.",
        "quote": first,
    }
    terms = dict.fromkeys(re.findall(r"[^\W\d_]{6,}", " ".join(lines[1:])))
    others = [
        {
            "kind": "term",
            "title": term,
            "body_markdown": f"*{term}* matters here.",
            "quote": term,
        }
        for term in list(terms)[:3]
    ]
    return {"stickers": [summary, *others]}


def _picture(question: Question) -> dict[str, Any]:
    size = sum(len(image) for image in question.images)
    return {**PICTURE, "alt_text": f"A picture of {size} bytes."}


def _nul() -> Answer:
    return notes({"kind": "term", "title": "He\x00ap", "body_markdown": "B", "quote": ""})


def _html() -> Answer:
    return Answer(body=b"<html>Please sign in.</html>", headers={"content-type": "text/html"})


# Every way to fail, by the name `glossa fake-openai --fail` knows it by.
FAILURES: Mapping[str, Callable[[], Answer]] = {
    "rate-limit": lambda: error(429, "rate_limit_exceeded"),
    "retry-after": lambda: error(429, "rate_limit_exceeded", retry_after="2"),
    "insufficient-quota": lambda: error(429, "insufficient_quota"),
    "error-500": lambda: error(500),
    "error-503": lambda: error(503),
    "silence": lambda: Answer(hang=True),
    "drip": lambda: Answer(body=b'{"id": "resp_1",', headers=JSON, drips=True),
    "endless": lambda: Answer(body=b'{"id": "', headers=JSON, endless=True),
    "reset": lambda: Answer(body=b'{"id"', headers=JSON, reset=True),
    "html": _html,
    "empty": lambda: ok(response("", output=[])),
    "refusal": refusal,
    "truncated": truncated,
    "wrong-schema": lambda: ok(response('{"stickers": [{"kind": "joke"}]}')),
    "nul": _nul,
    "large": lambda: ok(response("x" * 10_000_000)),
    "script": lambda: notes(HOSTILE),
}


def problem_with(question: Question) -> str:
    """Why the real API would refuse this request; empty if it would not."""
    if not isinstance(question.body.get("model"), str):
        return "missing_model"
    output = question.body.get("text", {}).get("format", {})
    if output.get("type") == "json_schema" and not output.get("strict"):
        return "schema_is_not_strict"
    try:
        question.images  # noqa: B018 - reading them checks them
    except (KeyError, binascii.Error):
        return "invalid_image_url"
    return ""
