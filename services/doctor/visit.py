"""One visit of the doctor: everything that was asked for, looked at once."""

import asyncio
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import asyncpg

from services.doctor.auditor import LOST, auditor_url, connected
from services.doctor.bounds import Bounds
from services.doctor.environment import Probe, Surroundings, probes, service_probes
from services.doctor.examine import examine
from services.doctor.invariant import Invariant, all_invariants, is_meant
from services.doctor.stored_bytes import STORED, examine_bytes, open_store, store_folder
from services.doctor.verdict import CannotCheck, Check, Kind, Report, Status
from services.local.errors import AdvisedError
from services.local.layout import AUDITOR_VARIABLE, suite_addresses
from services.local.supervisor import plan_from
from services.runtime.errors import GlossaError
from services.runtime.server import CannotStart

if TYPE_CHECKING:
    Connection = asyncpg.Connection[Any]
else:
    Connection = asyncpg.Connection

PATIENT = "--full looks into buckets too"


@dataclass(frozen=True, kw_only=True)
class Visit:
    """What to look at, and how far things may go."""

    around: Surroundings
    bounds: Bounds
    environment: Mapping[str, str]
    # Names, last parts of names or schemas; empty means everything.
    only: Collection[str] = ()

    async def look(self) -> Report:
        """Everything, whatever of it is out of reach."""
        began = time.perf_counter()
        async with AsyncExitStack() as stack:
            connect = await self._database(stack)
            checks = await self._environment(connect)
            checks += await self._invariants(connect)
            checks += await self._stored(connect, stack)
        return Report(
            checks=checks, taken_at=datetime.now(UTC), seconds=time.perf_counter() - began
        )

    async def _database(self, stack: AsyncExitStack) -> Callable[[], "Connection"]:
        """The database, or whoever asks for it is told why there is none."""
        try:
            url = auditor_url(self.environment)
            connection = await stack.enter_async_context(connected(url))
        except AdvisedError as error:
            reason = CannotCheck(error.message, next_step=error.next_step)

            def refuse() -> "Connection":
                raise reason

            return refuse
        return lambda: connection

    async def _environment(self, connect: Callable[[], "Connection"]) -> list[Check]:
        services = self._meant(service_probes(self.around))
        answers = await asyncio.gather(*(probe.check() for probe in services))
        # One connection answers one question at a time.
        others = self._meant(probes(self.around, connect))
        return [*answers, *[await probe.check() for probe in others]]

    def _meant(self, probes: Sequence[Probe]) -> list[Probe]:
        return [probe for probe in probes if is_meant(probe.check_name, self.only)]

    async def _invariants(self, connect: Callable[[], "Connection"]) -> list[Check]:
        chosen = [one for one in all_invariants() if is_meant(one.name, self.only)]
        try:
            return await examine(connect(), chosen, self.bounds) if chosen else []
        except AdvisedError as error:
            return _unreachable(chosen, error)
        except LOST as error:
            lost = CannotCheck(f"the database went away: {error}", next_step="look again")
            return _unreachable(chosen, lost)

    async def _stored(
        self, connect: Callable[[], "Connection"], stack: AsyncExitStack
    ) -> list[Check]:
        chosen = [one for one in STORED if is_meant(one.name, self.only)]
        in_bucket = store_folder(self.around.store_url) is None
        if in_bucket and self.bounds.since is not None:
            return [_without(one, Status.LEFT_OUT, PATIENT, "") for one in chosen]
        try:
            objects = await open_store(self.around.store_url, stack)
            found = await examine_bytes(connect(), objects) if chosen else []
        except AdvisedError as error:
            return _unreachable(chosen, error)
        except (GlossaError, CannotStart, *LOST) as error:
            return _unreachable(chosen, CannotCheck(str(error), next_step="look again"))
        return [check for check in found if is_meant(check.name, self.only)]


def plan_visit(
    bounds: Bounds, *, only: Collection[str] = (), environment: Mapping[str, str] | None = None
) -> Visit:
    """Of the suite of the state folder, or of the one that the environment names."""
    environment = dict(os.environ if environment is None else environment)
    plan = plan_from(environment)
    addresses = {
        service: environment.get(f"GLOSSA_{service.upper()}_ADDRESS") or address
        for service, address in suite_addresses(environment).items()
    }
    around = Surroundings(
        # Deployed, there is none: keys and passwords come from elsewhere.
        state=None if environment.get(AUDITOR_VARIABLE) else plan.state,
        addresses=addresses,
        store_url=plan.store_url,
        tls=plan.tls,
    )
    visit = Visit(around=around, bounds=bounds, environment=environment, only=only)
    _refuse_unknown(visit, only)
    return visit


def every_invariant() -> Sequence[Invariant]:
    return (*all_invariants(), *STORED)


def _refuse_unknown(visit: Visit, only: Collection[str]) -> None:
    def nothing() -> "Connection":
        raise AssertionError("only names are wanted")

    names = [one.name for one in every_invariant()]
    around = (*probes(visit.around, nothing), *service_probes(visit.around))
    names += [probe.check_name for probe in around]
    for wanted in only:
        if not any(is_meant(name, {wanted}) for name in names):
            raise CannotCheck(
                f"there is no check {wanted!r}", next_step="`glossa doctor --list` shows them"
            )


def _unreachable(invariants: Sequence[Invariant], error: AdvisedError) -> list[Check]:
    return [_without(one, Status.UNKNOWN, error.message, error.next_step) for one in invariants]


def _without(invariant: Invariant, status: Status, detail: str, advice: str) -> Check:
    return Check(
        name=invariant.name,
        kind=Kind.INVARIANT,
        promise=invariant.promise,
        status=status,
        detail=detail,
        advice=advice,
    )
