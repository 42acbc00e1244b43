"""Puts the admin pages together."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import ASGIApp

from services.runtime.auth import TokenVerifier
from services.runtime.database import open_database
from services.runtime.http import HomeLoop
from services.worker.admin.app import make_app
from services.worker.admin.clients import open_others
from services.worker.admin.doors import Doors
from services.worker.admin.letters import Letters
from services.worker.admin.overview import ReadOverview
from services.worker.admin.reports import Reports
from services.worker.admin.session import SignIn
from services.worker.config import Config
from services.worker.dashboard_store import DashboardStore
from services.worker.dead_letter_store import DeadLetterStore
from services.worker.dead_letters import DeadLetters
from services.worker.metrics_store import MetricsStore

# One page reads twice at the same time; more of them may wait for each other.
POOL = 3
STATEMENT_SECONDS = 2.0
LOCK_SECONDS = 0.5


@asynccontextmanager
async def open_pages(config: Config, letters: DeadLetters) -> AsyncIterator[ASGIApp]:
    """The pages, over a pool and channels that belong to the present loop."""
    url = config.dashboard_database_url.get_secret_value()
    async with (
        open_database(
            url,
            application_name="dashboard",
            pool_size=POOL,
            statement_seconds=STATEMENT_SECONDS,
            lock_seconds=LOCK_SECONDS,
            beside_another=True,
        ) as database,
        open_others(config) as others,
    ):
        home, store = HomeLoop(), DashboardStore(database)
        verifier = TokenVerifier(config.verify_key_file.read_bytes())
        doors = Doors(SignIn(verifier, config.admins), origin=config.admin_origin)
        reports = Reports(
            doors=doors,
            home=home,
            overview=ReadOverview(store=store, metrics=MetricsStore(database), others=others),
            others=others,
            store=store,
        )
        pages = Letters(
            doors=doors,
            home=home,
            reading=DeadLetterStore(database),
            store=store,
            letters=letters,
            others=others,
        )
        routes = [*doors.routes(), *reports.routes(), *pages.routes()]
        yield make_app(routes, origin=config.admin_origin, host=config.host)
