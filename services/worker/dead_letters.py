"""Dead letters: written down as generations fail, shown to admins, and started anew."""

from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

import structlog

from services.runtime.errors import DependencyDown
from services.worker.clients import Jobs, Quota
from services.worker.dead_letter import (
    DeadLetter,
    DeadLetterNotFound,
    Filter,
    Place,
    Redrive,
    RedriveProgress,
    SpendingCeiling,
)
from services.worker.dead_letter_store import DeadLetterStore
from services.worker.metrics import DEAD_LETTERS, REDRIVEN

log = structlog.get_logger()

# Started at a time: between two pieces it is told how far it is, and looked whether there is money.
PIECE = 100
PAGE = 200
# Longer than any transaction lasts: what fails is told in the order of the times written, and a
# transaction commits later than that.
LOOK_BACK = timedelta(seconds=30)
NEVER = Place(failed_at=datetime.min.replace(tzinfo=UTC), generation_id=UUID(int=0))


class DeadLetters:
    """What is behind ListDeadLetters, GetDeadLetter and RedriveDeadLetters, and what fills them."""

    def __init__(
        self, *, store: DeadLetterStore, jobs: Jobs, quota: Quota, kept: timedelta
    ) -> None:
        self._store = store
        self._jobs = jobs
        self._quota = quota
        self._kept = kept

    async def collect(self) -> None:
        """Write down what failed since the last look, whoever ended it: a worker or the sweep."""
        last = await self._store.read_last_failure()
        oldest = await self._store.read_clock() - self._kept
        since = max(last - LOOK_BACK, oldest) if last else oldest
        after, more = None, True
        while more:
            letters = await self._jobs.list_failed_jobs(since=since, after=after, most=PAGE)
            if letters:
                await self._write_down(letters)
                after = letters[-1].generation_id
            more = len(letters) == PAGE

    async def _write_down(self, letters: Sequence[DeadLetter]) -> None:
        """Most are told again, because each look goes back a little: they are not priced again."""
        known = await self._store.list_known([letter.generation_id for letter in letters])
        if new := [letter for letter in letters if letter.generation_id not in known]:
            priced = await self._with_costs(new)
            DEAD_LETTERS.inc(await self._store.insert_dead_letters(priced))

    async def forget_old(self) -> None:
        await self._store.delete_old_dead_letters(self._kept)

    async def list_letters(
        self, chosen: Filter, *, include_redriven: bool, after: Place | None, most: int
    ) -> tuple[Sequence[DeadLetter], int]:
        """One page, newest first, and how many there are in all."""
        letters, total = await self._store.list_dead_letters(
            chosen, include_redriven=include_redriven, after=after, most=most
        )
        return await self._with_costs(letters), total

    async def get_letter(self, generation_id: UUID) -> DeadLetter:
        letter = await self._store.read_dead_letter(generation_id)
        if letter is None:
            raise DeadLetterNotFound("no generation of this id has failed lately")
        return (await self._with_costs([letter]))[0]

    async def redrive(self, chosen: Filter, *, dry_run: bool) -> AsyncGenerator[RedriveProgress]:
        """Starts what is chosen anew, piece by piece; may be stopped and called again at any time.

        What was started before it was stopped is found live then, and only noted.
        """
        until = await self._store.read_clock()
        reasons = await self._store.count_dead_letters(chosen)
        total, counts = sum(reasons.values()), Counter[Redrive]()
        yield RedriveProgress(total=total, counts=counts, reasons=reasons)
        place = NEVER
        while not dry_run:
            letters = await self._store.choose_dead_letters(
                chosen, until=until, after=place, most=PIECE
            )
            if not letters:
                return
            counts = counts + await self._start([letter.generation_id for letter in letters])
            place = letters[-1]
            yield RedriveProgress(total=total, counts=counts, reasons={})

    async def _start(self, generation_ids: Sequence[UUID]) -> Counter[Redrive]:
        await self._require_money()
        results = await self._jobs.redrive_jobs(generation_ids)
        await self._store.mark_redriven(
            {
                letter: result.generation_id
                for letter, result in zip(generation_ids, results, strict=True)
                if result.generation_id is not None
            }
        )
        counts = Counter(result.verdict for result in results)
        for verdict, count in counts.items():
            REDRIVEN.labels(verdict).inc(count)
        log.info("dead_letters_redriven", **{str(verdict): n for verdict, n in counts.items()})
        return counts

    async def _require_money(self) -> None:
        """Nobody is charged for a redrive, so nobody's quota stops it: the ceiling must."""
        spending = await self._quota.read_spending(())
        if spending.exhausted:
            raise SpendingCeiling(
                "the ceiling of the day is reached; redrive the rest tomorrow, or raise it",
                retry_after=spending.resets_in,
            )

    async def _with_costs(self, letters: Sequence[DeadLetter]) -> list[DeadLetter]:
        """Calls are reported in batches, so Quota knows better; without it, what was noted."""
        if not letters:
            return []
        try:
            spending = await self._quota.read_spending([one.generation_id for one in letters])
        except DependencyDown as error:
            log.warning("costs_not_read", reason=error.reason)
            return list(letters)
        return [letter.costing(spending.costs[letter.generation_id]) for letter in letters]
