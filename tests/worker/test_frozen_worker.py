"""A worker that is frozen while its connection lives on: its jobs go to others."""

import signal

import asyncpg
from glossa.cache.v1 import cache_pb2

from tests.suite import Suite, lecture
from tests.worker.test_lease_loop import until_ended
from tests.worker.test_rolling_restart import WorkerProcess, environment

__all__ = ["environment"]  # a fixture


async def test_a_frozen_worker_takes_no_jobs_and_a_thawed_one_does_again(
    cluster: Suite, environment: dict[str, str], admin_url: str
) -> None:
    pages = [f"Page {number} is about entropy." for number in range(5)]
    pdf_hash = (await cluster.upload("ada", lecture(*pages))).document.pdf_hash
    frozen, other = WorkerProcess(environment), WorkerProcess(environment)
    await frozen.start()
    frozen.send_signal(signal.SIGSTOP)
    try:
        await other.start()  # takes far longer than the frozen one may be silent
        asked = [
            (await cluster.explain("ada", pdf_hash, page=page)).generation_id
            for page in range(1, 5)
        ]
        ended = [await until_ended(cluster, generation_id) for generation_id in asked]
        await other.stop()
    finally:
        frozen.send_signal(signal.SIGCONT)
    last = await cluster.explain("ada", pdf_hash, page=5)
    ended.append(await until_ended(cluster, last.generation_id))
    await frozen.stop()

    assert {one.status for one in ended} == {cache_pb2.GENERATION_STATUS_READY}
    connection = await asyncpg.connect(admin_url)
    leased = await connection.fetch("SELECT DISTINCT attempts FROM cache.generations")
    await connection.close()
    assert [row["attempts"] for row in leased] == [1]
