"""TLS between processes: what we show, whom we believe, and renewal without a restart."""

import ipaddress
import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import grpc
import structlog
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)
from pydantic import TypeAdapter, ValidationError

from services.runtime.settings import ServiceSettings

log = structlog.get_logger()

CERT_FILE, KEY_FILE, CA_FILE, CLIENT_AUTH = VARIABLES = (
    "GLOSSA_TLS_CERT_FILE",
    "GLOSSA_TLS_KEY_FILE",
    "GLOSSA_TLS_CA_FILE",
    "GLOSSA_TLS_CLIENT_AUTH",
)
ALLOW_PLAINTEXT = "GLOSSA_ALLOW_PLAINTEXT"
_REQUIRE = "require"
# When a renewal that could not be used is looked at again though its files are the same: a
# certificate may not have been valid yet.
RETRY_SECONDS = 60.0

# What a file looks like from outside; None when there is none.
_Marks = tuple[tuple[int, ...] | None, ...]


class TlsMisconfigured(Exception):
    """The settings for TLS make no sense; the message is for the person who made them."""


@dataclass(frozen=True, kw_only=True)
class Pems:
    """What stood in the files."""

    ca: bytes
    cert: bytes | None
    key: bytes | None


class Mesh:
    """Something else encrypts, as a service mesh does: plain text may leave the machine."""


class Tls:
    """Certificates in files that are read again when they change, as renewals replace them."""

    def __init__(
        self, *, ca_file: Path, pair: tuple[Path, Path] | None, clients_need_certificates: bool
    ) -> None:
        self._ca_file = ca_file
        self._pair = pair
        self._clients_need_certificates = clients_need_certificates
        # Handshakes ask from threads of gRPC's own.
        self._lock = threading.Lock()
        self._retry_at = math.inf
        # Before reading: what is replaced while we read is then read again.
        self._marks = self._look()
        self._pems = self._read()

    @property
    def can_serve(self) -> bool:
        return self._pair is not None

    def server_credentials(self) -> grpc.ServerCredentials:
        """For listening; gRPC asks with every handshake whether there is something newer."""
        served = self._pems

        def newer() -> grpc.ServerCertificateConfiguration | None:
            nonlocal served
            pems = self.current()
            if pems is served:
                return None
            served = pems
            return _server_configuration(pems)

        return grpc.dynamic_ssl_server_credentials(
            _server_configuration(served),
            newer,  # type: ignore[arg-type]  # the stubs do not know that None means "no change"
            require_client_authentication=self._clients_need_certificates,
        )

    def current(self) -> Pems:
        """The newest that can be used; one that cannot is told of, and the last one kept."""
        with self._lock:
            marks = self._look()
            if marks != self._marks or time.monotonic() >= self._retry_at:
                self._marks = marks
                self._renew()
            return self._pems

    def _renew(self) -> None:
        try:
            pems = self._read()
        except TlsMisconfigured as error:
            self._retry_at = time.monotonic() + RETRY_SECONDS
            log.warning("certificates_not_renewed", problem=str(error))
            return
        self._retry_at = math.inf
        # A file that was only touched is no reason to connect again.
        if pems != self._pems:
            self._pems = pems
            log.info("certificates_renewed")

    def _files(self) -> tuple[Path, ...]:
        return (self._ca_file, *(self._pair or ()))

    def _look(self) -> _Marks:
        return tuple(_mark(path) for path in self._files())

    def _read(self) -> Pems:
        ca = _read_file(CA_FILE, self._ca_file)
        _certificates(CA_FILE, self._ca_file, ca)
        cert = key = None
        if self._pair is not None:
            cert, key = _read_pair(*self._pair)
        return Pems(ca=ca, cert=cert, key=key)


