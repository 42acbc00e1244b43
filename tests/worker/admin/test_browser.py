"""The pages in a real browser: what is drawn, what renews itself, what can be done."""

import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
from playwright.async_api import Browser, Page, async_playwright, expect

from tests import fake_openai as fake
from tests.fake_openai import FakeOpenAI
from tests.programs import needs
from tests.suite import Keys, Suite, lecture
from tests.worker.admin.conftest import ADMIN, Pages
from tests.worker.admin.seeding import REASONS, seed_fortnight, seed_letter, totals_of
from tests.worker.conftest import StartWorker
from tests.worker.test_lease_loop import ask, until_ended

pytestmark = [needs("chromium", package="chromium"), pytest.mark.timeout(300)]

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
# Patient, since test machines are shared.
PATIENT_MS = 60_000
CHARTS = ["requests", "hit-rate", "latency", "failures", "money", "refunds", "losses"]
# How many pixels of a canvas are not see-through.
PAINTED = """canvas => {
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  let painted = 0;
  for (let place = 3; place < data.length; place += 4) painted += data[place] > 0;
  return painted;
}"""
# How much of a canvas has the very colour of the third series.
PAINTED_THIRD = """canvas => {
  const hex = getComputedStyle(document.documentElement).getPropertyValue("--series-3").trim();
  const wanted = [1, 3, 5].map((place) => parseInt(hex.slice(place, place + 2), 16));
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  let painted = 0;
  for (let place = 0; place < data.length; place += 4)
    painted += wanted.every((part, at) => data[place + at] === part);
  return painted;
}"""
# What breaks the policy is told to the page as an event.
NOTE_VIOLATIONS = """
window.violations = [];
document.addEventListener("securitypolicyviolation", event =>
  window.violations.push(`${event.violatedDirective} ${event.blockedURI}`));
"""


@dataclass(kw_only=True)
class Window:
    """One page of a browser, and everything about it that must not happen."""

    page: Page
    url: str
    complaints: list[str] = field(default_factory=list)

    async def open(self, path: str) -> None:
        await self.page.goto(f"{self.url}{path}")

    async def sign_in(self, token: str) -> None:
        await self.open("/admin/metrics")
        await self.page.get_by_label("Admin token").fill(token)
        await self.page.get_by_role("button", name="Sign in").click()

    async def text(self, selector: str) -> str:
        return (await self.page.locator(selector).first.inner_text()).strip()

    async def violations(self) -> list[str]:
        found: list[str] = await self.page.evaluate("window.violations")
        return found


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=ARGUMENTS
        )
        yield browser
        await browser.close()


@asynccontextmanager
async def opened(browser: Browser, url: str, **options: Any) -> AsyncIterator[Window]:
    context = await browser.new_context(**options)
    context.set_default_timeout(PATIENT_MS)
    await context.add_init_script(NOTE_VIOLATIONS)
    window = Window(page=await context.new_page(), url=url)
    note = window.complaints.append

    def hear(message: Any) -> None:
        # The door itself answers 401, which the browser remarks on.
        if message.type in {"error", "warning"} and "401" not in message.text:
            note(f"console: {message.text}")

    window.page.on("console", hear)
    window.page.on("pageerror", lambda error: note(f"error: {error}"))
    window.page.on(
        "request",
        lambda request: (
            None
            if urlsplit(request.url).netloc == urlsplit(url).netloc
            else note(f"asked elsewhere: {request.url}")
        ),
    )
    yield window
    assert await window.violations() == []
    assert window.complaints == []
    await context.close()


@pytest.fixture
async def window(browser: Browser, pages: Pages) -> AsyncIterator[Window]:
    async with opened(browser, pages.url) as window:
        yield window


async def test_a_fortnight_is_drawn_and_the_numbers_are_those_of_the_tables(
    window: Window, pages: Pages, superuser: "asyncpg.Connection[Any]"
) -> None:
    await seed_fortnight(superuser, datetime.now(UTC).date())

    await window.sign_in(pages.token())

    await expect(window.page.locator("figure.chart canvas")).to_have_count(len(CHARTS))
    for name in CHARTS:
        canvas = window.page.locator(f'figure[data-name="{name}"] canvas')
        assert await canvas.evaluate(PAINTED) > 500, f"{name} is empty"
    for days_ago in range(14):
        totals = totals_of(days_ago)
        row = window.page.locator('figure[data-name="requests"] details tbody tr').nth(
            13 - days_ago
        )
        shown = [int(cell.replace(",", "")) for cell in await row.locator("td").all_text_contents()]
        assert shown == [totals.hits, totals.joins, totals.misses]
        row = window.page.locator('figure[data-name="failures"] details tbody tr').nth(
            13 - days_ago
        )
        shown = [int(cell) for cell in await row.locator("td").all_text_contents()]
        assert sorted(shown) == sorted(totals.failures[reason] for reason in REASONS)
    yesterday = totals_of(1)
    served = yesterday.hits + yesterday.misses + yesterday.joins
    assert await window.text('[data-tile="requests"] dd') == f"{served:,}"
    assert await window.text('[data-tile="zombies"] dd') == str(yesterday.zombies)


