"""Who is served first: lanes, owners in turns, and nobody waits for ever."""

from collections.abc import Mapping
from pathlib import Path

from glossa.cache.v1 import cache_pb2, jobs_pb2
from glossa.quota.v1 import quota_pb2

from tests.cache.conftest import House, open_house
from tests.suite import Keys, lecture


async def pages_of(house: House, owner: str, count: int, *, background: bool = False) -> list[str]:
    """Ask for every page of a new document; the generation ids in the order of their pages."""
    content = lecture(*(f"{owner} writes about subject number {n}" for n in range(count)))
    pdf_hash = (await house.suite.upload(owner, content)).file.pdf_hash
    asked = []
    for page in range(1, count + 1):
        answer = await house.suite.explain(owner, pdf_hash, page=page, background=background)
        asked.append(answer.generation_id)
        await house.forget_windows()
    return asked


async def lease_all(house: House, count: int) -> list[str]:
    """The order in which jobs are handed out, one at a time."""
    async with house.worker.leasing(credits_=0) as stream:
        order = []
        for _ in range(count):
            await stream.write(jobs_pb2.LeaseJobsRequest(worker_id="worker-1", credits=1))
            order.append((await stream.read()).job.lease.generation_id)
        return order


async def test_owners_take_turns(house: House) -> None:
    anna = await pages_of(house, "anna", 4)
    bert = await pages_of(house, "bert", 2)
    cleo = await pages_of(house, "cleo", 1)

    order = await lease_all(house, 7)

    assert order == [anna[0], bert[0], cleo[0], anna[1], bert[1], anna[2], anna[3]]


async def test_who_comes_late_is_served_in_the_present_round(house: House) -> None:
    anna = await pages_of(house, "anna", 4)
    assert await lease_all(house, 2) == anna[:2]

    bert = await pages_of(house, "bert", 2)

    # Bert neither overtakes what was promised for this round nor waits for Anna to finish.
    assert await lease_all(house, 4) == [anna[2], bert[0], anna[3], bert[1]]


async def test_work_that_somebody_waits_for_goes_before_work_that_nobody_does(
    house: House,
) -> None:
    """The bar: with 500 pages in the background, a single page starts within two leases."""
    await house.admin.execute(
        "INSERT INTO cache.generations (kind, pdf_hash, page, prompt_version, locale,"
        " effective_mode, model, scope, images_count, owner, lane, turn)"
        " SELECT 'page_explanation', repeat('f', 64), page, '1', 'en', 'text_only', 'm', 'shared',"
        " 0, 'anna', 1, page FROM generate_series(1, 500) AS page"
    )
    [waiting] = await pages_of(house, "bert", 1)
    [background] = await pages_of(house, "cleo", 1, background=True)

    order = await lease_all(house, 3)

    assert order[0] == waiting
    assert background in order[1:]  # even in the same lane, nobody waits for 500 others


async def test_background_pages_of_two_owners_take_turns_too(house: House) -> None:
    anna = await pages_of(house, "anna", 30, background=True)
    bert = await pages_of(house, "bert", 1, background=True)

    assert await lease_all(house, 3) == [anna[0], bert[0], anna[1]]


async def test_joining_lifts_background_work(house: House) -> None:
    content = lecture("the first subject", "the second subject", "the third subject")
    pdf_hash = (await house.suite.upload("anna", content)).file.pdf_hash
    await house.suite.upload("bert", content)
    pages = [
        (await house.suite.explain("anna", pdf_hash, page=page, background=True)).generation_id
        for page in (1, 2, 3)
    ]

    joined = await house.suite.explain("bert", pdf_hash, page=3)

    assert joined.outcome == quota_pb2.OUTCOME_JOINED
    assert joined.generation_id == pages[2]
    assert await lease_all(house, 3) == [pages[2], pages[0], pages[1]]


async def test_who_has_waited_too_long_goes_first(house: House) -> None:
    old = await pages_of(house, "anna", 3, background=True)
    await house.admin.execute(
        "UPDATE cache.generations SET run_after = now() - interval '301 seconds'"
    )
    await house.until("SELECT count(*) = 3 FROM cache.generations WHERE lane = 0")
    new = await pages_of(house, "bert", 2)

    order = await lease_all(house, 5)

    # Aged pages take turns with the new ones instead of pushing all of them back.
    assert order == [old[0], new[0], old[1], new[1], old[2]]


async def test_the_place_in_the_queue_is_the_place_in_the_order(house: House) -> None:
    await pages_of(house, "anna", 4)
    background = await pages_of(house, "cleo", 1, background=True)
    [bert] = await pages_of(house, "bert", 1)

    place = (await house.suite.generation(bert)).queue_position
    last = (await house.suite.generation(background[0])).queue_position

    assert (place, last) == (2, 6)
    order = await lease_all(house, 6)
    assert (order.index(bert), order.index(background[0])) == (1, 5)


async def test_what_waits_for_its_next_attempt_stands_in_nobodys_way(
    admin_url: str, databases: Mapping[str, str], keys: Keys, tmp_path: Path
) -> None:
    async with open_house(admin_url, databases, keys, tmp_path, backoff_seconds=(3600,)) as house:
        first, second = await pages_of(house, "anna", 2)
        job = await house.worker.lease()
        assert job.lease.generation_id == first
        assert await house.worker.fail(job, permanent=False) == jobs_pb2.JOB_VERDICT_RETRYING

        assert (await house.worker.lease()).lease.generation_id == second
        waiting = await house.suite.generation(first)
        assert waiting.stage == cache_pb2.STAGE_RETRYING
        assert waiting.estimated_wait.seconds > 3000
        await house.admin.execute("UPDATE cache.generations SET run_after = now()")
        assert (await house.worker.lease()).lease.generation_id == first


async def test_joining_lifts_background_work_that_waits_for_its_next_attempt(
    house: House,
) -> None:
    content = lecture("a page that fails at first")
    pdf_hash = (await house.suite.upload("anna", content)).file.pdf_hash
    await house.suite.upload("bert", content)
    started = await house.suite.explain("anna", pdf_hash, background=True)
    await house.admin.execute(
        "UPDATE cache.generations SET turn = NULL, run_after = now() + interval '1 hour'"
    )

    await house.suite.explain("bert", pdf_hash)

    lane = "SELECT lane FROM cache.generations WHERE generation_id = $1"
    assert await house.admin.fetchval(lane, started.generation_id) == 0
    assert await house.admin.fetchval("SELECT turn IS NULL FROM cache.generations")