def tls_from(*, cert_file: str, key_file: str, ca_file: str, client_auth: str) -> Tls | None:
    """TLS as the settings want it; nothing when none is set."""
    if client_auth not in {"none", _REQUIRE}:
        raise TlsMisconfigured(f"{CLIENT_AUTH} must be none or require, not {client_auth!r}")
    if bool(cert_file) != bool(key_file):
        here, there = (CERT_FILE, KEY_FILE) if cert_file else (KEY_FILE, CERT_FILE)
        raise TlsMisconfigured(f"{here} is set but {there} is not; set both or neither")
    if client_auth == _REQUIRE and not cert_file:
        raise TlsMisconfigured(f"{CLIENT_AUTH}=require needs {CERT_FILE}, {KEY_FILE} and {CA_FILE}")
    if not ca_file:
        if cert_file:
            raise TlsMisconfigured(f"{CERT_FILE} needs {CA_FILE}, which peers are checked with")
        return None
    return Tls(
        ca_file=Path(ca_file),
        pair=(Path(cert_file), Path(key_file)) if cert_file else None,
        clients_need_certificates=client_auth == _REQUIRE,
    )


def refuse_plain_text(where: str, host: str) -> None:
    """Without TLS and without a mesh, nothing but this machine is spoken to."""
    if not _is_loopback(host):
        raise TlsMisconfigured(
            f"{where} is not this machine alone: set {CERT_FILE}, {KEY_FILE} and {CA_FILE},"
            f" or {ALLOW_PLAINTEXT}=true where a mesh encrypts"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def tls_of(config: ServiceSettings) -> Tls | Mesh | None:
    """TLS of a service, which speaks and calls with the same certificate."""
    tls = tls_from(
        cert_file=config.tls_cert_file,
        key_file=config.tls_key_file,
        ca_file=config.tls_ca_file,
        client_auth=config.tls_client_auth,
    )
    return tls or (Mesh() if config.allow_plaintext else None)


def tls_in(environment: Mapping[str, str]) -> Tls | Mesh | None:
    """TLS for who is no service, but calls them: the command line, the supervisor's probes."""
    cert_file, key_file, ca_file, client_auth = (environment.get(name, "") for name in VARIABLES)
    tls = tls_from(
        cert_file=cert_file,
        key_file=key_file,
        ca_file=ca_file,
        client_auth=client_auth or "none",
    )
    return tls or (Mesh() if _is_true(environment.get(ALLOW_PLAINTEXT, "")) else None)


def _is_true(written: str) -> bool:
    """Read as the services read their settings."""
    if not written:
        return False
    try:
        return TypeAdapter(bool).validate_python(written)
    except ValidationError:
        raise TlsMisconfigured(
            f"{ALLOW_PLAINTEXT} must be true or false, not {written!r}"
        ) from None


def _server_configuration(pems: Pems) -> grpc.ServerCertificateConfiguration:
    assert pems.key is not None, "only who has a certificate serves"
    assert pems.cert is not None
    return grpc.ssl_server_certificate_configuration([(pems.key, pems.cert)], pems.ca)


def _read_pair(cert_file: Path, key_file: Path) -> tuple[bytes, bytes]:
    cert, key = _read_file(CERT_FILE, cert_file), _read_file(KEY_FILE, key_file)
    own = _certificates(CERT_FILE, cert_file, cert)[0]
    if _public(own) != _public_of_key(key_file, key):
        raise TlsMisconfigured(
            f"{KEY_FILE} {key_file} does not belong to the certificate in {cert_file}"
        )
    now = datetime.now(UTC)
    if now >= own.not_valid_after_utc:
        raise TlsMisconfigured(
            f"{CERT_FILE} {cert_file} expired on {own.not_valid_after_utc:%Y-%m-%d}; renew it"
        )
    if now < own.not_valid_before_utc:
        raise TlsMisconfigured(
            f"{CERT_FILE} {cert_file} is not valid before {own.not_valid_before_utc:%Y-%m-%d %H:%M}"
            " UTC; is this machine's clock right?"
        )
    return cert, key


def _mark(path: Path) -> tuple[int, ...] | None:
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_mtime_ns, state.st_ino, state.st_size


def _read_file(variable: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TlsMisconfigured(f"{variable} {path} cannot be read: {error.strerror}") from None


def _certificates(variable: str, path: Path, pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise TlsMisconfigured(f"{variable} {path} holds no certificate in PEM") from None


def _public(certificate: x509.Certificate) -> bytes:
    key = certificate.public_key()
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _public_of_key(path: Path, pem: bytes) -> bytes:
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise TlsMisconfigured(
            f"{KEY_FILE} {path} holds no private key in PEM, without a password"
        ) from None
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