async def test_what_is_under_the_cursor_is_told_below_the_chart(
    window: Window, pages: Pages, superuser: "asyncpg.Connection[Any]"
) -> None:
    await seed_fortnight(superuser, datetime.now(UTC).date())
    await window.sign_in(pages.token())

    over = window.page.locator('figure[data-name="requests"] .u-over')
    box = await over.bounding_box()
    assert box is not None
    # The middle of the second bar from the right is yesterday.
    await over.hover(position={"x": box["width"] * 13.1 / 14.2 - 4, "y": box["height"] / 2})

    legend = window.page.locator('figure[data-name="requests"] .u-legend')
    await expect(legend).to_contain_text(re.compile(f"{totals_of(1).hits:,}"))


async def test_hits_under_a_millisecond_are_drawn_and_told(
    window: Window, pages: Pages, superuser: "asyncpg.Connection[Any]"
) -> None:
    await seed_fortnight(superuser, datetime.now(UTC).date())
    # Nothing else is on the chart.
    await superuser.execute(
        "UPDATE worker.sticker_metrics SET p95_hit_ms = 0, cache_misses = 0, joins = 0"
    )
    await window.sign_in(pages.token())

    chart = window.page.locator('figure[data-name="latency"]')
    assert await chart.locator("canvas").evaluate(PAINTED_THIRD) > 50
    over = chart.locator(".u-over")
    box = await over.bounding_box()
    assert box is not None
    await over.hover(position={"x": box["width"] * 13.1 / 14.2 - 4, "y": box["height"] / 2})
    await expect(chart.locator(".u-legend")).to_contain_text("< 1 ms")


async def test_light_and_dark_can_be_switched_and_are_remembered(
    browser: Browser, pages: Pages, superuser: "asyncpg.Connection[Any]"
) -> None:
    await seed_fortnight(superuser, datetime.now(UTC).date())
    background = "getComputedStyle(document.body).backgroundColor"
    async with opened(browser, pages.url, color_scheme="dark") as window:
        canvases = window.page.locator("figure.chart canvas")
        await window.sign_in(pages.token())
        await expect(canvases).to_have_count(len(CHARTS))
        dark = await window.page.evaluate(background)
        await window.page.get_by_label("Change between light and dark").click()
        light = await window.page.evaluate(background)
        await window.page.reload()
        kept = await window.page.evaluate(background)
        await expect(canvases).to_have_count(len(CHARTS))

    assert dark != light
    assert kept == light


@pytest.mark.parametrize("width", [390, 1280])
async def test_no_page_is_wider_than_its_window(
    browser: Browser, pages: Pages, superuser: "asyncpg.Connection[Any]", width: int
) -> None:
    await seed_fortnight(superuser, datetime.now(UTC).date())
    letter = await seed_letter(superuser, reason="A" * 64, message="long " * 60 + "x" * 300)
    async with opened(browser, pages.url, viewport={"width": width, "height": 844}) as window:
        await window.sign_in(pages.token())
        await expect(window.page.locator("#queue dl").first).to_be_visible()
        for path in (
            "/admin/metrics",
            "/admin/requests",
            "/admin/dead-letters",
            f"/admin/dead-letters/{letter}",
            "/admin/dead-letters/redriven",
        ):
            await window.open(path)
            assert await window.page.evaluate("document.documentElement.scrollWidth") <= width, path


async def test_others_are_refused_at_the_door(window: Window, pages: Pages) -> None:
    await window.sign_in(pages.token("eve@example.org"))

    alert = window.page.get_by_role("alert")
    await expect(alert).to_have_text("These pages are not for eve@example.org.")
    await window.open("/admin/dead-letters")
    await expect(window.page.get_by_role("button", name="Sign in")).to_be_visible()
    # The refusal is what the browser remarks on.
    window.complaints[:] = [one for one in window.complaints if "403" not in one]


async def test_the_keyboard_is_enough(window: Window, pages: Pages) -> None:
    await window.open("/admin/metrics")
    await expect(window.page.get_by_label("Admin token")).to_be_focused()
    await window.page.keyboard.type(pages.token())
    await window.page.keyboard.press("Enter")
    await expect(window.page.get_by_role("heading", name="Metrics")).to_be_visible()
    await window.page.keyboard.press("Tab")
    await expect(window.page.get_by_text("Skip to the content")).to_be_focused()
    await window.page.keyboard.press("Enter")
    assert await window.page.evaluate("document.activeElement.id") == "content"


