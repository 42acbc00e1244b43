"""A suite is worked hard, failures included; then its secrets are looked for where none may be."""

import asyncio
import json
import re
import subprocess
import sys
import urllib.request
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import pytest
from glossa.cache.v1 import cache_pb2
from glossa.worker.v1 import worker_pb2
from prometheus_client.parser import text_string_to_metric_families

from services.local.layout import SERVICES
from services.registry.confinement import CLONE_NEWNET, CLONE_NEWUSER
from tests import fake_openai as fake
from tests.local.processes import command_of, descendants
from tests.security.conftest import SECRETS, Fortress
from tests.security.rpcs import RPCS, call
from tests.suite import lecture, metadata
from tests.worker.test_lease_loop import until_ended

USER = "recognisable-user-77"
PAGE = "Recognisable words on a page: the quokka has been seen in the reading room."
# What would be different for every user, document or call.
ENDLESS = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}-[0-9a-f]{4}-|recognisable|@")
FORBIDDEN_LABELS = {"user", "user_id", "owner", "subject", "pdf_hash", "hash", "document"}
FORBIDDEN_LABELS |= {"file_id", "generation_id", "request_id", "filename", "url", "worker_id"}


@dataclass(frozen=True, kw_only=True)
class Aftermath:
    """What was said while the suite worked, by channel."""

    fortress: Fortress
    secrets: dict[str, str]
    pdf_hash: str
    answers: str
    logs: str
    metrics: dict[str, str]


def body_of(pem: str) -> str:
    """A line of a key that no other key has."""
    return pem.strip().splitlines()[1][:48]


def secrets_of(fortress: Fortress) -> dict[str, str]:
    state = fortress.up.state
    passwords = json.loads((state.root / "passwords.json").read_text())
    return {
        **SECRETS,
        **{f"password of {service}": passwords[service] for service in SERVICES},
        "password of the superuser": (state.postgres / "password").read_text().strip(),
        "signing key": body_of(state.signing_key_file.read_text()),
        "TLS key": body_of(fortress.files.key_file.read_text()),
        **{
            f"token of {service}": state.token_file(service).read_text().strip()
            for service in ("registry", "cache", "worker")
        },
    }


@pytest.fixture(scope="session")
async def aftermath(fortress: Fortress) -> Aftermath:
    suite, secrets = fortress.suite, secrets_of(fortress)
    secrets["token of a user"] = suite.keys.user_token(USER)
    secrets["token of a gateway"] = suite.keys.token("gateway")
    uploaded = await suite.upload(USER, lecture(PAGE, PAGE + " Twice."))
    pdf_hash = uploaded.file.pdf_hash
    said = [await succeed(fortress, pdf_hash), await fail(fortress, pdf_hash)]
    said += await be_refused(fortress, secrets)
    logs = "".join(
        path.read_text() for path in sorted((fortress.up.state.root / "logs").glob("*.log"))
    )
    return Aftermath(
        fortress=fortress,
        secrets=secrets,
        pdf_hash=pdf_hash,
        answers="\n".join(said),
        logs=logs,
        metrics={service: await scraped(fortress, service) for service in SERVICES},
    )


async def succeed(fortress: Fortress, pdf_hash: str) -> str:
    asked = await fortress.suite.explain(USER, pdf_hash)
    return str(await until_ended(fortress.suite, asked.generation_id))


async def fail(fortress: Fortress, pdf_hash: str) -> str:
    """The model refuses the key, and says which; then the page fails for good."""
    suite, model = fortress.suite, fortress.model
    refused = fake.error(400, "invalid_prompt")
    message = f"Incorrect API key provided: {SECRETS['OPENAI_API_KEY']} for '{PAGE}'"
    body = json.dumps({"error": {"message": message, "code": "invalid_prompt"}}).encode()
    usual, model.answer = model.answer, lambda _: replace(refused, body=body)
    try:
        asked = await suite.explain(USER, pdf_hash, page=2)
        generation = await until_ended(suite, asked.generation_id)
    finally:
        model.answer = usual
    assert generation.status == cache_pb2.GENERATION_STATUS_FAILED
    story = await suite.cache.DescribeRequest(
        cache_pb2.DescribeRequestRequest(request_id=asked.request_id, user_id=USER),
        metadata=suite.bearer(),
    )
    letters = await suite.worker.ListDeadLetters(
        worker_pb2.ListDeadLettersRequest(), metadata=suite.bearer("admin")
    )
    return f"{generation}{story}{letters}"


