"""What failed is kept with its cause and cost, and can be started anew."""

from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import grpc
import pytest
from glossa.cache.v1 import cache_pb2, jobs_pb2
from glossa.worker.v1 import worker_pb2 as pb
from glossa.worker.v1.worker_pb2_grpc import WorkerServiceStub
from google.protobuf.timestamp_pb2 import Timestamp

from services.runtime.database import open_database
from services.worker.dead_letter import DeadLetter, Filter
from services.worker.dead_letter_store import DeadLetterStore
from services.worker.dead_letters import NEVER
from tests import fake_openai as fake
from tests.cache.conftest import refused
from tests.fake_openai import FakeOpenAI
from tests.suite import Suite
from tests.worker.conftest import StartWorker
from tests.worker.test_lease_loop import ask, count, until_ended
from tests.worker.waiting import until

READY, FAILED = cache_pb2.GENERATION_STATUS_READY, cache_pb2.GENERATION_STATUS_FAILED
# Of one call to the loopback model: 800 x 400 + 100 x 100 + 80 x 1,600 nano-dollars.
CALL_COST = 458_000


@pytest.fixture
async def admin(admin_url: str) -> AsyncIterator["asyncpg.Connection[Any]"]:
    connection = await asyncpg.connect(admin_url)
    yield connection
    await connection.close()


class Desk:
    """An admin in front of a worker."""

    def __init__(self, suite: Suite, channel: grpc.aio.Channel) -> None:
        self.stub: WorkerServiceStub = WorkerServiceStub(channel)
        self.bearer = suite.bearer("admin")

    async def letters(self, **fields: Any) -> pb.ListDeadLettersResponse:
        return await self.stub.ListDeadLetters(
            pb.ListDeadLettersRequest(**fields), metadata=self.bearer
        )

    async def until_listed(self, count: int, **fields: Any) -> list[pb.DeadLetter]:
        while True:
            answer = await self.letters(**fields)
            # Counted and listed one after the other: one may have come in between.
            if answer.total == count and (answer.dead_letters or not count):
                return list(answer.dead_letters)

    async def get(self, generation_id: str) -> pb.DeadLetter:
        response = await self.stub.GetDeadLetter(
            pb.GetDeadLetterRequest(generation_id=generation_id), metadata=self.bearer
        )
        return response.dead_letter

    async def redrive(self, **fields: Any) -> list[pb.RedriveDeadLettersResponse]:
        request = pb.RedriveDeadLettersRequest(**fields)
        call = self.stub.RedriveDeadLetters(request, metadata=self.bearer)
        return [progress async for progress in call]


@pytest.fixture
async def desk(cluster: Suite, start_worker: StartWorker) -> AsyncIterator[Desk]:
    async with (
        start_worker() as worker,
        grpc.aio.insecure_channel(worker.address) as channel,
    ):
        yield Desk(cluster, channel)


async def fail_some(suite: Suite, model: FakeOpenAI, count: int) -> list[str]:
    """Pages the model refuses; their generations, in the order in which they failed."""
    model.always(fake.refusal())
    failed = []
    for number in range(count):
        failed.append(await ask(suite, user=f"user-{number}"))
        await until_ended(suite, failed[-1])
    model.always(fake.notes())
    return failed


async def test_a_permanent_failure_is_kept_with_cause_attempt_and_cost(
    cluster: Suite, model: FakeOpenAI, desk: Desk
) -> None:
    [failed] = await fail_some(cluster, model, 1)

    [letter] = await desk.until_listed(1)

    assert (letter.generation_id, letter.error.reason) == (failed, "CONTENT_REFUSED")
    assert (letter.permanent, letter.attempts, letter.kind) == (True, 1, "page_explanation")
    assert [(one.attempt, one.reason) for one in letter.failures] == [(1, "CONTENT_REFUSED")]
    assert not letter.HasField("redriven_at")
    # Calls are reported in batches, a moment later.
    while (await desk.get(failed)).cost_nanodollars != CALL_COST:
        pass


async def test_spent_attempts_are_all_told_and_all_paid(
    cluster: Suite, model: FakeOpenAI, desk: Desk
) -> None:
    model.always(fake.truncated())
    failed = await ask(cluster)

    [letter] = await desk.until_listed(1)

    assert (letter.permanent, letter.attempts) == (False, 3)
    assert [one.attempt for one in letter.failures] == [1, 2, 3]
    assert {one.reason for one in letter.failures} == {"MODEL_TRUNCATED"}
    while (await desk.get(failed)).cost_nanodollars != 3 * CALL_COST:
        pass


async def test_what_the_sweep_gave_up_while_no_worker_ran_is_found_by_the_next(
    cluster: Suite, start_worker: StartWorker, admin: "asyncpg.Connection[Any]"
) -> None:
    failed = await ask(cluster)
    await admin.execute(
        "UPDATE cache.generations SET attempts = 3, leased_by = 'dead',"
        " leased_until = now() - interval '1 hour', deadline_at = now() - interval '1 hour'"
    )
    await until_ended(cluster, failed)

    async with (
        start_worker() as worker,
        grpc.aio.insecure_channel(worker.address) as channel,
    ):
        [letter] = await Desk(cluster, channel).until_listed(1)

    assert (letter.generation_id, letter.error.reason) == (failed, "ATTEMPTS_SPENT")


