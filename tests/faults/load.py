"""A crowd of clients at work, and the questions asked when it has gone home."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta

from tests.faults.client import Client, Log, Wrong
from tests.faults.compare import find_differences
from tests.faults.house import AT_REST, House
from tests.suite import lecture

# What recovery may take, without a hand.
RECOVERY = timedelta(seconds=60)
USERS = 6
SHARED_PAGES = 12
PROBE_PAGES = 400


class Broken(AssertionError):
    """A promise was not kept."""


class Load:
    """Users who ask for the same and for different things until the block ends."""

    def __init__(self, house: House, *, seed: int, users: int = USERS) -> None:
        self.log = Log()
        self.recoveries: list[float] = []
        self._house = house
        self._stop = asyncio.Event()
        self._probe = Client(house, self.log, user="probe", seed=f"{seed}-probe")
        self._probed = ""
        self._probes = 0
        self._clients = [
            Client(house, self.log, user=f"user-{number}", seed=f"{seed}-{number}")
            for number in range(users)
        ]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Clients ask while the block runs; when it ends, whatever they were told must hold."""
        await self._upload_documents()
        asking = [asyncio.create_task(client.go_on(self._stop)) for client in self._clients]
        try:
            yield
            self._stop.set()
            await within_recovery("clients are not served", asyncio.gather(*asking))
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        await self._settle()

    async def recover(self, grace: timedelta = RECOVERY) -> None:
        """Somebody new is served, nobody was told anything wrong, and the doctor is content."""
        began = time.monotonic()
        self._probes += 1
        page = (self._probes - 1) % PROBE_PAGES + 1
        try:
            await within_recovery(
                "a new page is not explained", self._probe.get(self._probed, page)
            )
        except Wrong as error:
            raise Broken(str(error)) from error
        self.recoveries.append(time.monotonic() - began)
        self._raise_what_was_wrong()
        await self._ask_the_doctor(grace)

    def summary(self) -> str:
        return (
            f"{len(self.log.acknowledged)} answers, {self.log.retries} retries,"
            f" {len(self.log.given_up)} ids given up unanswered,"
            f" recovery {max(self.recoveries, default=0):.1f} s at most,"
            f" calls {max(self.log.late_seconds, 0):.1f} s beyond their deadline at most"
        )

    async def _upload_documents(self) -> None:
        shared = lecture(*(f"Page {number} is about entropy." for number in range(SHARED_PAGES)))
        probed = lecture(*(f"Page {number} is about probes." for number in range(PROBE_PAGES)))
        for client in self._clients:
            await client.upload(shared, SHARED_PAGES)
        self._probed = await self._probe.upload(probed, PROBE_PAGES)

    async def _settle(self) -> None:
        """Nothing is broken any more: all work ends, and what was told holds."""
        self._raise_what_was_wrong()
        rest = self._house.until(AT_REST, seconds=RECOVERY.total_seconds())
        await within_recovery("work is left over", rest)
        await self._ask_the_doctor(timedelta())
        clients = {client.user: client for client in (*self._clients, self._probe)}
        for known in self.log.acknowledged:
            await clients[known.ask.user].ask_again(known)
        self._raise_what_was_wrong()
        if differences := await find_differences(self._house, self.log):
            raise Broken("what was told does not hold:\n" + "\n".join(differences))

    async def _ask_the_doctor(self, grace: timedelta) -> None:
        """Directly, not over a wire; a server that is about to come back is waited for."""
        await within_recovery("the database stays away", self._house.until("SELECT true"))
        if found := await self._house.violations(grace):
            raise Broken(f"the doctor, with {grace.seconds} s of grace:\n{_lines(found)}")

    def _raise_what_was_wrong(self) -> None:
        if self.log.wrong:
            raise Broken("\n".join(self.log.wrong))


async def within_recovery(otherwise: str, waiting: Awaitable[object]) -> None:
    try:
        async with asyncio.timeout(RECOVERY.total_seconds()):
            await waiting
    except TimeoutError:
        raise Broken(f"{otherwise} within {RECOVERY.seconds} s") from None


def _lines(found: Mapping[str, list[str]]) -> str:
    return "\n".join(f"{name}: {row}" for name, rows in found.items() for row in rows)
