"""What the pages show, to whom, and what is left when a part of the suite is away."""

import html
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import grpc
import pytest
from glossa.cache.v1 import cache_pb2
from glossa.quota.v1 import quota_pb2
from glossa.registry.v1 import registry_pb2

from services.worker.admin.clients import LEDGER_LINES
from services.worker.admin.render import page
from services.worker.admin.values import Lane, Part, Queue
from services.worker.admin.words import NOTHING
from tests.cache.conftest import refused
from tests.cache.leases import capture_log
from tests.fake_openai import FakeOpenAI
from tests.suite import Keys, Suite, lecture
from tests.worker.admin.conftest import ADMIN, Pages, Visitor, form_token_in
from tests.worker.admin.seeding import (
    COST_OF_A_GENERATION,
    DAYS,
    REASONS,
    seed_fortnight,
    seed_letter,
    totals_of,
)
from tests.worker.conftest import StartWorker
from tests.worker.test_lease_loop import ask, until_ended

HOSTILE = """<script>alert(1)</script><img src=x onerror=alert(2)>'"&{{ 7 * 7 }}</textarea>"""
NOBODY = "00000000-0000-4000-8000-000000000000"
HEADERS = {
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
}


def today() -> Any:
    return datetime.now(UTC).date()


def tile(text: str, name: str) -> str:
    """The big number of a tile."""
    found = re.search(rf'data-tile="{name}">\s*<dt>[^<]*</dt>\s*<dd>([^<]*)</dd>', text)
    assert found, f"there is no tile {name}"
    return html.unescape(found[1])


@pytest.fixture
async def seeded(superuser: "asyncpg.Connection[Any]") -> None:
    await seed_fortnight(superuser, today())


async def test_yesterday_is_shown_as_it_was(seeded: None, admin: Visitor) -> None:
    totals = totals_of(1)
    requests = totals.hits + totals.misses + totals.joins

    text = (await admin.get("/admin/metrics")).text

    assert tile(text, "requests") == f"{requests:,}"
    assert tile(text, "hit-rate") == f"{100 * totals.hits / requests:.1f} %"
    assert tile(text, "failures") == str(sum(totals.failures.values()))
    assert tile(text, "p95-text_only") == "2.2 s"
    assert tile(text, "p95-with_images") == "4.3 s"
    assert tile(text, "zombies") == str(totals.zombies)
    assert tile(text, "refunds") == str(totals.refunds)
    assert tile(text, "spent") == f"${totals.spent_nanodollars / 1e9:.2f}"
    assert tile(text, "saved") == f"${totals.shared * COST_OF_A_GENERATION / 1e9:.3f}"
    assert tile(text, "references") == "healthy"
    for reason in REASONS:
        assert f"<code>{reason}</code>" in text


async def test_hits_too_fast_to_measure_are_told_and_drawn(
    seeded: None, admin: Visitor, superuser: "asyncpg.Connection[Any]"
) -> None:
    await superuser.execute(
        "UPDATE worker.sticker_metrics SET p95_hit_ms = 0, cache_misses = 0, joins = 0"
    )

    text = (await admin.get("/admin/metrics")).text

    assert "made; from the cache &lt; 1 ms" in text
    assert tile(text, "p95-text_only") == NOTHING
    latency = text.partition('data-name="latency"')[2].partition("</figure>")[0]
    assert "Nothing in these days." not in latency
    assert latency.count("&lt; 1 ms") == DAYS


async def test_another_day_can_be_chosen(seeded: None, admin: Visitor) -> None:
    day = today() - timedelta(days=5)

    text = (await admin.get(f"/admin/metrics?day={day}")).text

    totals = totals_of(5)
    assert tile(text, "requests") == f"{totals.hits + totals.misses + totals.joins:,}"
    assert tile(text, "refunds") == str(totals.refunds)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("day=yesterday", "Day must be a date like 2026-11-18."),
        ("day=2020-01-01", "Day must be one of the last 14 days."),
        ("kind=sticker", "Kind must be one of page_explanation, document_markdown."),
    ],
)
async def test_a_day_that_is_none_is_refused_in_words(
    admin: Visitor, query: str, said: str
) -> None:
    answer = await admin.get(f"/admin/metrics?{query}")

    assert answer.status_code == 400
    assert said in answer.text