async def test_several_workers_write_each_letter_once(
    cluster: Suite,
    model: FakeOpenAI,
    start_worker: StartWorker,
    desk: Desk,
    admin: "asyncpg.Connection[Any]",
) -> None:
    async with start_worker(), start_worker():
        failed = await fail_some(cluster, model, 5)
        letters = await desk.until_listed(5)

    assert [letter.generation_id for letter in letters] == failed[::-1]
    assert await admin.fetchval("SELECT count(*) FROM worker.dead_letters") == 5


async def test_what_fails_after_a_clock_ran_ahead_is_found(
    cluster: Suite, model: FakeOpenAI, desk: Desk, databases: Mapping[str, str]
) -> None:
    async with open_database(databases["worker"], application_name="test") as database:
        ahead = letter_of(datetime.now(UTC) + timedelta(hours=1))
        await DeadLetterStore(database).insert_dead_letters([ahead])

    [failed] = await fail_some(cluster, model, 1)
    letters = await desk.until_listed(2)

    assert [one.generation_id for one in letters] == [str(ahead.generation_id), failed]


async def test_what_is_written_down_is_not_priced_again(
    cluster: Suite, model: FakeOpenAI, desk: Desk, admin: "asyncpg.Connection[Any]"
) -> None:
    def priced() -> float:
        return count("glossa_quota_requests_total", method="GetGenerationCosts", code="OK")

    def looks() -> float:
        return count("glossa_cache_requests_total", method="ListFailedJobs", code="OK")

    await fail_some(cluster, model, 1)
    while not await admin.fetchval("SELECT count(*) FROM worker.dead_letters"):
        pass
    before, looked = priced(), looks()
    await until(lambda: looks() > looked + 2)

    assert before > 0
    assert priced() == before


async def test_a_redrive_makes_the_pages_at_nobodys_expense(
    cluster: Suite, model: FakeOpenAI, desk: Desk, admin: "asyncpg.Connection[Any]"
) -> None:
    failed = await fail_some(cluster, model, 3)
    await desk.until_listed(3)

    first, last = await desk.redrive(filter=pb.DeadLetterFilter(reason="CONTENT_REFUSED"))

    assert (first.total, first.started) == (3, 0)
    assert [(one.reason, one.count) for one in first.reasons] == [("CONTENT_REFUSED", 3)]
    assert (last.total, last.started, last.already_live, last.gone) == (3, 3, 0, 0)
    assert (await desk.letters()).total == 0
    redriven = (await desk.letters(include_redriven=True)).dead_letters
    assert {letter.generation_id for letter in redriven} == set(failed)
    for letter in redriven:
        assert letter.HasField("redriven_at")
        assert (await until_ended(cluster, letter.redriven_as)).status == READY
        assert (await cluster.generation(letter.generation_id)).status == FAILED
    charged = "SELECT count(*) FROM quota.explain_requests WHERE status = 'charged'"
    assert await admin.fetchval(charged) == 0


async def test_a_dry_run_only_counts(cluster: Suite, model: FakeOpenAI, desk: Desk) -> None:
    await fail_some(cluster, model, 2)
    await desk.until_listed(2)
    calls = model.calls

    [only] = await desk.redrive(all=True, dry_run=True)

    assert (only.total, only.started) == (2, 0)
    assert (await desk.letters()).total == 2
    assert model.calls == calls


async def test_what_fails_again_is_a_letter_of_its_own_and_the_redrive_ends(
    cluster: Suite, model: FakeOpenAI, desk: Desk
) -> None:
    [failed] = await fail_some(cluster, model, 1)
    await desk.until_listed(1)
    model.always(fake.refusal())

    steps = await desk.redrive(all=True)
    await until_ended(cluster, (await desk.get(failed)).redriven_as)
    [again] = await desk.until_listed(1)

    assert steps[-1].started == 1
    assert again.generation_id == (await desk.get(failed)).redriven_as


async def test_what_fails_after_a_redrive_began_is_not_part_of_it(
    databases: Mapping[str, str], admin: "asyncpg.Connection[Any]"
) -> None:
    began = datetime.now(UTC)
    async with open_database(databases["worker"], application_name="test") as database:
        store = DeadLetterStore(database)
        letters = [letter_of(began + timedelta(seconds=number)) for number in (-2, -1, 0, 1)]
        await store.insert_dead_letters(letters)

        places, after = [], NEVER
        while some := await store.choose_dead_letters(Filter(), until=began, after=after, most=2):
            places += some
            after = some[-1]

    chosen = [place.generation_id for place in places]
    assert chosen == [letter.generation_id for letter in letters[:3]]


