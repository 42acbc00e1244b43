"""What models cost, to the nano-dollar, and what sharing saved."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import grpc
import pytest
from glossa.quota.v1 import quota_pb2 as pb
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from services.runtime.status import from_call
from tests.quota.conftest import HASH, Ledger, ask, operation_of, quota_service, refund_of
from tests.suite import Keys, metadata

COST = 1_200_000  # of operation_of(): 1,000 x 400 + 500 x 1,600 nano-dollars
OTHER = "b" * 64


async def budgets(
    ledger: Ledger, user: str = "alice", token: str = "", **more: Any
) -> pb.CheckBudgetResponse:
    return await ledger.stub.CheckBudget(
        pb.CheckBudgetRequest(user_id=user, **more),
        metadata=metadata(token or ledger.keys.token("gateway")),
    )


@pytest.mark.parametrize(
    ("model", "tokens", "nanodollars"),
    [
        ("gpt-4.1-mini", (1000, 0, 500), 1_200_000),
        ("gpt-4.1-mini", (1000, 1000, 0), 100_000),
        ("gpt-4.1-mini", (1000, 400, 0), 280_000),
        ("gpt-4.1-nano", (1, 1, 0), 25),
        ("gpt-5-nano", (0, 0, 1), 400),
        # The sources' own example: 800 tokens in and 2,500 out are $0.00108.
        ("gemini-2.0-flash", (800, 0, 2500), 1_080_000),
        ("offline-extractive", (123, 0, 456), 0),
        ("gpt-4o", (100_000_000, 0, 100_000_000), 1_250_000_000_000),
    ],
)
async def test_a_call_costs_what_the_price_table_says(
    ledger: Ledger, model: str, tokens: tuple[int, int, int], nanodollars: int
) -> None:
    given, cached, made = tokens
    operation = operation_of(
        model=model, input_tokens=given, cached_input_tokens=cached, output_tokens=made
    )

    assert await ledger.record(operation) == [nanodollars]


async def test_parts_of_a_nanodollar_are_rounded_up(ledger: Ledger) -> None:
    await ledger.connection.execute(
        "INSERT INTO quota.model_prices VALUES ('penny', now() - interval '1 day', 1, 1, 1)"
    )

    assert await ledger.record(operation_of(model="penny")) == [1]


async def test_the_newest_price_that_holds_already_counts(ledger: Ledger) -> None:
    await ledger.connection.execute(
        "INSERT INTO quota.model_prices VALUES"
        " ('dear', now() - interval '2 days', 1000000, 0, 0),"
        " ('dear', now() - interval '1 day', 2000000, 0, 0),"
        " ('dear', now() + interval '1 day', 3000000, 0, 0),"
        " ('later', now() + interval '1 day', 1, 1, 1)"
    )

    assert await ledger.record(operation_of(model="dear")) == [2000]
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await ledger.record(operation_of(model="later"))
    assert from_call(refusal.value).reason == "UNKNOWN_MODEL"


async def test_an_unknown_model_is_refused_and_nothing_of_its_batch_recorded(
    ledger: Ledger,
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await ledger.record(operation_of(), operation_of(model="gpt-unheard-of"))

    error = from_call(refusal.value)
    assert (error.code, error.reason) == ("INVALID_ARGUMENT", "UNKNOWN_MODEL")
    assert error.field == "operations[1].model"
    assert "quota.model_prices" in error.message
    assert (await ledger.costs()).total.operations == 0


async def test_a_call_recorded_twice_counts_once(ledger: Ledger) -> None:
    operation = operation_of(user_id="alice")

    costs = await asyncio.gather(*(ledger.record(operation, operation) for _ in range(5)))

    assert costs == 5 * [[COST, COST]]
    assert (await ledger.costs("alice")).total.cost_nanodollars == COST
    assert await ledger.drift() == []


async def test_failed_calls_cost_too_and_are_counted_apart(ledger: Ledger) -> None:
    wait = Duration(seconds=3)
    await ledger.record(
        operation_of(user_id="alice", outcome="model_truncated", duration=wait),
        operation_of(user_id="alice", attempt=2),
    )

    total = (await ledger.costs("alice")).total

    assert (total.operations, total.failed_operations) == (2, 1)
    assert total.cost_nanodollars == 2 * COST
    assert (total.input_tokens, total.output_tokens) == (2000, 1000)
    assert (
        await ledger.connection.fetchval("SELECT max(duration_ms) FROM quota.ai_operations") == 3000
    )


async def test_a_call_is_put_to_whoever_was_charged_for_starting_the_generation(
    ledger: Ledger,
) -> None:
    """The charge was made before the generation had an id; the first call gives it the name."""
    generation = str(uuid4())
    started = ask("alice")
    await ledger.admit(started)
    await ledger.admit(ask("bob", outcome=pb.OUTCOME_JOINED, generation_id=generation))

    await ledger.record(operation_of(generation_id=generation))
    await ledger.record(operation_of(generation_id=generation, attempt=2))

    assert (await ledger.costs("alice")).total.cost_nanodollars == 2 * COST
    assert (await ledger.costs("bob")).total.cost_nanodollars == 0
    replay = await ledger.admit(started)
    assert replay.generation_id == generation


async def test_a_call_is_put_to_nobody_who_did_not_start_it(ledger: Ledger) -> None:
    given_up, joined, elsewhere = ask("alice"), ask("bob"), ask("carol", page=2)
    for request in (given_up, joined, elsewhere):
        await ledger.admit(request)
    generation = str(uuid4())
    cheaper = refund_of(joined, pb.REFUND_REASON_REPRICED, pb.OUTCOME_JOINED)
    cheaper.generation_id = generation
    await ledger.refund(refund_of(given_up, pb.REFUND_REASON_REQUEST_ABORTED), cheaper)

    await ledger.record(operation_of(generation_id=generation))

    assert [(await ledger.costs(user)).total.operations for user in ("alice", "bob", "carol")] == [
        0,
        0,
        0,
    ]
    assert (await ledger.costs()).total.cost_nanodollars == COST


async def test_two_generations_of_a_page_find_one_starter_each(ledger: Ledger) -> None:
    await ledger.admit(ask("alice"))
    await ledger.admit(ask("bob"))

    await ledger.record(*(operation_of(generation_id=str(uuid4())) for _ in range(2)))

    spent = [(await ledger.costs(user)).total.cost_nanodollars for user in ("alice", "bob")]
    assert spent == [COST, COST]


async def test_sharing_saves_what_hits_and_joins_would_have_cost(ledger: Ledger) -> None:
    generation = str(uuid4())
    await ledger.admit(ask("alice", generation_id=generation))
    await ledger.admit(ask("bob", outcome=pb.OUTCOME_JOINED, generation_id=generation))
    await ledger.record(operation_of(generation_id=generation, outcome="model_timeout"))
    await ledger.record(operation_of(generation_id=generation, attempt=2))
    for _ in range(2):
        await ledger.admit(ask("carol", outcome=pb.OUTCOME_CACHED, generation_id=generation))

    alice, bob, carol = [await ledger.costs(user) for user in ("alice", "bob", "carol")]
    everybody = await ledger.costs()

    assert (alice.total.cost_nanodollars, alice.total.saved_nanodollars) == (2 * COST, 0)
    assert (bob.total.cost_nanodollars, bob.total.saved_nanodollars) == (0, 2 * COST)
    assert (carol.total.shared_requests, carol.total.saved_nanodollars) == (2, 4 * COST)
    assert (everybody.total.cost_nanodollars, everybody.total.saved_nanodollars) == (
        2 * COST,
        6 * COST,
    )
    summary = await ledger.connection.fetchrow("SELECT * FROM quota.daily_summary")
    assert summary is not None
    assert (summary["cost_nanodollars"], summary["saved_nanodollars"]) == (2 * COST, 6 * COST)


async def test_what_is_private_refunded_or_repriced_does_not_distort_what_was_saved(
    ledger: Ledger,
) -> None:
    generation = str(uuid4())
    await ledger.record(operation_of(generation_id=generation, user_id="maker"))
    await ledger.share("recluse", False)
    hit: dict[str, Any] = {"outcome": pb.OUTCOME_CACHED, "generation_id": generation}
    unlucky, late = ask("unlucky", **hit), ask("late")
    await ledger.admit_many(ask("recluse", **hit), unlucky, late)
    await ledger.refund(
        refund_of(unlucky, pb.REFUND_REASON_GOODWILL),
        pb.RefundRequest.Item(
            request_id=late.request_id,
            user_id="late",
            reason=pb.REFUND_REASON_REPRICED,
            served_as=pb.OUTCOME_JOINED,
            generation_id=generation,
        ),
    )

    saved = {
        user: (await ledger.costs(user)).total.saved_nanodollars
        for user in ("recluse", "unlucky", "late")
    }

    assert saved == {"recluse": 0, "unlucky": 0, "late": COST}


async def test_costs_are_told_by_day_and_by_document(ledger: Ledger) -> None:
    await ledger.record(
        operation_of(user_id="alice"),
        operation_of(user_id="alice", pdf_hash=OTHER),
        operation_of(user_id="alice", pdf_hash=OTHER),
        operation_of(user_id="bob"),
    )
    today = datetime.now(UTC).date()

    report = await ledger.costs("alice")

    assert [(one.pdf_hash, one.costs.cost_nanodollars) for one in report.documents] == [
        (OTHER, 2 * COST),
        (HASH, COST),
    ]
    assert [(one.day, one.costs.operations) for one in report.days] == [(str(today), 3)]
    assert report.begins_at.ToDatetime().day == 1
    assert report.ends_at.ToDatetime() > report.begins_at.ToDatetime()


async def test_only_what_lies_in_the_time_span_is_told(ledger: Ledger) -> None:
    await ledger.record(operation_of(user_id="alice"))
    now = datetime.now(UTC)

    def at(days: int) -> Timestamp:
        moment = Timestamp()
        moment.FromDatetime(now + timedelta(days=days))
        return moment

    around = await ledger.costs("alice", begins_at=at(-1), ends_at=at(1))
    before = await ledger.costs("alice", begins_at=at(-9), ends_at=at(-1))

    assert (around.total.operations, before.total.operations) == (1, 0)
    for span in ({"begins_at": at(1), "ends_at": at(0)}, {"begins_at": at(-500), "ends_at": at(0)}):
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await ledger.costs("alice", **span)
        assert from_call(refusal.value).field == "ends_at"


async def test_users_see_their_own_costs_alone(ledger: Ledger, keys: Keys) -> None:
    bearer = metadata(keys.user_token("alice"))

    for request in (pb.GetUserCostsRequest(user_id="bob"), pb.GetUserCostsRequest()):
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await ledger.stub.GetUserCosts(request, metadata=bearer)
        assert from_call(refusal.value).reason == "NOT_YOUR_USER"


async def test_only_workers_and_admins_record(ledger: Ledger, keys: Keys) -> None:
    for token in (keys.user_token("alice"), keys.token("gateway"), keys.token("cache")):
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await ledger.stub.RecordOperations(
                pb.RecordOperationsRequest(operations=[operation_of()]), metadata=metadata(token)
            )
        assert refusal.value.code() == grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"operation_id": "x"}, "operation_id"),
        ({"endpoint": "fly"}, "endpoint"),
        ({"model": ""}, "model"),
        ({"model": "a\0b"}, "model"),
        ({"input_tokens": -1}, "input_tokens"),
        ({"input_tokens": 10**12}, "input_tokens"),
        ({"cached_input_tokens": 1001}, "cached_input_tokens"),
        ({"output_tokens": -1}, "output_tokens"),
        ({"duration": Duration(seconds=-1)}, "duration"),
        ({"duration": Duration(seconds=10**11)}, "duration"),
        ({"outcome": ""}, "outcome"),
        ({"attempt": -1}, "attempt"),
        ({"generation_id": "x"}, "generation_id"),
        ({"user_id": "a b"}, "user_id"),
        ({"page": 0}, "page.page"),
    ],
)
async def test_a_malformed_operation_names_its_field(
    ledger: Ledger, wrong: Mapping[str, Any], field: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await ledger.record(operation_of(), operation_of(**wrong))

    error = from_call(refusal.value)
    assert (error.code, error.field) == ("INVALID_ARGUMENT", f"operations[1].{field}")


async def test_a_spent_monthly_budget_stops_new_work_but_not_hits(
    databases: Mapping[str, str], keys: Keys
) -> None:
    budget = {"enforce_monthly_budget": True, "monthly_budget_dollars": 0.0024}
    async with quota_service(databases, keys, **budget) as ledger:
        await ledger.record(operation_of(user_id="alice"))
        assert (await ledger.admit(ask())).decision == pb.DECISION_ADMITTED
        await ledger.record(operation_of(user_id="alice"))

        spent = await ledger.admit(ask())
        hit = await ledger.admit(ask(outcome=pb.OUTCOME_CACHED))
        join = await ledger.admit(ask(outcome=pb.OUTCOME_JOINED))
        other = await ledger.admit(ask("bob"))

        assert spent.decision == pb.DECISION_BUDGET_EXHAUSTED
        assert {hit.decision, join.decision, other.decision} == {pb.DECISION_ADMITTED}
        told = (await budgets(ledger)).user
        assert (told.spent_nanodollars, told.limit_nanodollars) == (2 * COST, 2 * COST)
        assert told.exhausted
        assert told.resets_at.ToDatetime().day == 1
        until = datetime.now(UTC) + spent.retry_after.ToTimedelta()
        assert abs(until - told.resets_at.ToDatetime(tzinfo=UTC)) < timedelta(minutes=5)


async def test_budgets_are_off_unless_enforced(ledger: Ledger) -> None:
    await ledger.record(operation_of(user_id="alice", output_tokens=10**6))

    told = (await budgets(ledger)).user

    assert (await ledger.admit(ask())).decision == pb.DECISION_ADMITTED
    assert told.spent_nanodollars > 10**9
    assert not told.HasField("limit_nanodollars")
    assert not told.exhausted


async def test_the_ceiling_of_the_day_stops_new_work_until_the_day_ends(
    databases: Mapping[str, str], keys: Keys
) -> None:
    async with quota_service(databases, keys, daily_ceiling_dollars=0.0012) as ledger:
        await ledger.record(operation_of(user_id="somebody", pdf_hash=OTHER))

        refused = await ledger.admit(ask())
        hit = await ledger.admit(ask(outcome=pb.OUTCOME_CACHED))

        assert refused.decision == pb.DECISION_SPENDING_CEILING
        assert timedelta(0) < refused.retry_after.ToTimedelta() <= timedelta(days=1)
        assert hit.decision == pb.DECISION_ADMITTED
        assert (await budgets(ledger)).day.exhausted
        assert await ledger.balance("alice") == 999, "a refusal costs nothing"


async def test_the_ceiling_of_a_document_stops_new_work_on_it_alone(
    databases: Mapping[str, str], keys: Keys
) -> None:
    async with quota_service(databases, keys, document_ceiling_dollars=0.0012) as ledger:
        await ledger.record(operation_of(user_id="somebody"))

        refused = await ledger.admit(ask())
        elsewhere = await ledger.admit(ask(pdf_hash=OTHER))

        assert refused.decision == pb.DECISION_SPENDING_CEILING
        assert not refused.HasField("retry_after")
        assert elsewhere.decision == pb.DECISION_ADMITTED
        assert (await budgets(ledger, pdf_hash=HASH)).document.exhausted
        assert not (await budgets(ledger, pdf_hash=OTHER)).document.exhausted


async def test_what_everybody_spends_is_no_users_business(ledger: Ledger, keys: Keys) -> None:
    told = await budgets(ledger, token=keys.user_token("alice"), pdf_hash=HASH)
    served = await budgets(ledger, pdf_hash=HASH)

    assert told.HasField("user")
    assert not told.HasField("day")
    assert not told.HasField("document")
    assert served.HasField("day")
    assert served.HasField("document")


async def test_in_shadow_mode_ceilings_are_told_but_stop_nothing(
    databases: Mapping[str, str], keys: Keys
) -> None:
    shadow = {"shadow_limits": True, "daily_ceiling_dollars": 0.001}
    async with quota_service(databases, keys, **shadow) as ledger:
        await ledger.record(operation_of())

        answer = await ledger.admit(ask())

        assert answer.decision == pb.DECISION_ADMITTED
        assert answer.shadow_decision == pb.DECISION_SPENDING_CEILING
        assert not answer.HasField("retry_after")


async def test_recorded_calls_cannot_be_changed(ledger: Ledger) -> None:
    await ledger.record(operation_of())
    for statement in (
        "UPDATE quota.ai_operations SET cost_nanodollars = 0",
        "DELETE FROM quota.ai_operations",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await ledger.connection.execute(statement)


async def test_batches_over_the_same_subjects_do_not_deadlock(ledger: Ledger) -> None:
    generations = [str(uuid4()) for _ in range(6)]
    batches = [
        ledger.record(*(operation_of(generation_id=one, user_id="alice") for one in order))
        for order in (generations, generations[::-1]) * 5
    ]

    await asyncio.gather(*batches)

    assert (await ledger.costs("alice")).total.operations == 60
    assert await ledger.drift() == []


async def test_what_generations_cost_is_told_in_order_with_how_the_day_stands(
    ledger: Ledger,
) -> None:
    dear, cheap, free = (str(uuid4()) for _ in range(3))
    for generation_id in (dear, dear, cheap):
        await ledger.record(operation_of(generation_id=generation_id))

    answer = await ledger.stub.GetGenerationCosts(
        pb.GetGenerationCostsRequest(generation_ids=[free, dear, cheap]),
        metadata=metadata(ledger.keys.token("worker")),
    )

    assert list(answer.cost_nanodollars) == [0, 2 * COST, COST]
    assert answer.day.spent_nanodollars == 3 * COST
    assert not answer.day.exhausted


@pytest.mark.parametrize(
    ("ids", "scope", "code"),
    [
        (["x"], "worker", grpc.StatusCode.INVALID_ARGUMENT),
        ([str(uuid4())] * 1001, "worker", grpc.StatusCode.INVALID_ARGUMENT),
        ([], "gateway", grpc.StatusCode.PERMISSION_DENIED),
    ],
    ids=["malformed", "too many", "not a worker"],
)
async def test_costs_of_generations_are_for_workers_that_ask_properly(
    ledger: Ledger, ids: list[str], scope: str, code: grpc.StatusCode
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ledger.stub.GetGenerationCosts(
            pb.GetGenerationCostsRequest(generation_ids=ids),
            metadata=metadata(ledger.keys.token(scope)),
        )

    assert caught.value.code() == code
