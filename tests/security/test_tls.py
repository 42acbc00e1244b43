"""One service and its certificates: what it refuses to start with, and how it takes a new one."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from glossa.quota.v1 import quota_pb2 as pb
from glossa.quota.v1.quota_pb2_grpc import QuotaServiceStub

from services.runtime.auth import TokenFile
from services.runtime.channel import open_channel
from services.runtime.server import CannotStart
from services.runtime.tls import TlsMisconfigured, tls_from
from tests.runtime.test_server import Tricky, serving
from tests.security.certificates import Files, write_certificate
from tests.suite import Keys


@asynccontextmanager
async def calling(keys: Keys, address: str, files: Files) -> AsyncIterator[QuotaServiceStub]:
    """A client as our services are, with certificates from files of its own."""
    path = keys.folder / "gateway.jwt"
    path.write_text(keys.token("gateway"))
    tls = tls_from(
        cert_file=str(files.cert_file),
        key_file=str(files.key_file),
        ca_file=str(files.ca_file),
        client_auth="none",
    )
    async with open_channel(address, TokenFile(path), tls=tls) as channel:
        yield QuotaServiceStub(channel)


async def shown_by(address: str) -> str:
    """The certificate a server shows to who looks now."""
    host, _, port = address.rpartition(":")
    return await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)))


async def test_a_renewed_certificate_is_shown_without_a_restart(keys: Keys, tmp_path: Path) -> None:
    authority = trustme.CA()
    files = write_certificate(tmp_path / "tls", authority)
    async with serving(keys, Tricky(), **files.settings(client_auth="none")) as here:
        before = await shown_by(here.address)
        write_certificate(tmp_path / "tls", authority)
        after = await shown_by(here.address)

    assert after != before
    assert after == files.cert_file.read_text()


async def test_a_server_moves_to_a_new_authority_without_a_restart(
    keys: Keys, tmp_path: Path
) -> None:
    """Whoever is connected stays; whoever comes with a certificate of the old one is out."""
    old, new = trustme.CA(), trustme.CA()
    theirs = write_certificate(tmp_path / "server", old)
    ours = write_certificate(tmp_path / "client", old)
    async with (
        serving(keys, Tricky(), **theirs.settings()) as here,
        calling(keys, here.address, ours) as stub,
    ):
        await stub.Admit(pb.AdmitRequest())
        write_certificate(tmp_path / "server", new)
        await stub.Admit(pb.AdmitRequest())
        async with calling(keys, here.address, ours) as outdated:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await outdated.Admit(pb.AdmitRequest())

    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_a_client_connects_again_with_its_renewed_certificate(
    keys: Keys, tmp_path: Path
) -> None:
    """The server comes back with another authority, which believes nothing from before."""
    old, new = trustme.CA(), trustme.CA()
    theirs = write_certificate(tmp_path / "server", old)
    ours = write_certificate(tmp_path / "client", old)
    async with AsyncExitStack() as stack:
        async with serving(keys, Tricky(), **theirs.settings()) as here:
            stub = await stack.enter_async_context(calling(keys, here.address, ours))
            await stub.Admit(pb.AdmitRequest())
        write_certificate(tmp_path / "server", new)
        write_certificate(tmp_path / "client", new)
        port = int(here.address.rpartition(":")[2])
        async with serving(keys, Tricky(), port=port, **theirs.settings()):
            await stub.Admit(pb.AdmitRequest(), wait_for_ready=True, timeout=60)


async def test_calls_under_way_outlive_a_renewal(keys: Keys, tmp_path: Path) -> None:
    authority, handler = trustme.CA(), Tricky()
    files = write_certificate(tmp_path / "tls", authority)
    async with (
        serving(keys, handler, **files.settings()) as here,
        calling(keys, here.address, files) as stub,
    ):
        waiting = asyncio.ensure_future(_status(stub))
        await handler.waiting.wait()
        write_certificate(tmp_path / "tls", authority)
        for _ in range(3):  # time enough for a channel to be closed
            await stub.Admit(pb.AdmitRequest())
        assert not waiting.done()
        assert not handler.cancelled.is_set()
        waiting.cancel()
        await handler.cancelled.wait()


async def test_a_client_goes_on_with_what_it_has_when_a_renewal_cannot_be_used(
    keys: Keys, tmp_path: Path
) -> None:
    files = write_certificate(tmp_path / "tls", trustme.CA())
    async with (
        serving(keys, Tricky(), **files.settings()) as here,
        calling(keys, here.address, files) as stub,
    ):
        files.cert_file.write_text("half a certif")
        await stub.Admit(pb.AdmitRequest())
        files.key_file.unlink()
        await stub.Admit(pb.AdmitRequest())


async def _status(stub: QuotaServiceStub) -> pb.GetQuotaStatusResponse:
    return await stub.GetQuotaStatus(pb.GetQuotaStatusRequest(), timeout=60)


async def test_a_renewal_that_cannot_be_used_changes_nothing(keys: Keys, tmp_path: Path) -> None:
    authority = trustme.CA()
    files = write_certificate(tmp_path / "tls", authority)
    async with serving(keys, Tricky(), **files.settings(client_auth="none")) as here:
        before = await shown_by(here.address)
        files.cert_file.write_text("half a certif")
        during = await shown_by(here.address)
        write_certificate(tmp_path / "tls", authority)
        after = await shown_by(here.address)

    assert before == during != after


def _without_key(files: Files) -> dict[str, str]:
    return {**files.settings(), "tls_key_file": ""}


def _without_certificate(files: Files) -> dict[str, str]:
    return {**files.settings(), "tls_cert_file": ""}


def _without_authority(files: Files) -> dict[str, str]:
    return {**files.settings(), "tls_ca_file": ""}


def _authority_alone(files: Files) -> dict[str, str]:
    return {"tls_ca_file": str(files.ca_file)}


def _nothing_to_require(_: Files) -> dict[str, str]:
    return {"tls_client_auth": "require"}


def _unreadable(files: Files) -> dict[str, str]:
    return {**files.settings(), "tls_cert_file": str(files.cert_file.parent / "nowhere.pem")}


def _garbage(files: Files) -> dict[str, str]:
    files.cert_file.write_text("no certificate")
    return files.settings()


def _garbage_authority(files: Files) -> dict[str, str]:
    files.ca_file.write_text("")
    return files.settings()


def _garbage_key(files: Files) -> dict[str, str]:
    files.key_file.write_text("no key")
    return files.settings()


def _key_of_another(files: Files) -> dict[str, str]:
    other = trustme.CA().issue_cert("127.0.0.1")
    files.key_file.write_bytes(other.private_key_pem.bytes())
    return files.settings()


def _expired(files: Files) -> dict[str, str]:
    ended = write_certificate(files.ca_file.parent, trustme.CA(), valid=-timedelta(minutes=1))
    return ended.settings()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_without_key, "GLOSSA_TLS_CERT_FILE is set but GLOSSA_TLS_KEY_FILE is not"),
        (_without_certificate, "GLOSSA_TLS_KEY_FILE is set but GLOSSA_TLS_CERT_FILE is not"),
        (_without_authority, "needs GLOSSA_TLS_CA_FILE"),
        (_authority_alone, "GLOSSA_TLS_CA_FILE is set without GLOSSA_TLS_CERT_FILE"),
        (_nothing_to_require, "GLOSSA_TLS_CLIENT_AUTH=require needs GLOSSA_TLS_CERT_FILE"),
        (_unreadable, "nowhere.pem cannot be read: No such file"),
        (_garbage, "holds no certificate in PEM"),
        (_garbage_authority, "ca.pem holds no certificate in PEM"),
        (_garbage_key, "holds no private key in PEM"),
        (_key_of_another, "does not belong to the certificate"),
        (_expired, "expired on 20"),
    ],
)
async def test_settings_that_make_no_sense_stop_the_start(
    keys: Keys, tmp_path: Path, spoil: Callable[[Files], dict[str, Any]], words: str
) -> None:
    settings = spoil(write_certificate(tmp_path / "tls", trustme.CA()))

    with pytest.raises((TlsMisconfigured, CannotStart)) as caught:
        async with serving(keys, Tricky(), **settings):
            pass

    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "glossa.example"])
async def test_plain_text_does_not_leave_the_machine_unless_told(keys: Keys, host: str) -> None:
    with pytest.raises(CannotStart, match="GLOSSA_ALLOW_PLAINTEXT"):
        async with serving(keys, Tricky(), host=host):
            pass


async def test_plain_text_leaves_the_machine_behind_a_mesh(keys: Keys) -> None:
    async with serving(keys, Tricky(), host="0.0.0.0", allow_plaintext=True) as here:
        assert here.address.startswith("0.0.0.0:")


async def test_with_certificates_any_host_will_do(keys: Keys, tmp_path: Path) -> None:
    files = write_certificate(tmp_path / "tls", trustme.CA())
    async with (
        serving(keys, Tricky(), host="0.0.0.0", **files.settings()) as here,
        calling(keys, here.address.replace("0.0.0.0", "127.0.0.1"), files) as stub,
    ):
        await stub.Admit(pb.AdmitRequest())
