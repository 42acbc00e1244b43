"""Who comes in, who does not, and what they are told."""

import time
from datetime import timedelta

import pytest

from services.runtime.auth import TokenVerifier, generate_keys
from services.runtime.errors import GlossaError
from services.worker.admin.session import LONGEST_SESSION, TRIES, SignIn
from tests.suite import Keys, Suite
from tests.worker.admin.conftest import ADMIN, SESSION, Pages, Visitor, form_token_in
from tests.worker.conftest import StartWorker

PATHS = (
    "/admin/metrics",
    "/admin/queue",
    "/admin/requests",
    "/admin/requests/00000000-0000-4000-8000-000000000000",
    "/admin/dead-letters",
    "/admin/dead-letters/redriven",
    "/admin/dead-letters/outcomes",
    "/admin/dead-letters/00000000-0000-4000-8000-000000000000",
)


async def test_an_admin_signs_in_and_out(pages: Pages, visitor: Visitor) -> None:
    answer = await visitor.sign_in(pages.token(), then="/admin/dead-letters?reason=X")

    assert (answer.status_code, answer.headers["location"]) == (303, "/admin/dead-letters?reason=X")
    metrics = await visitor.get("/admin/metrics")
    assert metrics.status_code == 200
    assert ADMIN in metrics.text

    form_token = form_token_in(metrics.text)
    left = await visitor.post("/admin/sign-out", {"form_token": form_token})
    assert (left.status_code, left.headers["location"]) == (303, "/admin/sign-in")
    assert (await visitor.get("/admin/metrics")).status_code == 401


@pytest.mark.parametrize("path", PATHS)
async def test_nobody_sees_a_page_without_signing_in(visitor: Visitor, path: str) -> None:
    answer = await visitor.get(path)

    assert answer.status_code == 401
    assert "Sign in to see this page." in answer.text


async def test_the_cookie_is_kept_from_scripts_and_other_sites(
    pages: Pages, visitor: Visitor
) -> None:
    answer = await visitor.sign_in(pages.token(lifetime=timedelta(minutes=30)))

    [cookie] = [one for one in answer.headers.get_list("set-cookie") if one.startswith(SESSION)]
    attributes = {part.strip().lower() for part in cookie.split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/admin"} <= attributes
    assert "secure" not in attributes  # plain HTTP on loopback
    [age] = [int(part.partition("=")[2]) for part in attributes if part.startswith("max-age")]
    assert 0 < age <= 30 * 60


async def test_behind_tls_the_cookie_is_secure_and_other_names_are_refused(
    cluster: Suite, start_worker: StartWorker, dashboard_url: str, keys: Keys
) -> None:
    origin = "https://glossa.example.org"
    settings = {
        "dashboard_database_url": dashboard_url,
        "admin_emails": ADMIN,
        "admin_origin": origin,
    }
    async with start_worker(**settings) as worker:
        pages = Pages(url=f"http://{worker.metrics_address}", keys=keys)
        async with pages.visitor() as visitor:
            visitor.client.headers["host"] = "glossa.example.org"
            shown = await visitor.get("/admin/sign-in")
            cookie = shown.headers["set-cookie"]
            fields = {"form_token": form_token_in(shown.text), "token": pages.token()}
            # The client keeps no secure cookie of a plain connection, as the proxy's browser would.
            visitor.client.headers["cookie"] = cookie.partition(";")[0]
            foreign = await visitor.post("/admin/sign-in", fields)
            own = await visitor.post("/admin/sign-in", fields, origin=origin)
            del visitor.client.headers["host"]
            by_address = await visitor.get("/admin/sign-in")
            scraped = await visitor.get("/metrics")

    assert foreign.status_code == 403
    assert own.status_code == 303
    assert all("; Secure" in one for one in (cookie, own.headers["set-cookie"]))
    assert by_address.status_code == 421
    assert scraped.status_code == 200


def signed(keys: Keys, **other: object) -> str:
    return keys.token("admin", email=ADMIN, **other)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("email", "scopes", "said"),
    [
        ("eve@example.org", ("admin",), "These pages are not for eve@example.org."),
        ("", ("admin",), "These pages are not for a token without an e-mail address."),
        (ADMIN, ("gateway",), "is not one for admins"),
        (ADMIN, ("user",), "is not one for admins"),
        (f"{ADMIN}.evil.org", ("admin",), "These pages are not for"),
    ],
)
async def test_others_are_refused_with_a_sentence(
    pages: Pages, visitor: Visitor, email: str, scopes: tuple[str, ...], said: str
) -> None:
    token = pages.token(email, *scopes)

    typed = await visitor.sign_in(token)
    visitor.client.cookies.set(SESSION, token, path="/admin")
    planted = await visitor.get("/admin/metrics")

    assert (typed.status_code, planted.status_code) == (403, 403)
    assert said in typed.text
    assert said in planted.text
    assert SESSION not in typed.headers.get("set-cookie", "")


