"""The SQL that decides is held against a plain Python model of the rules, step by step."""

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4, uuid5

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from services.doctor.bounds import AT_REST, Allowed
from services.doctor.examine import find_violations
from services.quota.domain import (
    DAY,
    HARD_WINDOW,
    PLANS,
    SOFT_WINDOW,
    AdmitRequest,
    Answer,
    Decision,
    Limits,
    Outcome,
    Refund,
    Rules,
    Windows,
    limits_of,
)
from services.quota.store import QuotaStore
from services.runtime.database import Database
from tests.quota.conftest import HASH
from tests.quota.model import Account, Model, Told

START = datetime(2026, 1, 1, tzinfo=UTC)
# Two endpoints, though there is one so far: the daily window counts across them.
LIMITS = Limits(soft=1, hard=2, daily=4)
RULES = Rules(
    limits={(plan, endpoint): LIMITS for plan in PLANS for endpoint in ("explain_page", "fly")},
    units=dict.fromkeys(PLANS, 5),
    prices={Outcome.GENERATED: 2, Outcome.CACHED: 1, Outcome.JOINED: 0},
    period=timedelta(days=31),
)
PAUSES = [
    timedelta(0),
    timedelta(microseconds=1),
    timedelta(seconds=3),
    HARD_WINDOW - timedelta(microseconds=1),
    HARD_WINDOW,
    timedelta(minutes=1),
    timedelta(hours=24) - timedelta(microseconds=1),
    timedelta(hours=24),
    timedelta(days=31),
    timedelta(days=70),
]

users = st.sampled_from(["alice", "alice", "bob"])
# Few enough to come again, many enough to be new.
numbers = st.one_of(st.integers(0, 4), st.integers(0, 99))
outcomes = st.sampled_from([outcome.value for outcome in Outcome])
asks = st.fixed_dictionaries(
    {
        "user": users,
        "number": numbers,
        "outcome": outcomes,
        "endpoint": st.sampled_from(["explain_page", "explain_page", "fly"]),
        "page": st.sampled_from([1, 1, 1, 2]),
        "expected": st.sampled_from([None, None, None, None, True, False]),
    }
)
refunds = st.fixed_dictionaries(
    {
        "user": users,
        "number": numbers,
        "reason": st.sampled_from(["generation_failed", "request_aborted", "repriced", "goodwill"]),
        "served_as": outcomes,
        "generation": st.booleans(),
    }
)
steps = st.one_of(
    st.tuples(st.just("admit"), st.lists(asks, min_size=1, max_size=6)),
    st.tuples(st.just("admit"), st.lists(asks, min_size=3, max_size=4)),
    st.tuples(st.just("wait"), st.sampled_from(PAUSES)),
    st.tuples(st.just("refund"), st.lists(refunds, min_size=1, max_size=3)),
    st.tuples(st.just("reset"), st.tuples(users, numbers, st.booleans())),
    st.tuples(st.just("share"), st.tuples(users, st.booleans())),
    st.tuples(st.just("wait"), st.sampled_from(PAUSES)),
)


