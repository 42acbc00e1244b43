"""Composition root of the Quota service."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from glossa.quota.v1.quota_pb2_grpc import add_QuotaServiceServicer_to_server

from services.quota.config import Config
from services.quota.cost_store import CostStore
from services.quota.gate import Gate
from services.quota.gauges import Gauges
from services.quota.handler import QuotaHandler
from services.quota.ledger_store import LedgerStore
from services.quota.store import QuotaStore
from services.quota.totals_store import TotalsStore
from services.runtime.database import open_database
from services.runtime.periodic import periodic
from services.runtime.sampling import sampling
from services.runtime.server import Parts, Servicer, run


@asynccontextmanager
async def compose(config: Config) -> AsyncIterator[Parts]:
    rules = config.rules()
    async with open_database(
        config.database_url.get_secret_value(),
        application_name="quota",
        pool_size=config.database_pool_size,
    ) as database:
        store, costs = QuotaStore(database, rules), CostStore(database, rules)
        handler = QuotaHandler(
            store=store,
            ledger=LedgerStore(database),
            costs=costs,
            totals=TotalsStore(database),
            gate=Gate(
                answer_within=timedelta(seconds=config.answer_within_seconds),
                max_waiting=config.max_waiting_calls,
            ),
        )
        servicer = Servicer(
            name="glossa.quota.v1.QuotaService",
            handler=handler,
            add=add_QuotaServiceServicer_to_server,
        )
        async with (
            periodic("prune_windows", every=timedelta(hours=1), run_once=store.prune_windows),
            sampling("quota", Gauges(costs=costs).look),
        ):
            yield Parts(servicers=[servicer])


if __name__ == "__main__":
    run("quota", Config, compose)