async def be_refused(fortress: Fortress, secrets: dict[str, str]) -> list[str]:
    """Good tokens with one character too many, and calls they are not for."""
    suite, said = fortress.suite, []
    tokens = [secrets["token of a user"], secrets["token of a gateway"]]
    for token in [*tokens, *(f"{token}x" for token in tokens)]:
        for name in ("RenewLeases", "ExplainPage", "GetQuotaStatus", "UploadDocument"):
            told = await call(suite, RPCS[name], b"", metadata=metadata(token))
            assert told.code is not grpc.StatusCode.OK
            said.append(str(told))
    return said


async def scraped(fortress: Fortress, service: str) -> str:
    url = f"http://{fortress.up.ports.metrics_address(service)}/metrics"
    with await asyncio.to_thread(urllib.request.urlopen, url) as page:
        text: str = page.read().decode()
    return text


def may_leave_the_network() -> bool:
    """Whether a process may have a network of its own here; some containers forbid it."""
    script = f"import ctypes; exit(ctypes.CDLL(None).unshare({CLONE_NEWUSER | CLONE_NEWNET}) != 0)"
    return subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def found(secrets: dict[str, str], text: str) -> set[str]:
    return {name for name, secret in secrets.items() if secret in text}


def test_no_secret_is_in_the_logs(aftermath: Aftermath) -> None:
    assert "unexpected_error" not in aftermath.logs
    assert found(aftermath.secrets, aftermath.logs) == set()


def test_no_page_is_in_the_logs(aftermath: Aftermath) -> None:
    assert "quokka" not in aftermath.logs


def test_no_secret_is_in_an_answer(aftermath: Aftermath) -> None:
    assert "MODEL" in aftermath.answers, "the failure was told"
    assert found(aftermath.secrets, aftermath.answers) == set()


def test_no_secret_is_in_the_metrics(aftermath: Aftermath) -> None:
    for service, text in aftermath.metrics.items():
        assert found(aftermath.secrets, text) == set(), service


def test_no_metric_tells_of_a_user_or_a_document(aftermath: Aftermath) -> None:
    for service, text in aftermath.metrics.items():
        assert USER not in text, service
        assert aftermath.pdf_hash[:12] not in text, service
        labels = {
            (label, value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            for label, value in sample.labels.items()
        }
        assert not {label for label, _ in labels} & FORBIDDEN_LABELS, service
        assert not [pair for pair in labels if ENDLESS.search(pair[1])], service


def test_no_secret_is_in_a_process_list(aftermath: Aftermath) -> None:
    up = aftermath.fortress.up.process.pid
    for pid in {up, *descendants(up)}:
        assert found(aftermath.secrets, command_of(pid)) == set(), command_of(pid)


def test_a_process_has_no_secret_in_its_environment_but_its_own(aftermath: Aftermath) -> None:
    secrets, up = aftermath.secrets, aftermath.fortress.up
    may_have = {
        "services.registry": {"password of registry", "GLOSSA_CALLBACK_SECRET"},
        "services.cache": {"password of cache", "OPENAI_API_KEY"},
        "services.quota": {"password of quota"},
        "services.worker": {"password of worker", "OPENAI_API_KEY"},
    }
    seen = set()
    for pid in descendants(up.process.pid):
        environment = Path(f"/proc/{pid}/environ").read_text(errors="replace")
        command = command_of(pid)
        allowed = [may for part, may in may_have.items() if command.rstrip().endswith(part)]
        has = found(secrets, environment)
        assert has <= (allowed[0] if allowed else set()), command
        seen |= has
    assert seen == set().union(*may_have.values()), "the secrets were really there"


def test_a_pdf_reader_has_no_environment_no_network_and_nothing_open_but_its_task(
    aftermath: Aftermath,
) -> None:
    up = aftermath.fortress.up.process.pid
    readers = [pid for pid in descendants(up) if "pdf_child" in command_of(pid)]
    assert readers
    for pid in readers:
        proc = Path(f"/proc/{pid}")
        assert (proc / "environ").read_text() == ""
        opened = {fd.name: str(fd.readlink()) for fd in (proc / "fd").iterdir()}
        # Its socket for tasks (twice: as it came, and as it is used), its pipe for answers.
        kinds = sorted(target.partition(":")[0] for target in opened.values())
        assert kinds == ["/dev/null", "/dev/null", "pipe", "socket", "socket"], opened
        sockets = {target for target in opened.values() if target.startswith("socket")}
        assert len(sockets) == 1, "the one for tasks"
        network = (proc / "ns" / "net").readlink()
        alone = network != Path("/proc/self/ns/net").readlink()
        assert alone or not may_leave_the_network()