@dataclass
class World:
    """The database and the model side by side; every example has users and ids of its own."""

    database: Database
    rules: Rules
    space: UUID
    now: datetime = START
    seen: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.store = QuotaStore(self.database, self.rules)
        self.model = Model(self.rules)

    def user(self, name: str) -> str:
        return f"{name}-{self.space}"

    def request(self, ask: Mapping[str, Any]) -> AdmitRequest:
        return AdmitRequest(
            request_id=uuid5(self.space, f"request {ask['number']}"),
            user_id=self.user(ask["user"]),
            endpoint=ask["endpoint"],
            outcome=ask["outcome"],
            generation_id=None
            if ask["outcome"] == "generated"
            else uuid5(self.space, "generation"),
            pdf_hash=HASH,
            page=ask["page"],
            locale="en",
            effective_mode="text_only",
            expected_share_to_cache=ask["expected"],
        )

    def refund(self, given: Mapping[str, Any]) -> Refund:
        repriced = given["reason"] == "repriced"
        return Refund(
            request_id=uuid5(self.space, f"request {given['number']}"),
            user_id=self.user(given["user"]),
            reason=given["reason"],
            served_as=given["served_as"] if repriced else None,
            generation_id=uuid5(self.space, "another") if given["generation"] else None,
        )

    async def take(self, step: str, what: Any) -> None:
        if step == "admit":
            requests = [self.request(ask) for ask in what]
            answers = await self.store.admit_many(requests, moment=self.now)
            expected = [self.model.admit(request, self.now) for request in requests]
            for answer, told, request in zip(answers, expected, requests, strict=True):
                self.seen |= {answer.decision, f"shadow {answer.shadow_decision}"}
                assert answer == as_answer(told, self.rules, request.endpoint)
        elif step == "refund":
            given_back = [self.refund(one) for one in what]
            settled = await self.store.settle_refunds(given_back, moment=self.now)
            self.seen |= {one.result for one in settled}
            assert settled == [self.model.settle(one, self.now) for one in given_back]
        elif step == "reset":
            await self.reset(*what)
        elif step == "share":
            await self.share(*what)
        else:
            self.now += what

    async def reset(self, name: str, number: int, clear_windows: bool) -> None:
        # One id for each user and number: what another user does with it is an error, tested apart.
        reset_id = uuid5(self.space, f"reset {name} {number}")
        user = self.user(name)
        async with self.database.connection() as connection:
            units = await connection.fetchval(
                "SELECT quota.reset_quota($1, $2, $3, 'test', $4, $5)",
                self.rules.as_json(),
                user,
                reset_id,
                clear_windows,
                self.now,
            )
        assert units == self.model.reset(user, reset_id, clear_windows, self.now)

    async def share(self, name: str, choice: bool) -> None:
        async with self.database.connection() as connection:
            await connection.execute(
                "INSERT INTO quota.user_preferences (user_id, share_to_cache) VALUES ($1, $2)"
                " ON CONFLICT (user_id) DO UPDATE SET share_to_cache = $2",
                self.user(name),
                choice,
            )
            await connection.fetchval(
                "SELECT quota.lock_accounts($1, ARRAY[$2::text], $3)",
                self.rules.as_json(),
                self.user(name),
                self.now,
            )
        self.model.open(self.user(name), self.now).shares = choice

    async def compare(self) -> None:
        """Ledger sum, balance and windows are the model's, and every invariant holds."""
        async with self.database.connection() as connection:
            for name, account in self.model.accounts.items():
                row = await connection.fetchrow(
                    "SELECT balance_units, period_ends_at,"
                    " (SELECT array_agg(units ORDER BY entry_id) FROM quota.ledger_entries"
                    "  WHERE user_id = $1) AS entries FROM quota.accounts WHERE user_id = $1",
                    name,
                )
                assert row is not None
                assert tuple(row) == (account.balance, account.period_ends_at, account.entries)
                await self._compare_windows(connection, name, account)
            await check_invariants(connection, self.rules)

    async def _compare_windows(self, connection: Any, name: str, account: Account) -> None:
        for endpoint in ("explain_page", "fly"):
            used = await connection.fetchrow(
                "SELECT soft_used, soft_since, hard_used, hard_since, daily_used, daily_since"
                " FROM quota.windows_of($1, $2, $3, $4, $5, $6)",
                name,
                endpoint,
                ["explain_page", "fly"],
                self.now - SOFT_WINDOW,
                self.now - HARD_WINDOW,
                self.now - DAY,
            )
            assert Windows(*used) == self.model.windows(account, endpoint, self.now)


def as_answer(told: Told, rules: Rules, endpoint: str) -> Answer:
    limits = limits_of(rules.limits[rules.first_plan, endpoint], told.windows)
    fields = {name: getattr(told, name) for name in Answer._fields if name != "limits"}
    return Answer(**fields, limits=limits)


