"""Row 15: how late heartbeats are while pages and model do their worst.

Bar: the worker's event loop is less than 100 ms late, at its worst moment, in the median of three
rounds. A loop that does nothing runs beside it on the same machine, and its worst moment is shown.
"""

import asyncio
import gzip
import json
import os
import statistics
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle

from glossa.cache.v1 import cache_pb2
from glossa.cache.v1.cache_pb2_grpc import CacheServiceStub
from glossa.registry.v1.registry_pb2_grpc import RegistryServiceStub
from prometheus_client.parser import text_string_to_metric_families

from services.local.fake_answers import FAILURES, Answer, Question, notes, ok, picture, response
from services.local.fake_openai import fake_openai
from services.runtime.loop_lag import watching_the_loop
from services.worker.domain import Page
from services.worker.offline import OfflineExplainer
from tests.bench.documents import upload
from tests.bench.report import Figure, standalone
from tests.bench.stand import UNLIMITED, Stand, open_stand
from tests.worker.pages import LONG_TEXT, Sheet, document

ROUNDS, PAGES, BAR = 3, 24, 0.1
BODIES = ("<script>", "<?", "<!--", "[a](", "![", "<a ", "](", "> [x]: y\n", "javascript:", "</")
TEXTS = ("a. ", "A (b) = [c], ", "(", "第一章 ", "1.1.1.1 ", "e.g. ", "\n", "- ", "x=y ", "A. B. ")


def hostile_notes() -> Answer:
    """As many notes as fit, each as slow to clean as we know how."""
    bodies = cycle((one * 5_000)[:5_000] for one in BODIES)
    return notes(
        *(
            {"kind": "term", "title": f"T{n}", "body_markdown": next(bodies), "quote": "till ill"}
            for n in range(60)
        )
    )


def wide() -> Answer:
    """Half a megabyte of the smallest things JSON has."""
    return ok({**response(json.dumps({"stickers": []})), "more": [0] * 150_000})


def packed_error() -> Answer:
    """Two hundred kilobytes that would be two hundred megabytes."""
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    return Answer(status=500, body=gzip.compress(b" " * 200 * 10**6), headers=headers)


def worst() -> Iterator[Answer]:
    names = ("large", "endless", "html", "drip", "silence", "truncated", "nul", "reset")
    return cycle([hostile_notes(), wide(), packed_error(), *(FAILURES[name]() for name in names)])


def hostile_pages(seed: int) -> bytes:
    """Long texts, pictures of which each needs a call of its own, and scans of megabytes."""
    return document(*(hostile_page(seed, number) for number in range(PAGES)))


def hostile_page(seed: int, number: int) -> Sheet:
    if number % 6 == 5:
        return Sheet(scan=1_000 * seed + number)
    pictures = [10_000 * seed + 10 * number + place for place in range(4)]
    return Sheet(text=f"Round {seed}, page {number}. {LONG_TEXT}", pictures=pictures)


async def worker_round(stand: Stand, number: int) -> float:
    """The worst moment of a worker's loop while it works through a document."""
    registry = RegistryServiceStub(await stand.channel("registry"))
    cache = CacheServiceStub(await stand.channel("cache"))
    gateway = stand.bearer("gateway")
    content = hostile_pages(number)
    pdf_hash = await upload(registry, gateway, user="alice", content=content)
    asked = [
        await cache.ExplainPage(
            cache_pb2.ExplainPageRequest(
                user_id="alice", pdf_hash=pdf_hash, page=page, locale="en"
            ),
            metadata=gateway,
        )
        for page in range(1, PAGES + 1)
    ]
    before = lags(stand)
    for one in asked:
        await until_tried(cache, stand, one.generation_id)
    return worst_lag(before, lags(stand))


async def until_tried(cache: CacheServiceStub, stand: Stand, generation_id: str) -> None:
    request = cache_pb2.GetGenerationRequest(generation_id=generation_id)
    over = (cache_pb2.STAGE_READY, cache_pb2.STAGE_FAILED, cache_pb2.STAGE_RETRYING)
    while True:
        found = await cache.GetGeneration(request, metadata=stand.bearer("admin"))
        if found.generation.stage in over:
            return
        await asyncio.sleep(0.05)


def lags(stand: Stand) -> dict[float, float]:
    """How many looks found the worker's loop at most so late."""
    port = stand.plan.ports.metrics_port("worker")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        families = text_string_to_metric_families(page.read().decode())
    samples = [one for family in families for one in family.samples]
    return {
        float(one.labels["le"]): one.value
        for one in samples
        if one.name == "glossa_worker_loop_lag_seconds_bucket"
    }


def worst_lag(before: dict[float, float], after: dict[float, float]) -> float:
    """The smallest bound that no look of the round was beyond."""
    looks = after[float("inf")] - before[float("inf")]
    assert looks > 0, "the worker did not look at its loop"
    return min(bound for bound in after if after[bound] - before[bound] == looks)


async def offline_round() -> float:
    """The same for the built-in explainer, on texts that are slow to take apart."""
    lag: list[float] = []
    texts = [(one * 6_000)[:6_000] for one in TEXTS]
    async with watching_the_loop(lag.append):
        pages = [Page(page=1, text=one, locale="en", neighbours=(one * 50,)) for one in texts]
        await asyncio.gather(*(OfflineExplainer().explain(page) for page in pages))
    return max(lag, default=0.0)


@contextmanager
def idle() -> Iterator["asyncio.Task[float]"]:
    """A process that does nothing but look at its own loop: what the machine adds by itself."""
    task = asyncio.create_task(_idle())
    yield task
    task.cancel()


async def _idle() -> float:
    code = (
        "import asyncio, sys\n"
        "from services.runtime.loop_lag import watching_the_loop\n"
        "async def main():\n"
        "    lag = []\n"
        "    async with watching_the_loop(lag.append):\n"
        "        await asyncio.to_thread(sys.stdin.read)\n"
        "    print(max(lag, default=0.0))\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        code,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        said, _ = await process.communicate(b"")
        return float(said)
    return 0.0


async def run() -> list[Figure]:
    async with fake_openai() as model:
        os.environ |= {"OPENAI_API_KEY": "any", "OPENAI_BASE_URL": model.url}
        answers = worst()

        def answer(question: Question) -> Answer:
            return picture() if question.about == "image" else next(answers)

        model.answer = answer
        async with open_stand() as stand:
            await stand.start("registry")
            await stand.start("quota", UNLIMITED | {"soft_limit": 10**6})
            await stand.start("cache")
            await stand.start("worker", {"model_call_seconds": 2, "concurrency": 8})
            rounds = []
            for number in range(ROUNDS):
                with idle() as control:
                    busy = await worker_round(stand, number)
                rounds.append((busy, await offline_round(), await control))
    worker, offline, nothing = (statistics.median(column) for column in zip(*rounds, strict=True))
    return [
        Figure(
            row=15,
            what=f"event loop late at worst, {name}",
            ours=f"{1000 * seconds:.0f} ms",
            reference=f"idle loop beside it {1000 * nothing:.0f} ms",
            value=1000 * seconds,
            unit="ms",
            bar=1000 * BAR,
            at_least=False,
        )
        for name, seconds in (("hostile pages and model", worker), ("offline explainer", offline))
    ]


if __name__ == "__main__":
    sys.exit(standalone(run))
