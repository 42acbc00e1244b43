"""TLS between processes: what we show, whom we believe, and renewal without a restart."""

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

from services.runtime.settings import ServiceSettings

log = structlog.get_logger()

CERT_FILE, KEY_FILE, CA_FILE, CLIENT_AUTH = VARIABLES = (
    "GLOSSA_TLS_CERT_FILE",
    "GLOSSA_TLS_KEY_FILE",
    "GLOSSA_TLS_CA_FILE",
    "GLOSSA_TLS_CLIENT_AUTH",
)
_REQUIRE = "require"


class TlsMisconfigured(Exception):
    """The settings for TLS make no sense; the message is for the person who made them."""


@dataclass(frozen=True, kw_only=True)
class Pems:
    """What stood in the files, and the marks to see that it changed."""

    ca: bytes
    cert: bytes | None
    key: bytes | None
    marks: tuple[tuple[int, ...], ...]


class Tls:
    """Certificates in files that are read again when they change, as renewals replace them."""

    def __init__(
        self, *, ca_file: Path, pair: tuple[Path, Path] | None, clients_need_certificates: bool
    ) -> None:
        self._ca_file = ca_file
        self._pair = pair
        self._clients_need_certificates = clients_need_certificates
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
        try:
            if self._marks() != self._pems.marks:
                self._pems = self._read()
                log.info("certificates_renewed")
        except (OSError, TlsMisconfigured) as error:
            log.warning("certificates_not_renewed", problem=str(error))
        return self._pems

    def _files(self) -> tuple[Path, ...]:
        return (self._ca_file, *(self._pair or ()))

    def _marks(self) -> tuple[tuple[int, ...], ...]:
        states = [path.stat() for path in self._files()]
        return tuple((state.st_mtime_ns, state.st_ino, state.st_size) for state in states)

    def _read(self) -> Pems:
        ca = _read_file(CA_FILE, self._ca_file)
        _certificates(CA_FILE, self._ca_file, ca)
        cert = key = None
        if self._pair is not None:
            cert, key = _read_pair(*self._pair)
        return Pems(ca=ca, cert=cert, key=key, marks=self._marks())


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


def tls_of(config: ServiceSettings) -> Tls | None:
    """TLS of a service, which speaks and calls with the same certificate."""
    return tls_from(
        cert_file=config.tls_cert_file,
        key_file=config.tls_key_file,
        ca_file=config.tls_ca_file,
        client_auth=config.tls_client_auth,
    )


def tls_in(environment: Mapping[str, str]) -> Tls | None:
    """TLS for who is no service, but calls them: the command line, the supervisor's probes."""
    cert_file, key_file, ca_file, client_auth = (environment.get(name, "") for name in VARIABLES)
    return tls_from(
        cert_file=cert_file,
        key_file=key_file,
        ca_file=ca_file,
        client_auth=client_auth or "none",
    )


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
