"""Composition root of the Cache service."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from glossa.cache.v1.cache_pb2_grpc import add_CacheServiceServicer_to_server
from glossa.cache.v1.jobs_pb2_grpc import add_JobServiceServicer_to_server

from services.cache.clients import QuotaClient, RegistryClient
from services.cache.config import Config
from services.cache.explain import ExplainPage
from services.cache.generation_store import GenerationStore
from services.cache.handler import CacheHandler
from services.cache.inspect import InspectGeneration
from services.cache.job_handler import JobHandler
from services.cache.job_store import JobStore
from services.cache.queue import JobBell, Pace
from services.cache.relay import Relay
from services.cache.request_store import RequestStore
from services.cache.sweep import Sweep
from services.runtime.auth import TokenFile
from services.runtime.channel import open_channel
from services.runtime.database import open_database
from services.runtime.periodic import periodic
from services.runtime.server import CannotStart, Parts, Servicer, run


@asynccontextmanager
async def compose(config: Config) -> AsyncIterator[Parts]:
    if config.token_file is None:
        raise CannotStart("GLOSSA_TOKEN_FILE must name the file with this service's own token")
    token = TokenFile(config.token_file)
    clocks = config.clocks()
    bell, pace = JobBell(), Pace()
    async with (
        open_database(
            config.database_url.get_secret_value(),
            application_name="cache",
            pool_size=config.database_pool_size,
        ) as database,
        open_channel(config.registry_address, token) as registry_channel,
        open_channel(config.quota_address, token) as quota_channel,
    ):
        registry, quota = RegistryClient(registry_channel), QuotaClient(quota_channel)
        requests, generations = RequestStore(database, clocks), GenerationStore(database)
        jobs = JobStore(database, clocks)
        relay = Relay(requests=requests, quota=quota)
        sweep = Sweep(jobs=jobs, requests=requests)
        explain = ExplainPage(
            registry=registry,
            quota=quota,
            requests=requests,
            generations=generations,
            bell=bell,
            pace=pace,
            settings=config.explanation,
        )
        inspect = InspectGeneration(
            registry=registry, requests=requests, generations=generations, pace=pace
        )
        async with (
            periodic("relay", every=timedelta(seconds=1), run_once=relay.run_once) as relaying,
            periodic(
                "sweep", every=timedelta(seconds=config.sweep_seconds), run_once=sweep.run_once
            ),
        ):
            job_handler = JobHandler(
                jobs,
                bell=bell,
                pace=pace,
                relay_wake=relaying.wake,
                poll_seconds=config.poll_seconds,
            )
            yield Parts(
                servicers=[
                    Servicer(
                        name="glossa.cache.v1.CacheService",
                        handler=CacheHandler(explain, inspect),
                        add=add_CacheServiceServicer_to_server,
                    ),
                    Servicer(
                        name="glossa.cache.v1.JobService",
                        handler=job_handler,
                        add=add_JobServiceServicer_to_server,
                    ),
                ],
                on_drain=bell.drain,
            )


if __name__ == "__main__":
    run("cache", Config, compose)
