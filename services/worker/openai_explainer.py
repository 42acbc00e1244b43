"""Explains pages with OpenAI's Responses API, or any server that speaks it."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Literal

import httpx2
import openai
from openai import AsyncOpenAI
from openai.types.responses import ResponseTextConfigParam
from pydantic import BaseModel, ConfigDict, ValidationError

from services.runtime.settings import ExplanationSettings
from services.worker.domain import (
    MAX_STICKERS,
    Explanation,
    Page,
    Sticker,
    StickerKind,
    numbered,
)
from services.worker.markdown import clean_markdown, clean_text, clean_title, locate_quote
from services.worker.model import (
    ContentRefused,
    ModelBadOutput,
    ModelError,
    ModelQuotaExhausted,
    ModelRateLimited,
    ModelRejectedPage,
    ModelTimeout,
    ModelUnavailable,
)
from services.worker.openai_response import output_text, read_answer, sound_json

PROMPT_FILE = Path(__file__).parent / "prompts" / "explain_page.md"
CONTEXT_CHARACTERS = 2_000
MAX_OUTPUT_TOKENS = 6_000
# Between two reads of one answer; the deadline of the whole attempt is its caller's.
READ_SECONDS = 120.0
# Somebody has to pay a bill first.
QUOTA_RETRY_AFTER = timedelta(minutes=15)
LONGEST_RETRY_AFTER = timedelta(hours=1)


class _Note(BaseModel):
    model_config = ConfigDict(extra="forbid")

    kind: Literal["summary", "term", "concept", "formula", "figure", "example"]
    title: str
    body_markdown: str
    quote: str


class _Notes(BaseModel):
    model_config = ConfigDict(extra="forbid")

    stickers: list[_Note]


STICKER_SCHEMA: dict[str, object] = _Notes.model_json_schema()

_TEXT_FORMAT: ResponseTextConfigParam = {
    "format": {
        "type": "json_schema",
        "name": "stickers",
        "strict": True,
        "schema": STICKER_SCHEMA,
    }
}


class OpenAIExplainer:
    """One call for each page; retries belong to the job, so the client makes none."""

    kind = "openai"

    def __init__(self, client: AsyncOpenAI, model: str) -> None:
        self._client = client
        self._model = model
        self._instructions = PROMPT_FILE.read_text("utf-8")

    @property
    def model(self) -> str:
        return self._model

    async def explain(self, page: Page) -> Explanation:
        if not page.text.strip():
            return Explanation(stickers=(), model=self._model)
        with _translated_errors():
            async with self._client.responses.with_streaming_response.create(
                model=self._model,
                instructions=self._instructions,
                input=_material(page),
                text=_TEXT_FORMAT,
                max_output_tokens=MAX_OUTPUT_TOKENS,
                store=False,
            ) as response:
                answer = await read_answer(response.iter_bytes())
        try:
            stickers = _stickers(_parse(output_text(answer)), page)
        except ModelError as error:
            error.usage = answer.tokens
            raise
        return Explanation(stickers=stickers, model=self._model, usage=answer.tokens)


@asynccontextmanager
async def open_openai_explainer(settings: ExplanationSettings) -> AsyncIterator[OpenAIExplainer]:
    client = AsyncOpenAI(
        api_key=settings.openai_api_key.get_secret_value(),
        base_url=settings.openai_base_url or None,
        max_retries=0,
        timeout=READ_SECONDS,
    )
    async with client:
        yield OpenAIExplainer(client, settings.model_name)


def _material(page: Page) -> str:
    """The page as JSON: its text cannot end the string it stands in and become an instruction."""
    return json.dumps(
        {
            "locale": page.locale,
            "images_count": page.images_count,
            "page_text": clean_text(page.text),
            "context": [clean_text(text[:CONTEXT_CHARACTERS]) for text in page.neighbours],
        },
        ensure_ascii=False,
    )


def _parse(text: str) -> list[_Note]:
    try:
        return _Notes.model_validate_json(sound_json(text)).stickers
    except ValidationError as error:
        raise ModelBadOutput(f"not a list of stickers: {error.error_count()} problems") from None


def _stickers(notes: list[_Note], page: Page) -> tuple[Sticker, ...]:
    cleaned = [_sticker(note, page.text) for note in notes]
    stickers = [sticker for sticker in cleaned if sticker.title and sticker.body_markdown]
    if not stickers:
        raise ModelBadOutput("no sticker with a title and a body")
    return numbered(stickers[:MAX_STICKERS])


def _sticker(note: _Note, page_text: str) -> Sticker:
    return Sticker(
        sticker_id="",
        kind=StickerKind(note.kind),
        title=clean_title(note.title),
        body_markdown=clean_markdown(note.body_markdown),
        quote=locate_quote(note.quote, page_text),
    )


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Turns what the client raises into our errors, in words that hold no page text and no key."""
    try:
        yield
    except openai.APIStatusError as error:
        raise _status_error(error) from error
    except (openai.APITimeoutError, httpx2.TimeoutException) as error:
        raise ModelTimeout("no answer within the read time-out") from error
    except (openai.APIConnectionError, httpx2.HTTPError) as error:
        raise ModelUnavailable(f"the connection broke: {type(error).__name__}") from error
    except openai.OpenAIError as error:
        raise ModelBadOutput(f"unusable answer: {type(error).__name__}") from error


def _status_error(error: openai.APIStatusError) -> ModelError:
    status, code = error.status_code, error.code or ""
    what = f"HTTP {status} {code}".rstrip()
    wait = _retry_after(error.response.headers)
    if status == 429 and "insufficient_quota" in (code, error.type):
        return ModelQuotaExhausted(what, retry_after=wait or QUOTA_RETRY_AFTER)
    if status == 429:
        return ModelRateLimited(what, retry_after=wait)
    if "content_policy" in code or "content_filter" in code:
        return ContentRefused(what)
    if status in (400, 413, 422):
        return ModelRejectedPage(what)
    # 401, 403 and 404 are about our key or model name: the page is fine, a person has to act.
    return ModelUnavailable(what, retry_after=wait)


def _retry_after(headers: httpx2.Headers) -> timedelta | None:
    """Retry-After as seconds, milliseconds (OpenAI's own header) or a date."""
    try:
        if "retry-after-ms" in headers:
            wait = timedelta(milliseconds=float(headers["retry-after-ms"]))
        else:
            wait = _seconds_or_date(headers["retry-after"])
    except (KeyError, ValueError, TypeError, OverflowError):
        return None
    return min(max(wait, timedelta(0)), LONGEST_RETRY_AFTER)


def _seconds_or_date(value: str) -> timedelta:
    try:
        return timedelta(seconds=float(value))
    except ValueError:
        return parsedate_to_datetime(value) - datetime.now(UTC)
