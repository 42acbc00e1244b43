"""Real processes behind mutual TLS: who gets in, who does not, and what a certificate is worth."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from glossa.cache.v1 import jobs_pb2
from glossa.cache.v1.jobs_pb2_grpc import JobServiceStub
from glossa.quota.v1 import quota_pb2
from glossa.quota.v1.quota_pb2_grpc import QuotaServiceStub
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.local.layout import SERVICES
from services.local.state import State
from tests.local.up import environment
from tests.security.certificates import client_credentials
from tests.security.conftest import Fortress
from tests.suite import lecture, metadata
from tests.worker.test_lease_loop import until_ended

PAGE = "Entropy counts the ways in which the parts of a system can be arranged."


async def glossa(
    fortress: Fortress, *arguments: str, **changes: str
) -> subprocess.CompletedProcess[str]:
    """The command line beside the suite, which finds it by its state folder."""
    variables = environment(fortress.up.state.root.parent, fortress.up.ports)
    variables.update(fortress.environment | changes)
    del variables["GLOSSA_PORT_BASE"]
    return await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "services.cli", *arguments],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def channel(address: str, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
    options = [("grpc.use_local_subchannel_pool", 1)]
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, credentials, options=options)


async def test_a_page_is_explained_over_four_services_that_show_certificates(
    fortress: Fortress,
) -> None:
    suite = fortress.suite
    uploaded = await suite.upload("alice", lecture(PAGE))
    asked = await suite.explain("alice", uploaded.file.pdf_hash)

    generation = await until_ended(suite, asked.generation_id)

    assert generation.stickers


@pytest.mark.parametrize("service", SERVICES)
async def test_only_a_certificate_of_our_authority_opens_a_connection(
    fortress: Fortress, service: str
) -> None:
    ours, foreign = fortress.authority, trustme.CA()
    strangers: dict[str, grpc.ChannelCredentials | None] = {
        "plain text": None,
        "no certificate": client_credentials(ours),
        "certificate of another authority": client_credentials(ours, shown_by=foreign),
        "believes another authority": client_credentials(foreign, shown_by=ours),
    }
    address = fortress.suite.addresses[service]
    for name, credentials in strangers.items():
        async with channel(address, credentials) as stranger:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await health_pb2_grpc.HealthStub(stranger).Check(
                    health_pb2.HealthCheckRequest(), timeout=20
                )
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE, name
    async with channel(address, client_credentials(ours, shown_by=ours)) as member:
        answer = await health_pb2_grpc.HealthStub(member).Check(
            health_pb2.HealthCheckRequest(), timeout=20
        )
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_certificate_opens_the_door_and_the_token_says_who_comes_in(
    fortress: Fortress,
) -> None:
    """The certificate of the services themselves: without a token, or with a gateway's."""
    files, suite = fortress.files, fortress.suite
    of_a_service = grpc.ssl_channel_credentials(
        files.ca_file.read_bytes(), files.key_file.read_bytes(), files.cert_file.read_bytes()
    )

    async def code(service: str, call: Any) -> grpc.StatusCode:
        async with channel(suite.addresses[service], of_a_service) as member:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(member)
        return grpc.StatusCode(refused.value.code())

    def nobody(member: grpc.aio.Channel) -> Any:
        return QuotaServiceStub(member).GetQuotaStatus(quota_pb2.GetQuotaStatusRequest())

    def gateway(member: grpc.aio.Channel) -> Any:
        return JobServiceStub(member).RenewLeases(
            jobs_pb2.RenewLeasesRequest(worker_id="w"),
            metadata=metadata(suite.keys.token("gateway")),
        )

    assert await code("quota", nobody) == grpc.StatusCode.UNAUTHENTICATED
    assert await code("cache", gateway) == grpc.StatusCode.PERMISSION_DENIED


async def test_the_command_line_speaks_tls(fortress: Fortress, tmp_path: Path) -> None:
    pdf = tmp_path / "lecture.pdf"
    pdf.write_bytes(lecture(PAGE))

    explained = await glossa(fortress, "explain", str(pdf), "--user", "carol", "--page", "1")
    listed = await glossa(fortress, "files", "--user", "carol")
    counted = await glossa(fortress, "dead-letters", "list")
    none = dict.fromkeys(fortress.environment, "")
    plain = await glossa(fortress, "quota", "--user", "carol", **none)

    assert (explained.returncode, explained.stderr) == (0, "")
    assert "lecture.pdf" in listed.stdout
    assert counted.returncode == 0, counted.stderr
    assert plain.returncode == 1
    assert plain.stderr.startswith("error: cannot reach the quota service at")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"GLOSSA_TLS_KEY_FILE": ""}, "GLOSSA_TLS_CERT_FILE is set but GLOSSA_TLS_KEY_FILE is not"),
        ({"GLOSSA_TLS_CA_FILE": "/nowhere"}, "GLOSSA_TLS_CA_FILE /nowhere cannot be read"),
        ({"GLOSSA_TLS_CLIENT_AUTH": "maybe"}, "must be none or require, not 'maybe'"),
    ],
)
@pytest.mark.parametrize("command", ["quota", "up"])
async def test_commands_say_in_one_sentence_what_is_wrong_with_the_settings(
    fortress: Fortress, command: str, changes: dict[str, str], words: str
) -> None:
    arguments = ["up"] if command == "up" else ["quota", "--user", "alice"]
    result = await glossa(fortress, *arguments, **changes)

    assert result.returncode == 1
    [line] = result.stderr.strip().splitlines()
    assert words in line


def test_keys_and_tokens_are_for_their_owner_only(fortress: Fortress) -> None:
    state: State = fortress.up.state
    for path in (state.signing_key_file, state.root / "passwords.json", state.token_file("cache")):
        assert path.stat().st_mode & 0o077 == 0, path
