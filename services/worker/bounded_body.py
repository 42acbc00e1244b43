"""Lets no HTTP answer take more memory than an answer may need, whatever its status."""

from collections.abc import AsyncIterator

import httpx2

from services.worker.model import ModelAnswerTooLarge, ModelEndless, ModelForeignAnswer

# Far above any answer that fits the token limit, and quick to read whatever is in it.
MAX_ANSWER_BYTES = 512 * 1024
HTTP_ERROR = 400


async def bound_body(response: httpx2.Response) -> None:
    """Puts a bound on an answer that is about to be read; a hook of the HTTP client."""
    response.stream = _BoundedBody(response)


class _BoundedBody(httpx2.AsyncByteStream):
    def __init__(self, response: httpx2.Response) -> None:
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        self._stream = response.stream
        self._headers = response.headers
        # The client reads the body of an error before it tells the error: what counts is the
        # status, so a long one is cut short.
        self._is_error = response.status_code >= HTTP_ERROR

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._is_error and self._is_packed:
            return
        if not self._is_error:
            self._check_headers()
        size = 0
        async for part in self._stream:
            size += len(part)
            if size > MAX_ANSWER_BYTES:
                if self._is_error:
                    return
                raise ModelEndless("the answer does not end")
            yield part

    @property
    def _is_packed(self) -> bool:
        """We ask for plain bodies: a few packed bytes can become gigabytes."""
        return bool(self._headers.get("content-encoding", "identity") != "identity")

    def _check_headers(self) -> None:
        announced = self._headers.get("content-length", "")
        if announced.isdigit() and int(announced) > MAX_ANSWER_BYTES:
            raise ModelAnswerTooLarge(f"the answer has {announced} bytes")
        if self._is_packed:
            raise ModelForeignAnswer("the answer is packed though we asked for a plain one")

    async def aclose(self) -> None:
        await self._stream.aclose()
