"""The other services as the admin pages see them: asked with the token of who is signed in."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

import grpc
from glossa.cache.v1 import cache_pb2, jobs_pb2
from glossa.cache.v1.cache_pb2_grpc import CacheServiceStub
from glossa.cache.v1.jobs_pb2_grpc import JobServiceStub
from glossa.quota.v1 import quota_pb2
from glossa.quota.v1.quota_pb2_grpc import QuotaServiceStub
from glossa.registry.v1 import registry_pb2
from glossa.registry.v1.registry_pb2_grpc import RegistryServiceStub
from google.protobuf.timestamp_pb2 import Timestamp

from services.runtime.channel import calling, open_channel
from services.runtime.errors import Unauthenticated
from services.runtime.tls import tls_of
from services.worker.admin.values import (
    Days,
    Finding,
    Lane,
    Losses,
    Moment,
    Money,
    Movements,
    Queue,
    References,
    RefundTotal,
    Story,
)
from services.worker.config import Config

CALL_SECONDS = 4.0
LEDGER_LINES = 200
CLOCKS = {
    "run_after": "Not taken up before",
    "queue_deadline_at": "Given up if nobody has taken it by",
    "leased_until": "Lease runs until",
    "deadline_at": "This attempt ends by",
}

_token: ContextVar[str] = ContextVar("admin_token", default="")


@contextmanager
def acting_for(token: str) -> Iterator[None]:
    """What is asked within the block is asked by the holder of this token."""
    reset = _token.set(token)
    try:
        yield
    finally:
        _token.reset(reset)


class PassedOn:
    """The token of whoever is signed in: the Worker's own gains no rights by having pages."""

    def token(self) -> str:
        token = _token.get()
        if not token:
            raise Unauthenticated("nobody is signed in")
        return token


class Others:
    """Registry, Cache and Quota, for an admin."""

    def __init__(self, *, registry: Any, cache: Any, quota: Any) -> None:
        self._registry = RegistryServiceStub(registry)
        self._cache = CacheServiceStub(cache)
        self._jobs = JobServiceStub(cache)
        self._quota = QuotaServiceStub(quota)

    async def describe_queue(self) -> Queue:
        with calling("cache"):
            answer = await self._cache.DescribeQueue(cache_pb2.DescribeQueueRequest())
        return Queue(
            lanes=[_lane(lane) for lane in answer.lanes],
            refunds_due=answer.refunds_due,
            taken_at=_moment(answer.taken_at),
        )

    async def list_losses(self, days: int) -> Days[Losses]:
        with calling("cache"):
            answer = await self._cache.ListLeaseLosses(cache_pb2.ListLeaseLossesRequest(days=days))
        return {
            date.fromisoformat(day.day): Losses(
                leases_expired=day.leases_expired,
                attempts_spent=day.attempts_spent,
                queue_timeouts=day.queue_timeouts,
            )
            for day in answer.days
        }

    async def list_money(self, first_day: date, last_day: date) -> Days[Money]:
        request = quota_pb2.ListDailyTotalsRequest(
            first_day=first_day.isoformat(), last_day=last_day.isoformat()
        )
        with calling("quota"):
            answer = await self._quota.ListDailyTotals(request)
        return {date.fromisoformat(day.day): _money(day) for day in answer.days}

    async def check_references(self) -> References:
        """Looks and repairs nothing."""
        with calling("registry"):
            answer = await self._registry.CheckReferenceHealth(
                registry_pb2.CheckReferenceHealthRequest()
            )
        return References(
            documents=answer.documents,
            references=answer.references,
            findings_count=answer.findings_count,
            findings=[_finding(finding) for finding in answer.findings[:20]],
        )

    async def describe_request(self, request_id: str, user_id: str) -> Story:
        request = cache_pb2.DescribeRequestRequest(request_id=request_id, user_id=user_id)
        with calling("cache"):
            return _story(await self._cache.DescribeRequest(request))

    async def list_movements(self, request_id: str, user_id: str) -> Movements:
        """What the ledger says about one request, as far as it is among the user's newest lines."""
        request = quota_pb2.ListLedgerRequest(user_id=user_id, page_size=LEDGER_LINES)
        with calling("quota"):
            answer = await self._quota.ListLedger(request)
        found = [
            Moment(
                at=_moment(entry.created_at),
                title=f"Ledger: {entry.units:+d} unit{'' if abs(entry.units) == 1 else 's'}",
                detail=entry.explanation,
            )
            for entry in answer.entries
            if entry.request_id == request_id
        ]
        return Movements(found=found, has_older_lines=bool(answer.next_page_token))

    async def read_statuses(self, generation_ids: Sequence[UUID]) -> dict[str, str]:
        """How generations stand; those that are forgotten are left out."""
        request = jobs_pb2.GetGenerationsRequest(
            generation_ids=[str(one) for one in generation_ids]
        )
        with calling("cache"):
            answer = await self._jobs.GetGenerations(request)
        return {
            one.generation_id: _word(cache_pb2.GenerationStatus.Name(one.status))
            for one in answer.generations
        }


