"""Random faults from a seed: which, where and how long; after each one everything must be well."""

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from tests.faults.fault_proxy import FAIR, Manner, Weather
from tests.faults.house import LEASE_SECONDS, REPLICAS, House, wire_names
from tests.faults.load import Broken, Load

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
                house.wires[self.where].set(FAIR)
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


class Schedule:
    """A house under load and one fault after another; tells what it does as it does it."""

    def __init__(self, house: House, *, seed: int, seconds: float) -> None:
        self._house = house
        self._seed = seed
        self._seconds = seconds
        self._next = faults(seed)
        self._began = time.monotonic()
        self._told: list[str] = []
        self.load = Load(house, seed=seed)

    async def run(self) -> None:
        again = f"again: make faults SEED={self._seed} FAULT_MINUTES={self._seconds / 60:g}"
        print(f"\nseed {self._seed}; {again}", flush=True)
        try:
            async with self.load.running():
                while time.monotonic() < self._began + self._seconds:
                    await self._one_round()
        except Broken as error:
            raise Broken("\n".join([str(error), "", again, *self._told])) from error
        self._tell(self.load.summary())

    async def _one_round(self) -> None:
        chosen = self._next()
        async with AsyncExitStack() as stack:
            for fault in chosen:
                self._tell(fault)
                await stack.enter_async_context(fault.happening(self._house))
            await asyncio.sleep(max(fault.seconds for fault in chosen))
        await self.load.recover()

    def _tell(self, words: object) -> None:
        self._told.append(f"{time.monotonic() - self._began:7.1f} s  {words}")
        print(self._told[-1], flush=True)