async def test_an_empty_suite_says_what_to_do(admin: Visitor) -> None:
    metrics = await admin.get("/admin/metrics")
    letters = await admin.get("/admin/dead-letters")

    assert metrics.status_code == letters.status_code == 200
    assert "Nothing happened yesterday." in metrics.text
    assert "glossa explain lecture.pdf" in metrics.text
    assert "Nothing is dead." in letters.text


async def test_the_live_queue_counts_by_lane(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker, dashboard_url: str, keys: Keys
) -> None:
    model.gate.clear()
    settings = {"dashboard_database_url": dashboard_url, "admin_emails": ADMIN, "concurrency": 1}
    async with start_worker(**settings) as worker:
        pages = Pages(url=f"http://{worker.metrics_address}", keys=keys)
        await ask(cluster)
        await model.wait_for_calls(1)
        for number in range(2):
            user = f"user-{number}"
            uploaded = await cluster.upload(user, lecture("A tree is a graph without cycles."))
            await cluster.explain(user, uploaded.document.pdf_hash, background=True)
        async with pages.admin() as admin:
            text = (await admin.get("/admin/queue")).text
        model.gate.set()

    interactive, background = (
        dict(re.findall(r'data-what="(\w+)"[^>]*>([^<]*)<', lane))
        for lane in text.split("data-lane=")[1:]
    )
    assert (interactive["waiting"], interactive["leased"]) == ("0", "1")
    assert (background["waiting"], background["leased"]) == ("2", "0")
    assert background["oldest"].endswith(" s")


async def test_the_story_of_a_request_is_a_timeline(
    cluster: Suite, model: FakeOpenAI, admin: Visitor
) -> None:
    uploaded = await cluster.upload("ann", lecture("Plants turn light into energy."))
    made = await cluster.explain("ann", uploaded.document.pdf_hash)
    await until_ended(cluster, made.generation_id)
    hit = await cluster.explain("ann", uploaded.document.pdf_hash)

    found = await admin.get(f"/admin/requests?id={made.request_id}")
    assert found.headers["location"] == f"/admin/requests/{made.request_id}"
    text = (await admin.get(found.headers["location"])).text
    for words in ("The result had to be made", "Asked for", "Reading", "Ledger: -1 unit<", "ready"):
        assert words in text

    nameless = await admin.get(f"/admin/requests/{hit.request_id}")
    assert nameless.status_code == 404
    assert "give the user too" in nameless.text
    named = await admin.get(f"/admin/requests/{hit.request_id}?user=ann")
    assert "The result was there already." in named.text


async def test_a_movement_among_older_ledger_lines_is_said_to_be_missing(
    cluster: Suite, admin: Visitor, superuser: "asyncpg.Connection[Any]"
) -> None:
    uploaded = await cluster.upload("ann", lecture("Plants turn light into energy."))
    made = await cluster.explain("ann", uploaded.document.pdf_hash)
    await until_ended(cluster, made.generation_id)
    said = f"only the newest {LEDGER_LINES} lines of ann were looked at"
    before = (await admin.get(f"/admin/requests/{made.request_id}")).text

    await superuser.execute(
        "INSERT INTO quota.ledger_entries (user_id, request_id, kind, units, reason)"
        " SELECT 'ann', gen_random_uuid(), 'refund', 1, 'generation_failed'"
        " FROM generate_series(1, $1::integer)",
        LEDGER_LINES,
    )
    after = (await admin.get(f"/admin/requests/{made.request_id}")).text

    assert ("Ledger: -1 unit<" in before, said in before) == (True, False)
    assert ("Ledger: -1 unit<" in after, said in after) == (False, True)


