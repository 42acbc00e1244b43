"""Certificates are replaced while they are read, file by file, or by what cannot be used."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from glossa.quota.v1 import quota_pb2 as pb

from services.runtime import tls as runtime_tls
from services.runtime.auth import TokenFile
from services.runtime.channel import open_channel
from services.runtime.tls import Mesh, Tls, TlsMisconfigured, tls_in
from tests.runtime.test_server import Tricky, serving
from tests.security.certificates import Files, write_certificate
from tests.security.test_tls import calling
from tests.suite import Keys


class Watched(type(Path())):  # type: ignore[misc]  # which class it is depends on the machine
    """A file that tells when it has been read."""

    on_read: Callable[[], None] = staticmethod(lambda: None)

    def read_bytes(self) -> bytes:
        content: bytes = super().read_bytes()
        self.on_read()
        return content


def watched_tls(files: Files, key_file: Path) -> Tls:
    pair = (files.cert_file, key_file)
    return Tls(ca_file=files.ca_file, pair=pair, clients_need_certificates=True)


def test_a_renewal_while_the_files_are_read_is_seen_the_next_time(tmp_path: Path) -> None:
    authority = trustme.CA()
    files = write_certificate(tmp_path / "tls", authority)
    key_file = Watched(files.key_file)

    def renew_once() -> None:
        key_file.on_read = lambda: None
        write_certificate(tmp_path / "tls", authority)

    key_file.on_read = renew_once
    tls = watched_tls(files, key_file)

    assert tls.current().cert == files.cert_file.read_bytes()


def test_a_renewal_that_cannot_be_used_is_read_once_and_again_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = write_certificate(tmp_path / "tls", trustme.CA())
    reads: list[int] = []
    key_file = Watched(files.key_file)
    key_file.on_read = lambda: reads.append(1)
    tls = watched_tls(files, key_file)
    before = tls.current()
    reads.clear()
    files.cert_file.write_text("half a certif")

    with ThreadPoolExecutor(8) as threads:  # as handshakes ask
        seen = list(threads.map(lambda _: tls.current(), range(100)))

    assert all(pems is before for pems in seen)
    assert len(reads) == 1
    monkeypatch.setattr(runtime_tls, "RETRY_SECONDS", 0.0)
    files.cert_file.write_text("half a certificate")
    for _ in range(3):
        tls.current()
    assert len(reads) == 4


def test_a_file_that_is_gone_is_asked_for_until_it_is_back(tmp_path: Path) -> None:
    authority = trustme.CA()
    files = write_certificate(tmp_path / "tls", authority)
    tls = watched_tls(files, files.key_file)
    files.key_file.unlink()
    tls.current()
    write_certificate(tmp_path / "tls", authority)

    assert tls.current().key == files.key_file.read_bytes()


def test_the_same_certificates_in_new_files_are_no_renewal(tmp_path: Path) -> None:
    files = write_certificate(tmp_path / "tls", trustme.CA())
    tls = watched_tls(files, files.key_file)
    before = tls.current()
    for path in (files.ca_file, files.cert_file, files.key_file):
        copy = path.with_suffix(".copy")
        copy.write_bytes(path.read_bytes())
        copy.replace(path)
        assert tls.current() is before


async def test_calls_under_way_outlive_many_renewals_and_end_with_the_channel(
    keys: Keys, tmp_path: Path
) -> None:
    authority, handler = trustme.CA(), Tricky()
    theirs = write_certificate(tmp_path / "server", authority)
    ours = write_certificate(tmp_path / "client", authority)
    async with serving(keys, handler, **theirs.settings()) as here:
        async with calling(keys, here.address, ours) as stub:
            call: Any = stub.GetQuotaStatus(pb.GetQuotaStatusRequest(), timeout=60)
            await handler.waiting.wait()
            for _ in range(4):
                write_certificate(tmp_path / "client", authority)
                await stub.Admit(pb.AdmitRequest())
            assert not call.done()
            assert not handler.cancelled.is_set()
        assert await call.code() == grpc.StatusCode.CANCELLED
        await handler.cancelled.wait()


@pytest.mark.parametrize(
    "address", ["10.1.2.3:1", "glossa.example:1", "dns:///glossa.example:1", "[2001:db8::1]:1"]
)
async def test_a_token_is_not_sent_to_other_machines_in_plain_text(address: str) -> None:
    token = TokenFile(Path("unused"))
    with pytest.raises(TlsMisconfigured, match="or GLOSSA_ALLOW_PLAINTEXT=true where") as refused:
        open_channel(address, token)
    assert address in str(refused.value)
    assert "\n" not in str(refused.value)
    await open_channel(address, token, tls=Mesh()).close()


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "localhost:1", "[::1]:1", "unix:/tmp/socket", "dns:///localhost:1"]
)
async def test_plain_text_is_good_enough_on_one_machine(address: str) -> None:
    await open_channel(address, TokenFile(Path("unused"))).close()


def test_commands_read_the_permission_as_services_do() -> None:
    assert isinstance(tls_in({"GLOSSA_ALLOW_PLAINTEXT": "1"}), Mesh)
    assert tls_in({"GLOSSA_ALLOW_PLAINTEXT": "false"}) is None
    assert tls_in({}) is None
    with pytest.raises(TlsMisconfigured, match="must be true or false, not 'maybe'"):
        tls_in({"GLOSSA_ALLOW_PLAINTEXT": "maybe"})