@asynccontextmanager
async def open_others(config: Config) -> AsyncIterator[Others]:
    def channel(address: str) -> grpc.aio.Channel:
        return open_channel(address, PassedOn(), tls=tls_of(config), deadline_seconds=CALL_SECONDS)

    async with (
        channel(config.registry_address) as registry,
        channel(config.cache_address) as cache,
        channel(config.quota_address) as quota,
    ):
        yield Others(registry=registry, cache=cache, quota=quota)


def _lane(message: cache_pb2.DescribeQueueResponse.Lane) -> Lane:
    waits = message.HasField("oldest_wait")
    return Lane(
        name=message.name,
        waiting=message.waiting,
        leased=message.leased,
        retrying=message.retrying,
        expired=message.expired,
        oldest_wait=message.oldest_wait.ToTimedelta() if waits else None,
    )


def _money(message: quota_pb2.ListDailyTotalsResponse.Day) -> Money:
    return Money(
        spent_nanodollars=message.costs.cost_nanodollars,
        saved_nanodollars=message.costs.saved_nanodollars,
        shared_requests=message.costs.shared_requests,
        refunds=[
            RefundTotal(reason=refund.reason, count=refund.count, units=refund.units)
            for refund in message.refunds
        ],
    )


def _finding(message: registry_pb2.HealthFinding) -> Finding:
    return Finding(
        problem=_word(registry_pb2.HealthProblem.Name(message.problem), "HEALTH_PROBLEM"),
        pdf_hash=message.pdf_hash,
        file_id=message.file_id,
        counted=message.counted,
        actual=message.actual,
    )


def _story(message: cache_pb2.DescribeRequestResponse) -> Story:
    runs = message.HasField("clocks")
    clocks = {
        CLOCKS[field.name]: _moment(value)
        for field, value in message.clocks.ListFields()
        if field.name in CLOCKS
    }
    return Story(
        request_id=message.request_id,
        user_id=message.user_id,
        kind=message.kind,
        pdf_hash=message.pdf_hash,
        page=message.page,
        locale=message.locale,
        state=_word(cache_pb2.RequestState.Name(message.state), "REQUEST_STATE"),
        outcome=_word(quota_pb2.Outcome.Name(message.outcome), "OUTCOME"),
        private=message.private,
        units=message.units,
        charge_known=message.charge_known,
        refund_due=message.refund_due,
        sentences=list(message.story),
        generation_id=message.generation.generation_id,
        generation_status=_word(cache_pb2.GenerationStatus.Name(message.generation.status)),
        model=message.generation.model,
        prompt_version=message.generation.prompt_version,
        clocks=clocks,
        attempts_left=message.clocks.attempts_left if runs else None,
        moments=list(_moments(message)),
    )


def _moments(message: cache_pb2.DescribeRequestResponse) -> Iterator[Moment]:
    if message.HasField("created_at"):
        yield Moment(at=_moment(message.created_at), title="Asked for")
    for failure in message.failures:
        yield Moment(
            at=_moment(failure.failed_at),
            title=f"Attempt {failure.attempt} failed: {failure.reason}",
            detail=failure.message,
            tone="bad",
        )
    generation = message.generation
    if generation.HasField("completed_at"):
        ready = generation.status == cache_pb2.GENERATION_STATUS_READY
        yield Moment(
            at=_moment(generation.completed_at),
            title="Result ready" if ready else f"Given up: {generation.error.reason}",
            detail="" if ready else generation.error.message,
            tone="good" if ready else "bad",
        )


def _word(name: str, prefix: str = "GENERATION_STATUS") -> str:
    word = name.removeprefix(f"{prefix}_").lower().replace("_", " ")
    return "" if word == "unspecified" else word


def _moment(timestamp: Timestamp) -> datetime:
    return timestamp.ToDatetime(tzinfo=UTC)