def test_a_queue_that_was_counted_in_part_is_shown_so() -> None:
    lane = Lane(
        name="interactive", waiting=99_999, leased=1, retrying=0, expired=0, oldest_wait=None
    )
    queue = Queue(lanes=[lane], refunds_due=100_000, taken_at=datetime.now(UTC))
    shorter = Queue(lanes=[replace(lane, leased=0)], refunds_due=99_999, taken_at=datetime.now(UTC))

    text, exact = (
        bytes(page("queue.html", queue=Part(value=one)).body).decode() for one in (queue, shorter)
    )

    assert ">99,999+<" in text
    assert "Refunds on their way to Quota: 100,000+." in text
    assert ">99,999<" in exact
    assert "Refunds on their way to Quota: 99,999." in exact


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/admin/requests/nonsense", 400),
        (f"/admin/requests/{NOBODY}", 404),
        (f"/admin/requests/{NOBODY}?user=%3Cscript%3E", 400),
        ("/admin/requests?id=nonsense", 400),
        (f"/admin/dead-letters/{NOBODY}", 404),
        ("/admin/dead-letters/nonsense", 400),
        ("/admin/dead-letters?after=nonsense", 400),
        ("/admin/nowhere", 404),
        ("/admin/static/../session.py", 404),
        ("/admin/static/%2e%2e/session.py", 404),
    ],
)
async def test_bad_addresses_get_a_page_and_no_traceback(
    admin: Visitor, path: str, status: int
) -> None:
    answer = await admin.get(path)

    assert answer.status_code == status
    assert "Traceback" not in answer.text
    assert answer.headers["content-type"].startswith("text/html")


async def test_every_answer_carries_the_headers(admin: Visitor, visitor: Visitor) -> None:
    answers = [
        await admin.get("/admin/metrics"),
        await admin.get("/admin/nowhere"),
        await visitor.get("/admin/metrics"),
        await visitor.get("/admin/sign-in"),
        await visitor.post("/admin/sign-in", {}),
        await visitor.get("/admin/metrics", headers={"host": "evil.example"}),
    ]
    for answer in answers:
        for name, value in HEADERS.items():
            assert answer.headers[name] == value
        policy = dict(
            rule.strip().partition(" ")[::2]
            for rule in answer.headers["content-security-policy"].split(";")
        )
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        # Nothing in the page needs an exception from it.
        assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\son\w+=|\sstyle=", answer.text)
    assert answers[-1].status_code == 421


async def test_what_documents_and_models_say_stays_text(
    admin: Visitor, superuser: "asyncpg.Connection[Any]"
) -> None:
    letter = await seed_letter(superuser, reason=HOSTILE[:64], message=HOSTILE)
    await superuser.execute(
        "INSERT INTO worker.sticker_metrics SELECT 'day', date_trunc('day', now(), 'UTC'),"
        " 'page_explanation', '', $1, '', 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 0, 0, '{}'",
        HOSTILE[:64],
    )
    await superuser.execute(
        "INSERT INTO worker.sticker_metrics SELECT 'day', date_trunc('day', now(), 'UTC'),"
        " 'page_explanation', '', '', '', 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 0, 0,"
        " jsonb_build_object($1::text, 3)",
        HOSTILE,
    )
    for path in (
        f"/admin/metrics?day={today()}",
        "/admin/dead-letters",
        f"/admin/dead-letters/{letter}",
        "/admin/dead-letters/redriven?total=1&problem=" + "%3Cscript%3Ealert(1)%3C/script%3E",
    ):
        answer = await admin.get(path)
        assert answer.status_code == 200, path
        assert "alert(1)" in answer.text
        assert "<script>alert" not in answer.text
        assert "<img src=x" not in answer.text


@pytest.mark.parametrize("away", ["quota", "registry"])
async def test_without_one_service_the_rest_is_shown(
    seeded: None,
    cluster: Suite,
    start_worker: StartWorker,
    dashboard_url: str,
    keys: Keys,
    away: str,
) -> None:
    settings = {"dashboard_database_url": dashboard_url, "admin_emails": ADMIN}
    # Where nobody listens; this worker takes no jobs that would need it.
    async with start_worker(**settings, **{f"{away}_address": "127.0.0.1:9"}) as worker:
        pages = Pages(url=f"http://{worker.metrics_address}", keys=keys)
        async with pages.admin() as admin:
            text = (await admin.get("/admin/metrics")).text

    said = {"quota": "Money and refunds", "registry": "References"}[away]
    assert f"{said}: the {away} service does not answer." in text
    assert "Some parts are missing" in text
    assert tile(text, "requests") != "0"
    shown = {"quota": "references", "registry": "spent"}[away]
    assert tile(text, shown)
    hidden = {"quota": "spent", "registry": "references"}[away]
    assert f'data-tile="{hidden}"' not in text


