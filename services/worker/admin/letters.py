"""The pages about what failed for good: list, inspect, count, and start anew."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlencode

import structlog
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from services.runtime.errors import GlossaError, InvalidInput
from services.runtime.http import HomeLoop
from services.runtime.validation import parse_text, parse_uuid
from services.worker.admin.app import PREFIX
from services.worker.admin.clients import Others
from services.worker.admin.doors import Doors
from services.worker.admin.forms import Form
from services.worker.admin.overview import part
from services.worker.admin.render import page
from services.worker.admin.session import Session
from services.worker.admin.values import Part
from services.worker.dashboard_store import DashboardStore
from services.worker.dead_letter import (
    DeadLetter,
    DeadLetterNotFound,
    Filter,
    Redrive,
    RedriveProgress,
)
from services.worker.dead_letter_store import DeadLetterStore
from services.worker.dead_letters import DeadLetters
from services.worker.report_wire import MOST_WORD, page_token, parse_page_token

log = structlog.get_logger()

PATH = f"{PREFIX}/dead-letters"
PAGE = 50
MOST_CHOSEN = 500
# Longer than that nobody looks at a page that loads; the rest is started by asking again.
REDRIVE_SECONDS = 20.0


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which letters an admin means: some, all of a reason, or all there are."""

    which: Filter
    ids: Sequence[str]
    reason: str
    everything: bool


class Letters:
    """What failed, and its second chance."""

    def __init__(
        self,
        *,
        doors: Doors,
        home: HomeLoop,
        reading: DeadLetterStore,
        store: DashboardStore,
        letters: DeadLetters,
        others: Others,
    ) -> None:
        self._doors = doors
        self._home = home
        # As the role that can only read; what is started anew goes through the use case.
        self._reading = reading
        self._store = store
        self._letters = letters
        self._others = others

    def routes(self) -> list[Route]:
        behind = self._doors.behind
        return [
            Route("/dead-letters", behind(self.index), methods=["GET"]),
            Route("/dead-letters/redriven", behind(self.redriven), methods=["GET"]),
            Route("/dead-letters/outcomes", behind(self.outcomes), methods=["GET"]),
            Route("/dead-letters/redrive", behind(self.redrive), methods=["POST"]),
            Route("/dead-letters/{generation_id}", behind(self.show), methods=["GET"]),
        ]

    async def index(self, request: Request, session: Session) -> Response:
        reason = request.query_params.get("reason", "")
        which = Filter(reason=parse_text("reason", reason, most=MOST_WORD) if reason else None)
        after = parse_page_token(request.query_params.get("after", ""))
        counts = await self._home.run(self._reading.count_dead_letters(Filter()))
        # One more than shown tells whether there is a next page.
        found, total = await self._home.run(
            self._reading.list_dead_letters(
                which, include_redriven=False, after=after, most=PAGE + 1
            )
        )
        shown = found[:PAGE]
        return page(
            "dead_letters.html",
            session=session,
            active="dead-letters",
            letters=shown,
            total=total,
            counts=counts,
            reason=reason,
            next_page=page_token(shown[-1]) if len(found) > PAGE else "",
            is_first=after is None,
        )

    async def show(self, request: Request, session: Session) -> Response:
        generation_id = parse_uuid("generation id", request.path_params["generation_id"])
        letter = await self._home.run(self._reading.read_dead_letter(generation_id))
        if letter is None:
            raise DeadLetterNotFound("no generation of this id has failed lately")
        statuses = await self._home.run(self._statuses([letter]))
        return page(
            "dead_letter.html",
            session=session,
            active="dead-letters",
            letter=letter,
            statuses=statuses,
        )

    async def redrive(self, request: Request, session: Session) -> Response:
        """Without `sure` it only counts, and shows what would happen."""
        form = await self._doors.form(request, session)
        choice = _choice(form)
        sure = form.get("sure", "") == "yes"
        progress, problem = await self._home.run(self._run(choice.which, dry_run=not sure))
        if not sure:
            return page(
                "redrive.html",
                session=session,
                active="dead-letters",
                choice=choice,
                progress=progress,
            )
        counts = {str(verdict): progress.counts[verdict] for verdict in Redrive}
        log.info("admin_redrove", email=session.email, total=progress.total, **counts)
        said = {"total": progress.total, **counts} | ({"problem": problem} if problem else {})
        return RedirectResponse(f"{PATH}/redriven?{urlencode(said)}", status_code=303)

    async def redriven(self, request: Request, session: Session) -> Response:
        """What came of it: the letters that were started anew, and how they stand now."""
        letters, statuses = await self._home.run(self._outcomes())
        said = request.query_params
        return page(
            "redriven.html",
            session=session,
            active="dead-letters",
            letters=letters,
            statuses=statuses,
            counts={name: _number(said.get(name, "")) for name in ("total", *Redrive)},
            asked="total" in said,
            problem=said.get("problem", "")[:300],
        )

    async def outcomes(self, request: Request, session: Session) -> Response:
        """The part of the page that renews itself."""
        letters, statuses = await self._home.run(self._outcomes())
        return page("outcomes.html", letters=letters, statuses=statuses)

    async def _outcomes(self) -> tuple[Sequence[DeadLetter], Part[dict[str, str]]]:
        letters = await self._store.list_redriven(PAGE)
        return letters, await self._statuses(letters)

    async def _statuses(self, letters: Sequence[DeadLetter]) -> Part[dict[str, str]]:
        """How the generations stand that took the place of letters."""
        ids = [letter.redriven_as for letter in letters if letter.redriven_as is not None]
        return await part(self._others.read_statuses(ids)) if ids else Part(value={})

    async def _run(self, which: Filter, *, dry_run: bool) -> tuple[RedriveProgress, str]:
        """How far it came, and what stopped it before its end, if anything did."""
        progress = RedriveProgress(total=0, counts=Counter[Redrive](), reasons={})
        try:
            async with asyncio.timeout(REDRIVE_SECONDS):
                async for step in self._letters.redrive(which, dry_run=dry_run):
                    # Reasons are told once.
                    progress = replace(step, reasons=step.reasons or progress.reasons)
        except TimeoutError:
            return progress, "it takes long; ask again for the rest"
        except GlossaError as error:
            if dry_run:
                raise
            return progress, error.message
        return progress, ""


def _choice(form: Form) -> Choice:
    ids, reason = form.all("generation_id"), form.get("reason", "")
    what = form.get("what", "")
    if len(ids) > MOST_CHOSEN:
        raise InvalidInput(f"choose at most {MOST_CHOSEN} at a time", field="generation_id")
    if what == "chosen" and ids:
        parsed = tuple(parse_uuid("generation_id", one) for one in ids)
        return Choice(which=Filter(generation_ids=parsed), ids=ids, reason="", everything=False)
    if what == "reason" and reason:
        which = Filter(reason=parse_text("reason", reason, most=MOST_WORD))
        return Choice(which=which, ids=(), reason=reason, everything=False)
    if what == "all":
        return Choice(which=Filter(), ids=(), reason="", everything=True)
    raise InvalidInput("choose at least one; tick the boxes before them", field="generation_id")


def _number(written: str) -> int:
    return int(written) if written.isascii() and written.isdecimal() and len(written) < 10 else 0
