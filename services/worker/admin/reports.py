"""The pages one reads: metrics with the live queue, and the story of a request."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from services.runtime.errors import GlossaError, InvalidInput, NotFound
from services.runtime.http import HomeLoop
from services.runtime.validation import parse_identity, parse_uuid
from services.worker.admin.app import PREFIX
from services.worker.admin.charts import charts_of
from services.worker.admin.clients import LEDGER_LINES, Others
from services.worker.admin.doors import Doors
from services.worker.admin.overview import DAYS, ReadOverview, part
from services.worker.admin.render import page
from services.worker.admin.session import Session
from services.worker.admin.values import Losses, Moment, Money, Movements, Part, Story
from services.worker.dashboard_store import DashboardStore, Step

KINDS = {"page_explanation": "page explanations", "document_markdown": "converted documents"}


class Reports:
    """What happened, for reading only."""

    def __init__(
        self,
        *,
        doors: Doors,
        home: HomeLoop,
        overview: ReadOverview,
        others: Others,
        store: DashboardStore,
    ) -> None:
        self._doors = doors
        self._home = home
        self._overview = overview
        self._others = others
        self._store = store

    def routes(self) -> list[Route]:
        behind = self._doors.behind
        return [
            Route("/metrics", behind(self.metrics), methods=["GET"]),
            Route("/queue", behind(self.queue), methods=["GET"]),
            Route("/requests", behind(self.search), methods=["GET"]),
            Route("/requests/{request_id}", behind(self.request), methods=["GET"]),
        ]

    async def metrics(self, request: Request, session: Session) -> Response:
        day = _day(request.query_params.get("day", ""))
        kind = request.query_params.get("kind") or next(iter(KINDS))
        if kind not in KINDS:
            raise InvalidInput(f"kind must be one of {', '.join(KINDS)}", field="kind")
        overview = await self._home.run(self._overview.read(day, kind))
        money, losses = overview.money.value, overview.losses.value
        return page(
            "metrics.html",
            session=session,
            active="metrics",
            overview=overview,
            charts=charts_of(overview),
            money=money.get(overview.day, Money()) if money is not None else None,
            losses=losses.get(overview.day, Losses()) if losses is not None else None,
            kinds=KINDS,
            queue=overview.queue,
            yesterday=overview.today - timedelta(days=1),
        )

    async def queue(self, request: Request, session: Session) -> Response:
        """The part of the metrics page that renews itself."""
        return page("queue.html", queue=await self._home.run(self._overview.read_queue()))

    async def search(self, request: Request, session: Session) -> Response:
        wanted = request.query_params.get("id", "").strip()
        user = request.query_params.get("user", "").strip()
        if wanted:
            request_id = parse_uuid("request id", wanted)
            query = f"?{urlencode({'user': user})}" if user else ""
            return RedirectResponse(f"{PREFIX}/requests/{request_id}{query}", status_code=303)
        return page(
            "requests.html", session=session, active="requests", problem="", wanted="", user=""
        )

    async def request(self, request: Request, session: Session) -> Response:
        request_id = str(parse_uuid("request id", request.path_params["request_id"]))
        user = request.query_params.get("user", "")
        if user:
            parse_identity("user", user)
        try:
            story, missing = await self._home.run(self._tell(request_id, user))
        except GlossaError as error:
            if error.code != NotFound.code:
                raise
            return page(
                "requests.html",
                session=session,
                status=404,
                active="requests",
                problem=error.message,
                wanted=request_id,
                user=user,
            )
        return page(
            "request.html", session=session, active="requests", story=story, missing=missing
        )

    async def _tell(self, request_id: str, user: str) -> tuple[Story, list[str]]:
        """The story with what the ledger and the Worker's own events add to it."""
        story = await self._others.describe_request(request_id, user)
        ledger = await part(self._others.list_movements(request_id, story.user_id))
        steps: Part[list[Step]] = Part(value=[])
        if story.generation_id:
            generation_id = parse_uuid("generation_id", story.generation_id)
            steps = await part(self._store.list_steps(generation_id))
        movements = ledger.value or Movements()
        moments = [*story.moments, *movements.found, *_steps(steps.value or ())]
        missing = [one.missing for one in (ledger, steps) if one.missing]
        if movements.has_older_lines and not movements.found:
            missing.append(
                f"what the ledger says; only the newest {LEDGER_LINES} lines of {story.user_id}"
                " were looked at, and this request is not among them"
            )
        return replace(story, moments=sorted(moments, key=lambda one: one.at)), missing


def _steps(steps: Sequence[Step]) -> Iterator[Moment]:
    """Only what the Cache does not tell: how far each attempt came."""
    for step in steps:
        if step.stage in {"ready", "failed", "retrying"}:
            continue
        progress = f" {step.done} of {step.total}" if step.total else ""
        attempt = f"attempt {step.attempt}" if step.attempt else ""
        title = step.stage.replace("_", " ").capitalize() + progress
        yield Moment(at=step.created_at, title=title, detail=attempt)


def _day(written: str) -> date | None:
    """One of the days the page is about."""
    if not written:
        return None
    try:
        day = datetime.strptime(written, "%Y-%m-%d").replace(tzinfo=UTC).date()
    except ValueError:
        raise InvalidInput("day must be a date like 2026-11-18", field="day") from None
    today = datetime.now(UTC).date()
    if not today - timedelta(days=DAYS - 1) <= day <= today:
        raise InvalidInput(f"day must be one of the last {DAYS} days", field="day")
    return day
