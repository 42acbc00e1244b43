"""How many calls to the model run at a time in this process: learned from what the model says."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

import structlog

from services.worker.metrics import (
    MODEL_CALL_LIMIT,
    MODEL_CALLS_UNDER_WAY,
    MODEL_CALLS_WAITING,
    MODEL_QUOTA_EXHAUSTED,
    MODEL_RESUMES_AT,
)
from services.worker.model import (
    ModelError,
    ModelPaused,
    ModelQuotaExhausted,
    ModelRateLimited,
)

log = structlog.get_logger()

# A call waits this long for its turn. Waiting holds its job, so that no others are taken out of
# the queue only to wait; then the job goes back into it, and has not used up an attempt.
LONGEST_WAIT = timedelta(seconds=30)


class Pace:
    """The rules; seconds of one clock are an argument.

    Additive increase, multiplicative decrease: each success raises the limit by a fraction of one
    call, "too many" halves it, once for all calls that were under way. A time to wait that one
    call was told holds for all. A used-up account stops everything until one probe gets through.
    """

    def __init__(self, *, most: int, quota_pause: timedelta) -> None:
        self._most = most
        self._quota_pause = quota_pause.total_seconds()
        self._limit = float(most)
        self._lowered_at = float("-inf")
        self._resumes_at = float("-inf")
        self._used_up_at: float | None = None

    @property
    def account_is_used_up(self) -> bool:
        return self._used_up_at is not None

    @property
    def limit(self) -> int:
        """How many calls may be under way; while the account is used up only a probe."""
        return 1 if self.account_is_used_up else int(self._limit)

    def pause_left(self, now: float) -> float:
        return max(0.0, self._resumes_at - now)

    def succeeded(self, *, began_at: float) -> None:
        # A call that began before the account was used up is no probe.
        if self._used_up_at is not None and began_at > self._used_up_at:
            self._used_up_at = None
        self._limit = min(self._most, self._limit + 1 / self._limit)

    def failed(self, error: ModelError, *, began_at: float, now: float) -> None:
        if isinstance(error, ModelQuotaExhausted):
            self._used_up_at = now
            self._pause(now, error.retry_after or timedelta(seconds=self._quota_pause))
            return
        if error.retry_after is not None:
            self._pause(now, error.retry_after)
        # Calls that began before the limit was lowered say nothing about the new one.
        if isinstance(error, ModelRateLimited) and began_at > self._lowered_at:
            self._limit = max(1.0, self._limit / 2)
            self._lowered_at = now

    def _pause(self, now: float, wait: timedelta) -> None:
        self._resumes_at = max(self._resumes_at, now + wait.total_seconds())


class Throttle:
    """Slots for calls, given out at the pace."""

    def __init__(
        self,
        pace: Pace,
        *,
        longest_wait: timedelta = LONGEST_WAIT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pace = pace
        self._longest_wait = longest_wait.total_seconds()
        self._clock = clock
        self._under_way = 0
        # Whoever came first is first; the others wait behind it.
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()
        self._show()

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Waits for its turn; raises ModelPaused when it does not come."""
        with MODEL_CALLS_WAITING.track_inprogress():
            await self._enter()
        self._show()
        began_at = self._clock()
        try:
            yield
        except ModelError as error:
            self._pace.failed(error, began_at=began_at, now=self._clock())
            if isinstance(error, ModelQuotaExhausted):  # the job needs not come back before
                error.retry_after = timedelta(seconds=self._pace.pause_left(self._clock()))
            log.info("model_pace", limit=self._pace.limit, reason=error.reason)
            raise
        else:
            self._pace.succeeded(began_at=began_at)
        finally:
            self._under_way -= 1
            self._changed.set()
            self._show()

    async def _enter(self) -> None:
        try:
            async with asyncio.timeout(self._longest_wait), self._turn:
                while (wait := self._pace.pause_left(self._clock())) or self._is_full():
                    self._changed.clear()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(wait or None):
                            await self._changed.wait()
                self._under_way += 1
        except TimeoutError:
            raise ModelPaused("the model was not asked: its turn did not come") from None

    def _show(self) -> None:
        MODEL_CALL_LIMIT.set(self._pace.limit)
        MODEL_CALLS_UNDER_WAY.set(self._under_way)
        if pause := self._pace.pause_left(self._clock()):
            MODEL_RESUMES_AT.set(time.time() + pause)
        MODEL_QUOTA_EXHAUSTED.set(self._pace.account_is_used_up)

    def _is_full(self) -> bool:
        return self._under_way >= self._pace.limit