async def test_without_the_cache_the_numbers_are_shown(
    seeded: None, cluster: Suite, pages: Pages, admin: Visitor, superuser: Any
) -> None:
    """The Cache's tables are locked away from it, which is as good as gone."""
    transaction = superuser.transaction()
    await transaction.start()
    await superuser.execute("LOCK TABLE cache.generations, cache.daily_losses")
    text = (await admin.get("/admin/metrics")).text
    await transaction.rollback()

    assert "The live queue:" in text
    assert tile(text, "spent") == f"${totals_of(1).spent_nanodollars / 1e9:.2f}"


async def test_money_is_summed_up_once_for_many_looks(
    seeded: None, admin: Visitor, superuser: "asyncpg.Connection[Any]"
) -> None:
    first = (await admin.get("/admin/metrics")).text
    transaction = superuser.transaction()
    await transaction.start()
    # Whoever asks Quota now gets no answer.
    await superuser.execute("LOCK TABLE quota.ai_operations, quota.ledger_entries")
    again = (await admin.get(f"/admin/metrics?day={today() - timedelta(days=2)}")).text
    await transaction.rollback()

    assert tile(first, "spent") == f"${totals_of(1).spent_nanodollars / 1e9:.2f}"
    assert tile(again, "spent") == f"${totals_of(2).spent_nanodollars / 1e9:.2f}"


async def test_without_its_own_role_the_page_tells_and_the_rest_is_shown(
    seeded: None, cluster: Suite, start_worker: StartWorker, dashboard_url: str, keys: Keys
) -> None:
    wrong = dashboard_url.replace("test-dashboard", "another")
    async with start_worker(dashboard_database_url=wrong, admin_emails=ADMIN) as worker:
        pages = Pages(url=f"http://{worker.metrics_address}", keys=keys)
        async with pages.admin() as admin:
            answer = await admin.get("/admin/metrics")

    assert answer.status_code == 200
    assert "Requests and failures: " in answer.text
    assert tile(answer.text, "spent") == f"${totals_of(1).spent_nanodollars / 1e9:.2f}"


async def test_a_locked_table_does_not_hold_the_page_for_long(
    seeded: None, admin: Visitor, superuser: "asyncpg.Connection[Any]"
) -> None:
    """The dashboard's own lock time-out ends it, while the lock is still held."""
    transaction = superuser.transaction()
    await transaction.start()
    await superuser.execute("LOCK TABLE worker.sticker_metrics, worker.dead_letters")
    metrics = await admin.get("/admin/metrics")
    letters = await admin.get("/admin/dead-letters")
    await transaction.rollback()

    assert "the database cannot be reached in time" in metrics.text
    assert tile(metrics.text, "spent")
    assert letters.status_code == 503


