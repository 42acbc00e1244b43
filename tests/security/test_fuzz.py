"""Hostile messages to every front door of four real processes: a typed answer each, and no trace.

`GLOSSA_FUZZ_EXAMPLES` (10 unless told) is how many each RPC gets.
"""

import os
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.local.layout import SERVICES
from tests.bench.memory import resident_bytes
from tests.local.processes import command_of, descendants
from tests.security import hostile_messages
from tests.security.conftest import Fortress
from tests.security.rpcs import RPCS, Rpc, Told, call
from tests.security.scopes import ALLOWED
from tests.suite import lecture
from tests.worker.test_lease_loop import until_ended

EXAMPLES = int(os.environ.get("GLOSSA_FUZZ_EXAMPLES", "10"))
MOST_GROWTH_BYTES = 32 << 20
ANSWERS = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
fuzzed = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
every_rpc = pytest.mark.parametrize("rpc", RPCS.values(), ids=str)


def check(rpc: Rpc, told: Told) -> None:
    """A typed refusal, or an answer; never ours to be ashamed of."""
    assert told.code in ANSWERS, f"{rpc}: {told.code} {told.message}"
    if told.code is grpc.StatusCode.OK:
        return
    status = status_pb2.Status.FromString(told.details)
    reasons = [one for one in status.details if one.Is(error_details_pb2.ErrorInfo.DESCRIPTOR)]
    assert reasons, f"{rpc} gives no reason: {told.message}"
    assert "Traceback" not in told.message
    assert len(told.message) < 1000, "what was sent is not sent back"


def logs(fortress: Fortress) -> str:
    folder: Path = fortress.up.state.root / "logs"
    return "".join(path.read_text(errors="replace") for path in sorted(folder.glob("*.log")))


@pytest.fixture(scope="session")
async def belongings(fortress: Fortress) -> dict[str, str]:
    """Ids of what there is: a document of alice's with a page that was explained."""
    suite = fortress.suite
    file = (await suite.upload("alice", lecture("A page to be attacked."))).file
    asked = await suite.explain("alice", file.pdf_hash)
    await until_ended(suite, asked.generation_id)
    return {
        "pdf_hash": file.pdf_hash,
        "file_id": file.file_id,
        "generation_id": asked.generation_id,
        "request_id": asked.request_id,
        "operation_id": asked.request_id,
        "batch_id": asked.request_id,
        "ref_id": file.file_id,
    }


@pytest.fixture
def quiet(fortress: Fortress) -> Any:
    """Nothing that goes on in this test leaves a traceback in a log."""
    before = len(logs(fortress))
    yield
    said = logs(fortress)
    assert "Traceback" not in said[-(len(said) - before) or len(said) :]


def pid_of(fortress: Fortress, service: str) -> int:
    """The service itself, and none of its children."""
    everybody = descendants(fortress.up.process.pid)
    [pid] = [one for one in everybody if command_of(one).rstrip().endswith(f"services.{service}")]
    return pid


@every_rpc
@fuzzed
@given(data=st.data())
async def test_whatever_is_sent_is_answered_in_type(
    fortress: Fortress, belongings: dict[str, str], quiet: None, rpc: Rpc, data: st.DataObject
) -> None:
    descriptor = rpc.method.input_type
    content = data.draw(
        hostile_messages.poisoned(descriptor, belongings)
        | hostile_messages.wire(descriptor, list(belongings.values()))
    )
    scope = data.draw(st.sampled_from(sorted(ALLOWED[rpc.name])))
    token = fortress.suite.keys.token(scope, subject="alice")
    told = await call(fortress.suite, rpc, content, metadata=[("authorization", f"Bearer {token}")])
    check(rpc, told)


@fuzzed
@given(
    token=st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=300)
    | st.lists(st.text(st.sampled_from("abcXYZ012_-="), max_size=60), min_size=1, max_size=5).map(
        ".".join
    )
)
async def test_no_token_made_up_is_more_than_refused(fortress: Fortress, token: str) -> None:
    header = f"Bearer {token}".strip()
    told = await call(
        fortress.suite, RPCS["GetQuotaStatus"], b"", metadata=[("authorization", header)]
    )
    assert told.code is grpc.StatusCode.UNAUTHENTICATED
    assert b"UNAUTHENTICATED" in told.details


async def test_hostile_messages_leave_no_memory_and_no_traceback_behind(
    fortress: Fortress, quiet: None
) -> None:
    """The same ones to all doors, twice to get used to them, and then the memory stays."""

    async def round_of_all() -> int:
        sent = 0
        for rpc in RPCS.values():
            token = suite.keys.token(sorted(ALLOWED[rpc.name])[0])
            for content in hostile_messages.fixed(rpc.method.input_type):
                bearer = [("authorization", f"Bearer {token}")]
                check(rpc, await call(suite, rpc, content, metadata=bearer))
                sent += 1
        return sent

    suite = fortress.suite
    await round_of_all()
    await round_of_all()
    pids = {service: pid_of(fortress, service) for service in SERVICES}
    before = {service: resident_bytes(pid) for service, pid in pids.items()}
    sent = await round_of_all() + await round_of_all()

    grown = {service: resident_bytes(pid) - before[service] for service, pid in pids.items()}
    assert sent >= 300
    assert max(grown.values()) < MOST_GROWTH_BYTES, grown


def test_a_message_that_is_no_utf8_is_none_to_protobuf() -> None:
    """So that the garbage above is garbage."""
    with pytest.raises(DecodeError):
        RPCS["GetQuotaStatus"].request.FromString(b"\x0a\x03\xed\xa0\x80")
