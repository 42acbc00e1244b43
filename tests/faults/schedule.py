"""Random faults from a seed: which, where and how long; after each one everything must be well."""

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from tests.faults.client import Client, Log
from tests.faults.compare import find_differences
from tests.faults.fault_proxy import Manner, Weather
from tests.faults.house import AT_REST, LEASE_SECONDS, REPLICAS, House, wire_names
from tests.suite import lecture

# What recovery may take, without a hand.
RECOVERY = timedelta(seconds=60)
USERS = 6
SHARED_PAGES = 12
PROBE_PAGES = 400
WEATHERS = (
    Weather(manner=Manner.DELAY, seconds=0.2),
    Weather(manner=Manner.DELAY, seconds=2.0),
    Weather(manner=Manner.DELAY, seconds=30.0),
    Weather(manner=Manner.DRIP, bytes_per_second=1000),
    Weather(manner=Manner.BLACK_HOLE),
    Weather(manner=Manner.RESET),
    Weather(manner=Manner.ANSWER_LOST),
)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One thing that goes wrong for a while."""

    what: str
    where: str
    seconds: float
    weather: Weather | None = None

    def __str__(self) -> str:
        return f"{self.what} {self.where} for {self.seconds:.1f} s"

    @asynccontextmanager
    async def happening(self, house: House) -> AsyncIterator[None]:
        """It has begun; when the block ends it is over."""
        if self.weather is not None:
            house.wires[self.where].set(self.weather)
        elif self.where == "postgres":
            house.crash_database(SIGNALS[self.what])
        else:
            house.send_signal(self.where, SIGNALS[self.what])
        try:
            yield
        finally:
            if self.weather is not None:
                house.wires[self.where].set(Weather())
            elif self.what == "freeze":
                house.send_signal(self.where, signal.SIGCONT)


SIGNALS = {
    "kill": signal.SIGKILL,
    "terminate": signal.SIGTERM,
    "freeze": signal.SIGSTOP,
    "crash": signal.SIGKILL,
    "abort": signal.SIGQUIT,
}


def faults(seed: int) -> "Callable[[], list[Fault]]":
    """The next faults at each call, one or two at once; the same for the same seed."""
    dice = random.Random(seed)

    def one() -> Fault:
        kind = dice.choices(("process", "wire", "database"), weights=(4, 5, 1))[0]
        if kind == "wire":
            weather = dice.choice(WEATHERS)
            where = dice.choice(wire_names())
            return Fault(
                what=str(weather), where=where, seconds=dice.uniform(1, 6), weather=weather
            )
        if kind == "database":
            return Fault(what=dice.choice(("crash", "abort")), where="postgres", seconds=1)
        what = dice.choice(("kill", "terminate", "freeze"))
        longest = 3 * LEASE_SECONDS if what == "freeze" else 1
        seconds = dice.uniform(longest / 2, longest)
        return Fault(what=what, where=dice.choice(sorted(REPLICAS)), seconds=seconds)

    def some() -> list[Fault]:
        chosen = [one() for _ in range(dice.choice((1, 1, 2)))]
        # Two on the same place would end each other.
        return chosen if len({fault.where for fault in chosen}) == len(chosen) else chosen[:1]

    return some


@dataclass(kw_only=True)
class Story:
    """What happened, for who has to find out why."""

    seed: int
    seconds: float
    began: float = field(default_factory=time.monotonic)
    told: list[str] = field(default_factory=list)
    recoveries: list[float] = field(default_factory=list)

    def tell(self, words: object) -> None:
        line = f"{time.monotonic() - self.began:7.1f} s  {words}"
        self.told.append(line)
        print(line, flush=True)

    def failed(self, why: str) -> AssertionError:
        again = f"make faults SEED={self.seed} FAULT_MINUTES={self.seconds / 60:g}"
        return AssertionError("\n".join([f"{why}\n\nagain: {again}", *self.told]))


class Schedule:
    """A house under load, one fault after another, and the questions that follow each."""

    def __init__(self, house: House, *, seed: int, seconds: float) -> None:
        self._house = house
        self._seconds = seconds
        self._next = faults(seed)
        self.log = Log()
        self.story = Story(seed=seed, seconds=seconds)
        self._stop = asyncio.Event()
        self._probe = Client(house, self.log, user="probe", seed=f"{seed}-probe")
        self._clients = [
            Client(house, self.log, user=f"user-{number}", seed=f"{seed}-{number}")
            for number in range(USERS)
        ]

    async def run(self) -> None:
        print(f"seed {self.story.seed}", flush=True)
        probed = await self._upload_documents()
        loop = asyncio.get_running_loop()
        ends = loop.time() + self._seconds
        async with asyncio.TaskGroup() as group:
            for client in self._clients:
                group.create_task(client.go_on(self._stop))
            page = 0
            while loop.time() < ends:
                await self._one_round(probed, page := page % PROBE_PAGES + 1)
            self._stop.set()
        await self._settle()

    async def _upload_documents(self) -> str:
        shared = lecture(*(f"Page {number} is about entropy." for number in range(SHARED_PAGES)))
        probed = lecture(*(f"Page {number} is about probes." for number in range(PROBE_PAGES)))
        for client in self._clients:
            await client.upload(shared, SHARED_PAGES)
        return await self._probe.upload(probed, PROBE_PAGES)

    async def _one_round(self, probed: str, page: int) -> None:
        chosen = self._next()
        async with AsyncExitStack() as stack:
            for fault in chosen:
                self.story.tell(fault)
                await stack.enter_async_context(fault.happening(self._house))
            await asyncio.sleep(max(fault.seconds for fault in chosen))
        began = time.monotonic()
        await self._within_recovery("a new page is not explained", self._probe.get(probed, page))
        self.story.recoveries.append(time.monotonic() - began)
        self._raise_what_was_wrong()
        found = await self._ask_the_doctor(RECOVERY)
        if found:
            raise self.story.failed(f"after {chosen[-1]}: {_lines(found)}")

    async def _settle(self) -> None:
        """Nothing is broken any more: all work ends, and what was told holds."""
        rest = self._house.until(AT_REST, seconds=RECOVERY.total_seconds())
        await self._within_recovery("work is left over", rest)
        if found := await self._ask_the_doctor(timedelta()):
            raise self.story.failed(f"in the end: {_lines(found)}")
        for known in self.log.acknowledged:
            await self._client(known.ask.user).ask_again(known)
        self._raise_what_was_wrong()
        if differences := await find_differences(self._house, self.log):
            raise self.story.failed("what was told does not hold:\n" + "\n".join(differences))
        self.story.tell(
            f"{len(self.log.acknowledged)} answers, {self.log.retries} retries,"
            f" {len(self.log.given_up)} ids given up unanswered,"
            f" recovery {max(self.story.recoveries, default=0):.1f} s at most"
        )

    def _client(self, user: str) -> Client:
        return next(one for one in (*self._clients, self._probe) if one.user == user)

    async def _ask_the_doctor(self, grace: timedelta) -> Mapping[str, list[str]]:
        """Directly, not over a wire; a server that is about to come back is waited for."""
        await self._within_recovery("the database stays away", self._house.until("SELECT true"))
        return await self._house.violations(grace)

    async def _within_recovery(self, otherwise: str, waiting: Awaitable[object]) -> None:
        try:
            async with asyncio.timeout(RECOVERY.total_seconds()):
                await waiting
        except TimeoutError:
            raise self.story.failed(f"{otherwise} within {RECOVERY.seconds} s") from None

    def _raise_what_was_wrong(self) -> None:
        if self.log.wrong:
            raise self.story.failed("\n".join(self.log.wrong))


def _lines(found: Mapping[str, list[str]]) -> str:
    return "\n".join(f"{name}: {row}" for name, rows in found.items() for row in rows)
