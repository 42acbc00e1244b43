"""The state machines that drive the model: hypothesis chooses what happens next."""

from collections.abc import Sequence
from typing import ClassVar, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.protocol.bugs import Bug
from tests.protocol.cache_model import Ask
from tests.protocol.model import KEYS, REQUEST_IDS, USERS, World

Item = TypeVar("Item")

any_ask = st.builds(
    Ask,
    request_id=st.sampled_from(REQUEST_IDS),
    user=st.sampled_from(USERS),
    key=st.sampled_from(KEYS),
)
places = st.integers(min_value=0, max_value=7)
flags = st.booleans()
rarely = st.integers(min_value=0, max_value=3).map(lambda number: number == 3)

MOST_TASKS = 4


def pick(items: Sequence[Item], place: int) -> Item:
    return items[place % len(items)]


class CallsMachine(RuleBasedStateMachine):
    """Callers who crowd around a few ids and pages, while calls crash and messages go astray."""

    bug: ClassVar[Bug | None] = None

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.bug)
        self.asked: list[Ask] = []

    @invariant()
    def holds(self) -> None:
        self.world.properties.check()

    @precondition(lambda self: len(self.world.tasks) < MOST_TASKS)
    @rule(place=st.sampled_from((0, 1)))
    def caller_asks(self, place: int) -> None:
        """One of two users, each with an id of their own, for the same page."""
        self.start(Ask(REQUEST_IDS[place], USERS[place], KEYS[0]))

    @precondition(lambda self: self.world.tasks)
    @rule(place=places, steps=st.integers(min_value=1, max_value=4))
    def process_goes_on(self, place: int, steps: int) -> None:
        """The next transactions commit, and Quota is there to answer."""
        task = pick(self.world.tasks, place)
        for _ in range(steps):
            self.world.go_on(task)
            self.world.properties.check()

    @precondition(lambda self: self.world.tasks)
    @rule(place=places, dies=rarely)
    def process_takes_one_step(self, place: int, dies: bool) -> None:
        task = pick(self.world.tasks, place)
        self.world.crash(task) if dies else self.world.go_on(task)

    @precondition(lambda self: self.world.network)
    @rule(place=places, full=flags, answer_lost=rarely, again=rarely)
    def message_arrives(self, place: int, full: bool, answer_lost: bool, again: bool) -> None:
        envelope = pick(self.world.network, place)
        self.world.deliver(envelope, full=full, answer_lost=answer_lost, again=again)

    @precondition(lambda self: self.world.network)
    @rule(place=places, lost=flags)
    def message_is_late(self, place: int, lost: bool) -> None:
        self.world.time_out(pick(self.world.network, place), lost=lost)

    @precondition(lambda self: self.world.open_intents())
    @rule(place=places)
    def intent_grows_older(self, place: int) -> None:
        self.world.grow_older(pick(self.world.open_intents(), place))

    @precondition(lambda self: self.world.cache.find_overdue())
    @rule(works=flags)
    def job_is_done(self, works: bool) -> None:
        """On a good day: leased, worked on, ended."""
        lease = self.world.lease()
        if lease is not None:
            calls = self.world.calls
            ending = calls.complete(lease) if works else calls.fail(lease, permanent=True)
            self.world.go_on(self.world.start(ending))

    @precondition(lambda self: self.world.needs_sweeping())
    @rule(late=rarely)
    def sweep_runs(self, late: bool) -> None:
        self.world.finish(self.world.start(self.world.calls.sweep(late=late)))

    @precondition(lambda self: self.world.cache.outbox)
    @rule(at_once=flags)
    def relay_runs(self, at_once: bool) -> None:
        task = self.world.start(self.world.calls.relay())
        if at_once:
            self.world.finish(task)

    def teardown(self) -> None:
        some = len(self.asked)
        self.world.settle(works=some % 2 == 0, late_messages=some % 3 > 0)

    def start(self, ask: Ask) -> None:
        self.asked.append(ask)
        self.world.ask(ask)


class ProtocolMachine(CallsMachine):
    """All of it: more ids and pages, workers that pause and come back, invalidation, retention."""

    @precondition(lambda self: len(self.world.tasks) < MOST_TASKS)
    @rule(ask=any_ask)
    def client_asks(self, ask: Ask) -> None:
        self.start(ask)

    @precondition(lambda self: len(self.world.tasks) < MOST_TASKS)
    @rule(ask=any_ask)
    def client_is_answered_at_once(self, ask: Ask) -> None:
        self.start(ask)
        if self.world.tasks and self.world.tasks[-1].ask is ask:
            self.world.finish(self.world.tasks[-1])

    @precondition(lambda self: self.asked and len(self.world.tasks) < MOST_TASKS)
    @rule(place=places)
    def client_asks_again(self, place: int) -> None:
        self.world.ask(pick(self.asked[::-1], place))

    @precondition(lambda self: self.world.needs_sweeping())
    @rule(late=flags)
    def sweep_starts(self, late: bool) -> None:
        self.world.start(self.world.calls.sweep(late=late))

    @rule(now=rarely, works=flags, late_messages=flags)
    def everything_settles(self, now: bool, works: bool, late_messages: bool) -> None:
        if now:
            self.world.settle(works=works, late_messages=late_messages)

    @rule(request_id=st.sampled_from(REQUEST_IDS[-2:]))
    def client_is_done_with(self, request_id: int) -> None:
        self.world.retire(request_id)

    @precondition(lambda self: self.world.has_ended_requests())
    @rule()
    def old_rows_are_forgotten(self) -> None:
        self.world.forget_old()

    @rule(key=st.sampled_from(KEYS))
    def result_is_invalidated(self, key: str) -> None:
        self.world.cache.retire(key)

    @precondition(lambda self: self.world.cache.find_overdue())
    @rule()
    def worker_leases(self) -> None:
        self.world.lease()

    @precondition(lambda self: self.world.leases)
    @rule(place=places)
    def lease_runs_out(self, place: int) -> None:
        self.world.lease_runs_out(pick(self.world.leases[::-1], place))

    @precondition(lambda self: self.world.leases)
    @rule(place=places)
    def worker_renews(self, place: int) -> None:
        self.world.cache.renew_lease(pick(self.world.leases[::-1], place))

    @precondition(lambda self: self.world.leases)
    @rule(place=places)
    def worker_completes(self, place: int) -> None:
        lease = pick(self.world.leases[::-1], place)
        self.world.go_on(self.world.start(self.world.calls.complete(lease)))

    @precondition(lambda self: self.world.leases)
    @rule(place=places, permanent=flags)
    def worker_fails(self, place: int, permanent: bool) -> None:
        lease = pick(self.world.leases[::-1], place)
        self.world.go_on(self.world.start(self.world.calls.fail(lease, permanent=permanent)))

    @precondition(lambda self: self.world.leases)
    @rule(place=places)
    def worker_gives_back(self, place: int) -> None:
        self.world.cache.release_job(pick(self.world.leases[::-1], place))