async def test_the_live_queue_renews_itself(
    browser: Browser,
    cluster: Suite,
    model: FakeOpenAI,
    start_worker: StartWorker,
    dashboard_url: str,
    keys: Keys,
) -> None:
    model.gate.clear()
    settings = {"dashboard_database_url": dashboard_url, "admin_emails": ADMIN, "concurrency": 1}
    async with start_worker(**settings) as worker:
        pages = Pages(url=f"http://{worker.metrics_address}", keys=keys)
        async with opened(browser, pages.url) as window:
            await window.sign_in(pages.token())
            waiting = window.page.locator('[data-lane="background"] [data-what="waiting"]')
            leased = window.page.locator('[data-lane="interactive"] [data-what="leased"]')
            await expect(waiting).to_have_text("0")

            first = await ask(cluster)
            await model.wait_for_calls(1)
            for number in range(3):
                user = f"user-{number}"
                uploaded = await cluster.upload(user, lecture("A tree is a graph."))
                await cluster.explain(user, uploaded.document.pdf_hash, background=True)

            # Nobody touches the page.
            await expect(waiting).to_have_text("3", timeout=PATIENT_MS)
            await expect(leased).to_have_text("1", timeout=PATIENT_MS)
            model.gate.set()
            await until_ended(cluster, first)
            await expect(waiting).to_have_text("0", timeout=PATIENT_MS)


async def test_dead_letters_are_looked_at_counted_and_started_anew(
    window: Window, pages: Pages, cluster: Suite, model: FakeOpenAI, superuser: Any
) -> None:
    model.always(fake.refusal())
    failed = [await ask(cluster, user=f"user-{number}") for number in range(3)]
    for one in failed:
        await until_ended(cluster, one)
    model.always(fake.notes())
    while await superuser.fetchval("SELECT count(*) FROM worker.dead_letters") < 3:
        pass
    page = window.page
    await window.sign_in(pages.token())
    await page.get_by_role("link", name="Dead letters").first.click()

    await page.locator(f'a[href="/admin/dead-letters/{failed[0]}"]').click()
    await expect(page.get_by_text("Attempt 1: CONTENT_REFUSED")).to_be_visible()
    await page.get_by_role("link", name="All dead letters").click()
    await page.locator(f'input[value="{failed[1]}"]').check()
    await page.get_by_role("button", name="Redrive selected").click()

    # First only counted.
    await expect(page.get_by_role("heading", name="Start 1 anew?")).to_be_visible()
    count_started = "SELECT count(*) FROM worker.dead_letters WHERE redriven_at IS NOT NULL"
    assert await superuser.fetchval(count_started) == 0
    await page.get_by_role("button", name="Start 1").click()
    await expect(page.get_by_role("status")).to_contain_text("1 of 1 started.")
    outcome = page.locator(f'[data-outcome="{failed[1]}"]')
    await expect(outcome).to_have_text("ready", timeout=PATIENT_MS)
    assert await superuser.fetchval(count_started) == 1

    # The rest, by its reason.
    await page.get_by_role("link", name="Back to the dead letters").click()
    await page.get_by_label("Redrive all of CONTENT_REFUSED").click()
    await page.get_by_role("button", name="Start 2").click()
    await expect(page.get_by_role("status")).to_contain_text("2 of 2 started.")
    for one in failed:
        await expect(page.locator(f'[data-outcome="{one}"]')).to_have_text(
            "ready", timeout=PATIENT_MS
        )
    await page.get_by_role("link", name="Back to the dead letters").click()
    await expect(page.get_by_text("Nothing is dead.")).to_be_visible()


async def test_hostile_words_do_nothing(
    window: Window, pages: Pages, superuser: "asyncpg.Connection[Any]"
) -> None:
    hostile = "<script>window.harmed=1</script><img src=x onerror='window.harmed=1'>"
    letter = await seed_letter(superuser, reason=hostile[:60], message=hostile)
    await superuser.execute(
        "INSERT INTO worker.sticker_metrics SELECT 'day',"
        " date_trunc('day', now(), 'UTC') - interval '1 day', 'page_explanation', '', '', '', 1, 1,"
        " 1, 1, 0, 1, 1, 1, 1, 1, 1, 0, 0, jsonb_build_object($1::text, 3)",
        hostile,
    )
    await window.sign_in(pages.token())
    for path in ("/admin/metrics", "/admin/dead-letters", f"/admin/dead-letters/{letter}"):
        await window.open(path)
        await expect(window.page.get_by_text("window.harmed=1").first).to_be_attached()
        assert await window.page.evaluate("window.harmed") is None


async def test_signing_out_ends_it(window: Window, pages: Pages) -> None:
    await window.sign_in(pages.token())
    await window.page.get_by_role("button", name="Sign out").click()
    await expect(window.page.get_by_role("heading", name="Sign in")).to_be_visible()
    await window.open("/admin/metrics")
    await expect(window.page.get_by_label("Admin token")).to_be_visible()