async def test_tokens_that_are_no_good_are_refused(pages: Pages, visitor: Visitor) -> None:
    strangers, _ = generate_keys()
    expired = signed(pages.keys, lifetime=timedelta(seconds=-1))
    header, payload, signature = pages.token().split(".")
    forged = {
        "": "That is no token.",
        "nonsense": "The token is not valid here.",
        "x" * 10_000: "That is no token.",
        expired: "The token has expired; get a new one.",
        f"{header}.{payload}.{signature[::-1]}": "The token is not valid here.",
        pages.token(lifetime=LONGEST_SESSION + timedelta(minutes=1)): "12 hours",
    }
    assert strangers
    for token, said in forged.items():
        answer = await visitor.sign_in(token)
        assert answer.status_code == 401, said
        assert said in answer.text

        async with pages.visitor() as planting:
            planting.client.cookies.set(SESSION, token, path="/admin")
            assert (await planting.get("/admin/metrics")).status_code == 401


async def test_e_mail_addresses_are_compared_without_case(pages: Pages, visitor: Visitor) -> None:
    assert (await visitor.sign_in(pages.token(ADMIN.upper()))).status_code == 303


async def test_a_session_ends_with_its_token(pages: Pages, visitor: Visitor) -> None:
    await visitor.sign_in(pages.token(lifetime=timedelta(seconds=2)))
    held = visitor.client.cookies[SESSION]

    # A browser forgets the cookie by itself; one that does not is refused.
    answer = await visitor.get("/admin/queue", headers={"cookie": f"{SESSION}={held}"})
    while answer.status_code == 200:
        answer = await visitor.get(
            "/admin/queue", headers={"cookie": f"{SESSION}={held}", "hx-request": "true"}
        )

    assert answer.status_code == 401
    assert "The token has expired" in answer.text
    # What renews itself makes the browser load the page again, which shows the door.
    assert answer.headers["hx-refresh"] == "true"


async def test_without_addresses_nobody_signs_in(
    cluster: Suite, start_worker: StartWorker, dashboard_url: str, keys: Keys
) -> None:
    async with start_worker(dashboard_database_url=dashboard_url) as worker:
        pages = Pages(url=f"http://{worker.metrics_address}", keys=keys)
        async with pages.visitor() as visitor:
            shown = await visitor.get("/admin/sign-in")
            assert "set <code>ADMIN_EMAILS</code>" in shown.text
            visitor.client.cookies.set(SESSION, pages.token(""), path="/admin")
            assert (await visitor.get("/admin/metrics")).status_code == 403


async def test_trying_one_token_after_the_other_is_slowed_down(
    pages: Pages, visitor: Visitor
) -> None:
    answers = [await visitor.sign_in(f"guess-{number}") for number in range(TRIES + 1)]
    good = await visitor.sign_in(pages.token())

    assert [one.status_code for one in answers] == [401] * TRIES + [429]
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 60
    # Behind a proxy everybody has this address.
    assert good.status_code == 303


def test_tries_are_counted_by_address_and_forgotten(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign_in = SignIn(TokenVerifier(keys.verify_key_file.read_bytes()), frozenset({ADMIN}))
    now = time.monotonic()
    monkeypatch.setattr("services.worker.admin.session.time.monotonic", lambda: now)

    def reason(address: str, token: str = "wrong") -> str:
        try:
            return sign_in.try_token(token, address=address).email
        except GlossaError as error:
            return error.reason

    assert {reason("a") for _ in range(TRIES)} == {"UNAUTHENTICATED"}
    assert reason("a") == "TOO_MANY_TRIES"
    assert reason("a", signed(keys)) == ADMIN
    assert reason("a") == "TOO_MANY_TRIES"
    assert reason("b") == "UNAUTHENTICATED"
    now += 61
    assert reason("a") == "UNAUTHENTICATED"


@pytest.mark.parametrize(
    "then",
    ["https://evil.example", "//evil.example", "/admin/..//evil.example", "/admin/\\evil", "/x"],
)
async def test_signing_in_leads_to_our_own_pages_only(
    pages: Pages, visitor: Visitor, then: str
) -> None:
    answer = await visitor.sign_in(pages.token(), then=then)

    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/admin/")
    assert "evil" not in answer.headers["location"] or then.startswith("/admin/..")
