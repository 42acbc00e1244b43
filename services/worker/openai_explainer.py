"""Explains pages with OpenAI's Responses API, or any server that speaks it."""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TypeVar

import httpx2
import openai
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from openai.types.responses import (
    ResponseInputMessageContentListParam,
    ResponseInputParam,
    ResponseTextConfigParam,
)

from services.runtime.settings import ExplanationSettings
from services.worker import prompts
from services.worker.bounded_body import bound_body
from services.worker.domain import Description, Explanation, Image, Page, Usage
from services.worker.material import page_material
from services.worker.model import (
    ContentRefused,
    ModelBadOutput,
    ModelDripping,
    ModelError,
    ModelQuotaExhausted,
    ModelRateLimited,
    ModelRejectedPage,
    ModelTimeout,
    ModelUnavailable,
)
from services.worker.openai_response import output_text, read_answer
from services.worker.output import IMAGE_SCHEMA, STICKER_SCHEMA, stickers_from, summary_from
from services.worker.thinking import think

MAX_OUTPUT_TOKENS = 6_000
LONGEST_RETRY_AFTER = timedelta(hours=1)

Result = TypeVar("Result")


class OpenAIExplainer:
    """One call for each chunk and picture; retries belong to the job, so the client makes none."""

    kind = "openai"
    sees = True

    def __init__(
        self,
        client: AsyncOpenAI,
        model: str,
        *,
        call_seconds: float,
        link_hosts: Sequence[str] = (),
    ) -> None:
        self._client = client
        self._model = model
        # For a whole answer: the client's own time-out starts again with every byte.
        self._call_seconds = call_seconds
        self._link_hosts = tuple(link_hosts)

    @property
    def model(self) -> str:
        return self._model

    async def explain(self, page: Page) -> Explanation:
        instructions = prompts.explain_page(page.locale)
        pictures = [page.render] if page.render else []
        body = await self._ask(
            instructions,
            message=await think(_message, page_material(page), pictures),
            output=_format("stickers", STICKER_SCHEMA),
        )
        stickers, usage = await _understood(
            body,
            lambda text: stickers_from(
                text, page, instructions=instructions, link_hosts=self._link_hosts
            ),
        )
        return Explanation(stickers=stickers, model=self._model, usage=usage)

    async def describe(self, image: Image) -> Description:
        """Depends on nothing but the picture: what is said of it may be told on any page."""
        body = await self._ask(
            prompts.describe_image(),
            message=await think(_message, "{}", [image]),
            output=_format("image", IMAGE_SCHEMA),
        )
        summary, usage = await _understood(body, lambda text: summary_from(text, image))
        return Description(summary=summary, usage=usage)

    async def _ask(
        self, instructions: str, *, message: ResponseInputParam, output: ResponseTextConfigParam
    ) -> bytes:
        """The body of the answer, whole and within the time for one call."""
        began = False
        try:
            async with asyncio.timeout(self._call_seconds):
                with _translated_errors():
                    async with self._client.responses.with_streaming_response.create(
                        model=self._model,
                        instructions=instructions,
                        input=message,
                        text=output,
                        max_output_tokens=MAX_OUTPUT_TOKENS,
                        store=False,
                    ) as response:
                        began = True
                        return await response.read()
        except TimeoutError:
            if began:
                raise ModelDripping("the answer did not end within its time") from None
            raise ModelTimeout("no answer within its time") from None


@asynccontextmanager
async def open_openai_explainer(
    settings: ExplanationSettings, *, call_seconds: float, link_hosts: Sequence[str] = ()
) -> AsyncIterator[OpenAIExplainer]:
    client = AsyncOpenAI(
        api_key=settings.openai_api_key.get_secret_value(),
        base_url=settings.openai_base_url or None,
        max_retries=0,
        timeout=call_seconds,
        default_headers={"accept-encoding": "identity"},
        http_client=DefaultAsyncHttpxClient(event_hooks={"response": [bound_body]}),
    )
    await _rehearse()
    async with client:
        yield OpenAIExplainer(
            client, settings.model_name, call_seconds=call_seconds, link_hosts=link_hosts
        )


async def _rehearse() -> None:
    """Asks once with nobody listening: the client loads parts of itself on first use.

    That would hold up the heartbeats of whatever else is under way for a third of a second.
    """
    silence = httpx2.MockTransport(lambda _: httpx2.Response(503))
    async with AsyncOpenAI(
        api_key="none",
        base_url="http://rehearsal.invalid",
        max_retries=0,
        http_client=DefaultAsyncHttpxClient(transport=silence),
    ) as nobody:
        with suppress(ModelUnavailable):
            await OpenAIExplainer(nobody, "none", call_seconds=60).explain(
                Page(page=1, text="rehearsal", locale="en")
            )


async def _understood(body: bytes, understand: Callable[[str], Result]) -> tuple[Result, Usage]:
    """Beside the loop, so that a large answer does not hold up heartbeats."""
    return await think(_understand, body, understand)


def _understand(body: bytes, understand: Callable[[str], Result]) -> tuple[Result, Usage]:
    answer = read_answer(body)
    try:
        return understand(output_text(answer)), answer.tokens
    except ModelError as error:
        error.usage = answer.tokens
        raise


def _message(text: str, pictures: Sequence[Image]) -> ResponseInputParam:
    """One message of the user: material, never instructions."""
    content: ResponseInputMessageContentListParam = [{"type": "input_text", "text": text}]
    for picture in pictures:
        content.append({"type": "input_image", "image_url": _data_url(picture), "detail": "auto"})
    return [{"role": "user", "content": content}]


def _data_url(image: Image) -> str:
    return f"data:{image.media_type};base64,{base64.b64encode(image.content).decode()}"


def _format(name: str, schema: dict[str, object]) -> ResponseTextConfigParam:
    return {"format": {"type": "json_schema", "name": name, "strict": True, "schema": schema}}


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
        return ModelQuotaExhausted(what, retry_after=wait)
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