def letter_of(failed_at: datetime) -> DeadLetter:
    return DeadLetter(
        generation_id=uuid4(),
        kind="page_explanation",
        pdf_hash="a" * 64,
        page=1,
        locale="en",
        effective_mode="text_only",
        model="m",
        prompt_version="1",
        private=False,
        reason="R",
        message="",
        permanent=False,
        attempts=3,
        failures=(),
        created_at=failed_at,
        failed_at=failed_at,
    )


async def test_an_interrupted_redrive_is_simply_called_again(
    cluster: Suite, model: FakeOpenAI, desk: Desk
) -> None:
    [failed] = await fail_some(cluster, model, 1)
    await desk.until_listed(1)
    # The Cache has started it, and the worker died before it could note that.
    started = await cluster.jobs.RedriveJobs(
        jobs_pb2.RedriveJobsRequest(generation_ids=[failed]), metadata=cluster.bearer("worker")
    )

    steps = await desk.redrive(filter=pb.DeadLetterFilter(generation_ids=[failed]))

    assert (steps[-1].started, steps[-1].already_live) == (0, 1)
    assert (await desk.get(failed)).redriven_as == started.results[0].generation_id
    assert await desk.redrive(all=True) == [pb.RedriveDeadLettersResponse()]


async def test_when_todays_money_is_spent_nothing_is_started(
    cluster: Suite, model: FakeOpenAI, desk: Desk, admin: "asyncpg.Connection[Any]"
) -> None:
    await fail_some(cluster, model, 1)
    await desk.until_listed(1)
    await admin.execute(
        "INSERT INTO quota.spending VALUES"
        " ('day', to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD'), 10::bigint ^ 15)"
        " ON CONFLICT (kind, subject) DO UPDATE SET cost_nanodollars = 10::bigint ^ 15"
    )
    calls = model.calls

    async with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "SPENDING_CEILING"):
        await desk.redrive(all=True)

    assert (await desk.letters()).total == 1
    assert model.calls == calls


async def test_letters_are_found_by_filter_and_page_by_page(
    cluster: Suite, model: FakeOpenAI, desk: Desk, admin: "asyncpg.Connection[Any]"
) -> None:
    failed = await fail_some(cluster, model, 3)
    letters = await desk.until_listed(3)
    await admin.execute(
        "UPDATE worker.dead_letters SET reason = 'OTHER', failed_at = failed_at - interval '1 day'"
        " WHERE generation_id = $1",
        failed[0],
    )
    midnight = Timestamp()
    midnight.FromDatetime(letters[-1].failed_at.ToDatetime().replace(microsecond=0))

    async def found(**chosen: Any) -> list[str]:
        answer = await desk.letters(filter=pb.DeadLetterFilter(**chosen))
        return [letter.generation_id for letter in answer.dead_letters]

    assert await found(reason="OTHER") == [failed[0]]
    assert await found(reason="CONTENT_REFUSED") == [failed[2], failed[1]]
    assert await found(pdf_hash=letters[0].pdf_hash) == [failed[2]]
    assert await found(locale="zh-Hans") == await found(kind="nothing") == []
    assert await found(model=letters[0].model, locale="en") == failed[::-1]
    assert await found(begins_at=midnight) == [failed[2], failed[1]]
    assert await found(ends_at=midnight) == [failed[0]]
    first = await desk.letters(page_size=2)
    second = await desk.letters(page_size=2, page_token=first.next_page_token)
    pages = [[one.generation_id for one in page.dead_letters] for page in (first, second)]
    assert pages == [[failed[2], failed[1]], [failed[0]]]
    assert (first.total, second.next_page_token) == (3, "")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"page_size": 501}, "page_size"),
        ({"page_token": "bm9uc2Vuc2U="}, "page_token"),
        ({"page_token": "é"}, "page_token"),
        ({"filter": pb.DeadLetterFilter(pdf_hash="x")}, "filter.pdf_hash"),
        ({"filter": pb.DeadLetterFilter(generation_ids=["x"])}, "filter.generation_ids[0]"),
        ({"filter": pb.DeadLetterFilter(reason="x" * 65)}, "filter.reason"),
        (
            {"filter": pb.DeadLetterFilter(begins_at=Timestamp(seconds=10**15))},
            "filter.begins_at",
        ),
    ],
    ids=str,
)
async def test_a_bad_question_names_its_field(
    desk: Desk, fields: dict[str, Any], field: str
) -> None:
    async with refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT") as seen:
        await desk.letters(**fields)

    assert seen[0].details().startswith(field)


async def test_everything_is_redriven_only_when_that_is_said(desk: Desk) -> None:
    async with refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT") as seen:
        await desk.redrive()

    assert "set all" in seen[0].details()


async def test_only_admins_look_and_what_is_not_there_is_not_found(
    cluster: Suite, desk: Desk
) -> None:
    async with refused(grpc.StatusCode.NOT_FOUND, "DEAD_LETTER_NOT_FOUND"):
        await desk.get(str(uuid4()))
    desk.bearer = cluster.bearer("gateway", "worker")
    async with refused(grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED"):
        await desk.letters()
    async with refused(grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED"):
        await desk.get(str(uuid4()))
    async with refused(grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED"):
        await desk.redrive(all=True)