async def test_the_others_are_asked_with_the_token_of_who_is_signed_in(
    cluster: Suite, pages: Pages, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = capture_log(monkeypatch, "services.runtime.interceptors")
    subject = "somebody-in-person"
    token = keys.token("admin", subject=subject, email=ADMIN)
    async with pages.visitor() as visitor:
        await visitor.sign_in(token)
        assert (await visitor.get("/admin/metrics")).status_code == 200

    asked = {line["method"].rpartition("/")[2]: line["caller"] for line in calls.entries}
    for method in ("DescribeQueue", "ListLeaseLosses", "ListDailyTotals", "CheckReferenceHealth"):
        assert asked[method] == subject


async def test_the_workers_own_token_is_no_admins(cluster: Suite) -> None:
    bearer = cluster.bearer("worker")
    denied = grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED"

    async with refused(*denied):
        await cluster.cache.DescribeQueue(cache_pb2.DescribeQueueRequest(), metadata=bearer)
    async with refused(*denied):
        await cluster.cache.ListLeaseLosses(cache_pb2.ListLeaseLossesRequest(), metadata=bearer)
    async with refused(*denied):
        await cluster.quota.ListDailyTotals(quota_pb2.ListDailyTotalsRequest(), metadata=bearer)
    async with refused(*denied):
        check = registry_pb2.CheckReferenceHealthRequest()
        await cluster.registry.CheckReferenceHealth(check, metadata=bearer)


async def test_forms_of_others_are_refused(
    admin: Visitor, pages: Pages, superuser: "asyncpg.Connection[Any]"
) -> None:
    letter = await seed_letter(superuser)
    token = form_token_in((await admin.get("/admin/dead-letters")).text)
    wanted = {"what": "chosen", "generation_id": str(letter), "sure": "yes"}
    async with pages.visitor() as visitor:
        await visitor.sign_in(pages.token("x@y.z"))
        foreign = form_token_in((await visitor.get("/admin/dead-letters")).text)
    path = "/admin/dead-letters/redrive"

    refused = [
        await admin.post(path, wanted),
        await admin.post(path, {**wanted, "form_token": "0" * 64}),
        await admin.post(path, {**wanted, "form_token": foreign}),
        await admin.post(path, {**wanted, "form_token": token}, origin="http://evil.example"),
        await admin.post(path, {**wanted, "form_token": token}, origin="null"),
        await admin.client.post(f"{admin.url}{path}", data={**wanted, "form_token": token}),
        await admin.post("/admin/sign-out", {"form_token": "0" * 64}),
    ]

    assert [answer.status_code for answer in refused] == [403] * len(refused)
    assert await superuser.fetchval("SELECT count(*) FROM worker.dead_letters") == 1
    assert await superuser.fetchval("SELECT redriven_at FROM worker.dead_letters") is None
    assert (await admin.get("/admin/metrics")).status_code == 200


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"what": "chosen"}, 400),
        ({"what": "chosen", "generation_id": "nonsense"}, 400),
        ({"what": "reason"}, 400),
        ({"what": "reason", "reason": "x" * 100}, 400),
        ({"what": "everything"}, 400),
        ({"what": "chosen", "generation_id": [NOBODY] * 501}, 400),
        ({"what": "chosen", "generation_id": ["x" * 100] * 2_000}, 400),
    ],
)
async def test_forms_that_make_no_sense_are_refused(
    admin: Visitor, fields: dict[str, Any], status: int
) -> None:
    token = form_token_in((await admin.get("/admin/metrics")).text)

    answer = await admin.post("/admin/dead-letters/redrive", {**fields, "form_token": token})

    assert answer.status_code == status
    assert "That did not work" in answer.text


@contextmanager
def half_open(address: str, count: int) -> Iterator[list[Any]]:

    host, _, port = address.partition(":")
    browsers = [socket.create_connection((host, int(port))) for _ in range(count)]
    try:
        for browser in browsers:
            browser.sendall(b"GET /admin/metrics HTTP/1.1\r\nhost: 127")
        yield browsers
    finally:
        for browser in browsers:
            browser.close()


async def test_browsers_that_never_finish_delay_nobody(
    cluster: Suite, model: FakeOpenAI, pages: Pages, admin: Visitor
) -> None:
    with half_open(pages.url.removeprefix("http://"), 100):
        uploaded = await cluster.upload("ann", lecture("Plants turn light into energy."))
        made = await cluster.explain("ann", uploaded.document.pdf_hash)
        ended = await until_ended(cluster, made.generation_id)
        assert ended.status == cache_pb2.GENERATION_STATUS_READY
        assert (await admin.get("/admin/queue")).status_code == 200


async def test_metrics_are_scraped_as_before(pages: Pages, visitor: Visitor) -> None:
    answer = await visitor.get("/metrics", headers={"host": "10.1.2.3:9104"})

    assert answer.status_code == 200
    assert "glossa_worker_watchers" in answer.text
