"""Reads an answer of the Responses API without trusting it: its shape, status and content."""

import json
import math
from typing import Any

import structlog
from pydantic import BaseModel, ValidationError

from services.worker.domain import Usage
from services.worker.markdown import clean_text
from services.worker.model import (
    ContentRefused,
    ModelBadOutput,
    ModelEmpty,
    ModelError,
    ModelForeignAnswer,
    ModelRateLimited,
    ModelTruncated,
    ModelUnavailable,
)

log = structlog.get_logger()

# Far above what any call can take; what is more is a mistake, and Quota would not record it.
MOST_TOKENS = 100_000_000
_REFUSALS = frozenset({"invalid_prompt", "bio_policy", "misalignment_policy_violation"})


class _Content(BaseModel):
    type: str
    text: str = ""
    refusal: str = ""


class _Item(BaseModel):
    type: str
    content: list[_Content] | None = None


class _Problem(BaseModel):
    code: str = ""


class _Incomplete(BaseModel):
    reason: str | None = None


class Answer(BaseModel):
    """The parts of a response that matter here."""

    status: str
    output: list[_Item] = []
    error: _Problem | None = None
    incomplete_details: _Incomplete | None = None
    # Of any shape: what is wrong with the count does not spoil an answer that was paid for.
    usage: Any = None

    @property
    def tokens(self) -> Usage:
        return Usage(
            input_tokens=_token_count(self.usage, "input_tokens"),
            cached_tokens=_token_count(self.usage, "input_tokens_details", "cached_tokens"),
            output_tokens=_token_count(self.usage, "output_tokens"),
        )


def _token_count(usage: Any, *path: str) -> int:
    """A number Quota takes, whatever the provider says; a person hears of odd ones."""
    told = usage
    for name in path:
        told = told.get(name) if isinstance(told, dict) else None
    is_number = isinstance(told, int | float) and not math.isnan(told)
    count = int(min(max(told, 0), MOST_TOKENS)) if is_number else 0
    if told is not None and told != count:
        log.warning("odd_token_count", field=path[-1], told=repr(told)[:40], counted=count)
    return count


def read_answer(body: bytes) -> Answer:
    """What is not JSON of the right shape did not come from the API."""
    try:
        return Answer.model_validate_json(sound_json(body))
    except ModelBadOutput as error:
        raise ModelForeignAnswer(str(error)) from None
    except ValidationError as error:
        raise ModelForeignAnswer(f"not a response: {_places(error)}") from None


def sound_json(document: str | bytes) -> str:
    """The same JSON without the lone surrogates that strict readers refuse as a whole."""
    try:
        return clean_text(json.dumps(json.loads(document), ensure_ascii=False))
    except (ValueError, RecursionError):
        raise ModelBadOutput("the answer is not JSON") from None


def output_text(answer: Answer) -> str:
    """The text of a completed answer; every other end is an error of its own."""
    if answer.status != "completed":
        raise _unfinished(answer)
    contents = [content for item in answer.output for content in item.content or []]
    if any(content.type == "refusal" for content in contents):
        raise ContentRefused("the model refused")
    text = "".join(content.text for content in contents if content.type == "output_text")
    if not text.strip():
        raise ModelEmpty("the answer has no text")
    return text


def _unfinished(answer: Answer) -> ModelError:
    if answer.status == "incomplete":
        reason = answer.incomplete_details.reason if answer.incomplete_details else None
        if reason == "content_filter":
            return ContentRefused("the provider's content filter stopped the answer")
        return ModelTruncated(f"the answer is incomplete: {reason}")
    code = answer.error.code if answer.error else ""
    if code == "rate_limit_exceeded":
        return ModelRateLimited("the answer failed with a rate limit")
    if code in _REFUSALS or code.endswith("policy_violation"):
        return ContentRefused(f"the answer failed with {code}")
    return ModelUnavailable(f"the answer has status {answer.status}")


def _places(error: ValidationError) -> str:
    """Where it does not fit, without the content."""
    places: list[Any] = [problem["loc"] or problem["type"] for problem in error.errors()[:3]]
    return ", ".join(str(place) for place in places)
