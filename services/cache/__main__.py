"""Composition root of the Cache service."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from glossa.cache.v1.cache_pb2_grpc import add_CacheServiceServicer_to_server
from glossa.cache.v1.jobs_pb2_grpc import add_JobServiceServicer_to_server

from services.cache.attach_store import AttachStore
from services.cache.clients import SENT_ONCE, QuotaClient, RegistryClient, WorkerClient
from services.cache.config import Config
from services.cache.describe import DescribeRequest
from services.cache.explain import ExplainPage
from services.cache.failed_store import FailedStore
from services.cache.gauge_store import GaugeStore
from services.cache.gauges import Gauges
from services.cache.generation_store import GenerationStore
from services.cache.handler import CacheHandler
from services.cache.inspect import InspectGeneration
from services.cache.invalidate import InvalidateGenerations
from services.cache.job_handler import JobHandler
from services.cache.job_store import JobStore
from services.cache.loss_store import LossStore
from services.cache.memory import PageMemory, ReadyMemory, ShareMemory
from services.cache.outbox_store import OutboxStore
from services.cache.queue import JobBell, Pace
from services.cache.queue_store import QueueStore
from services.cache.relay import Relay
from services.cache.request_store import RequestStore
from services.cache.resolve import ResolvePage
from services.cache.response_store import ResponseStore
from services.cache.retirement_store import RetirementStore
from services.cache.samples import Samples
from services.cache.status_store import StatusStore
from services.cache.sweep import Sweep
from services.cache.upkeep import Upkeep
from services.cache.wire import prepare_result
from services.runtime.auth import TokenFile
from services.runtime.channel import open_channel
from services.runtime.database import open_database
from services.runtime.periodic import periodic
from services.runtime.sampling import sampling
from services.runtime.server import CannotStart, Parts, Servicer, run
from services.runtime.tls import tls_of


@asynccontextmanager
async def compose(config: Config) -> AsyncIterator[Parts]:
    if config.token_file is None:
        raise CannotStart("GLOSSA_TOKEN_FILE must name the file with this service's own token")
    token = TokenFile(config.token_file)
    tls, clocks = tls_of(config), config.clocks()
    bell, pace, ready = JobBell(), Pace(), ReadyMemory(config.memory_bytes)
    poll = timedelta(seconds=config.poll_seconds)
    async with (
        open_database(
            config.database_url.get_secret_value(),
            application_name="cache",
            pool_size=config.database_pool_size,
        ) as database,
        open_channel(config.registry_address, token, tls=tls) as registry_channel,
        open_channel(config.quota_address, token, tls=tls, sent_once=SENT_ONCE) as quota_channel,
        # Nobody is called where no address is given.
        open_channel(config.worker_address or "127.0.0.1:1", token, tls=tls) as worker_channel,
    ):
        worker = WorkerClient(worker_channel)
        samples = Samples(worker.record_samples if config.worker_address else None)
        quota = QuotaClient(quota_channel)
        requests, generations = RequestStore(database, clocks), GenerationStore(database)
        queue, retirements = QueueStore(database, clocks), RetirementStore(database, clocks)
        responses, outbox = ResponseStore(database), OutboxStore(database)
        pages = ResolvePage(registry=RegistryClient(registry_channel), memory=PageMemory())
        relay = Relay(outbox=outbox, quota=quota)
        sweep = Sweep(
            database=database,
            queue=queue,
            requests=requests,
            retirements=retirements,
            responses=responses,
        )
        upkeep = Upkeep(queue=queue, retirements=retirements, ready=ready, bell=bell, poll=poll)
        explain = ExplainPage(
            pages=pages,
            quota=quota,
            requests=requests,
            attaching=AttachStore(database),
            outbox=outbox,
            generations=generations,
            ready=ready,
            shares=ShareMemory(),
            prepare=prepare_result,
            bell=bell,
            pace=pace,
            clocks=clocks,
            settings=config.explanation,
            samples=samples,
        )
        async with (
            samples.reporting(),
            sampling("cache", Gauges(store=GaugeStore(database)).look),
            pages.following(),
            upkeep.running(database),
            periodic("relay", every=timedelta(seconds=1), run_once=relay.run_once) as relaying,
            periodic(
                "sweep", every=timedelta(seconds=config.sweep_seconds), run_once=sweep.run_once
            ),
        ):
            cache_handler = CacheHandler(
                explain=explain,
                inspect=InspectGeneration(
                    pages=pages, requests=requests, generations=generations, pace=pace
                ),
                describe=DescribeRequest(
                    requests=requests,
                    generations=generations,
                    quota=quota,
                    pace=pace,
                    clocks=clocks,
                ),
                invalidate=InvalidateGenerations(
                    retirements=retirements, queue=queue, ready=ready, relay_wake=relaying.wake
                ),
                responses=responses,
                queue=queue,
                losses=LossStore(database),
            )
            job_handler = JobHandler(
                JobStore(database, clocks, samples.note_served),
                statuses=StatusStore(database),
                failed=FailedStore(
                    database,
                    prompt_version=config.explanation.prompt_version,
                    model=config.explanation.model_name,
                ),
                bell=bell,
                pace=pace,
                relay_wake=relaying.wake,
                poll_seconds=config.poll_seconds,
            )
            yield Parts(
                servicers=[
                    Servicer(
                        name="glossa.cache.v1.CacheService",
                        handler=cache_handler,
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