async def check_invariants(connection: Any, rules: Rules) -> None:
    limits = () if rules.shadow else rules.limits.items()
    allowed = [
        Allowed(plan=plan, endpoint=endpoint, hard=limit.hard, daily=limit.daily)
        for (plan, endpoint), limit in limits
    ]
    bounds = replace(AT_REST, limits=allowed)
    assert await find_violations(connection, bounds=bounds, only={"quota"}) == {}


@pytest.mark.parametrize("shadow", [False, True])
@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(taken=st.lists(steps, min_size=1, max_size=30))
async def test_whatever_happens_in_whatever_order_sql_and_model_agree(
    database: Database, shadow: bool, taken: Sequence[tuple[str, Any]]
) -> None:
    # The ledger cannot be emptied, not even by its owner: each example has users of its own.
    world = World(database, replace(RULES, shadow=shadow), uuid4())
    for step, what in taken:
        await world.take(step, what)
        await world.compare()
    for seen in world.seen:
        event(seen)


async def test_a_long_walk_meets_every_decision_and_agrees_on_each(database: Database) -> None:
    """The same steps by dice with a seed: what hypothesis may leave out happens here."""
    dice = random.Random(11)
    world = World(database, RULES, uuid4())
    for _ in range(400):
        await world.take(*throw(dice))
        await world.compare()

    money = {"budget_exhausted", "spending_ceiling"}  # tested with the costs
    results = {"refunded", "already_settled", "voided", "repriced"}
    assert (
        world.seen - {"shadow None"} == {decision.value for decision in Decision} - money | results
    )


def throw(dice: random.Random) -> tuple[str, Any]:
    ask: dict[str, Any] = {
        "user": dice.choice(["alice", "alice", "bob"]),
        "number": dice.randrange(dice.choice([5, 1000])),
        "outcome": dice.choice(list(Outcome)).value,
        "endpoint": dice.choice(["explain_page", "explain_page", "fly"]),
        "page": dice.choice([1, 1, 1, 2]),
        "expected": dice.choice([None, None, None, True, False]),
    }
    back = {
        **ask,
        "reason": dice.choice(["generation_failed", "request_aborted", "repriced", "goodwill"]),
        "served_as": dice.choice(list(Outcome)).value,
        "generation": dice.random() < 0.5,
    }
    chance = dice.random()
    if chance < 0.55:
        return "admit", [{**ask, "number": ask["number"] + n} for n in range(dice.randrange(1, 5))]
    if chance < 0.75:
        return "refund", [back]
    if chance < 0.78:
        return "reset", (ask["user"], ask["number"], dice.random() < 0.5)
    if chance < 0.82:
        return "share", (ask["user"], dice.random() < 0.7)
    return "wait", dice.choice(PAUSES[:-2] * 5 + PAUSES[-2:])


async def test_racing_messages_leave_a_ledger_that_adds_up(database: Database) -> None:
    """Admits, replays, refunds and resets of the same ids at the same time, in no order at all."""
    dice = random.Random(7)
    world = World(database, RULES, UUID(int=7))
    people = ["alice", "bob", "carol"]
    calls: list[Any] = []
    for _ in range(150):
        ask: dict[str, Any] = {
            "user": dice.choice(people),
            "number": dice.randrange(40),
            "outcome": dice.choice(list(Outcome)).value,
            "endpoint": "explain_page",
            "page": 1,
            "expected": None,
        }
        given_back = {
            **ask,
            "reason": dice.choice(["generation_failed", "request_aborted", "repriced"]),
            "served_as": "joined",
            "generation": False,
        }
        calls.append(world.store.admit_many([world.request(ask)]))
        calls.append(world.store.settle_refunds([world.refund(given_back)]))
        calls.append(
            world.store.reset_quota(
                world.user(ask["user"]),
                request_id=uuid5(world.space, f"reset {ask['user']} {dice.randrange(3)}"),
                reason="test",
                clear_windows=False,
            )
        )
    dice.shuffle(calls)

    await asyncio.gather(*calls)

    async with database.connection() as connection:
        await check_invariants(connection, RULES)
        charged = await connection.fetchval("SELECT count(*) FROM quota.explain_requests")
    assert charged > 0
