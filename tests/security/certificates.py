"""Authorities and certificates made for a test, as files and as what a client shows."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import trustme

NAMES = ("127.0.0.1", "localhost")


@dataclass(frozen=True, kw_only=True)
class Files:
    """Where a certificate, its key and the authority are kept."""

    cert_file: Path
    key_file: Path
    ca_file: Path

    def settings(self, *, client_auth: str = "require") -> dict[str, str]:
        return {
            "tls_cert_file": str(self.cert_file),
            "tls_key_file": str(self.key_file),
            "tls_ca_file": str(self.ca_file),
            "tls_client_auth": client_auth,
        }

    def environment(self, *, client_auth: str = "require") -> dict[str, str]:
        settings = self.settings(client_auth=client_auth)
        return {f"GLOSSA_{name.upper()}": value for name, value in settings.items()}


def write_certificate(
    folder: Path, authority: trustme.CA, *, valid: timedelta = timedelta(hours=1)
) -> Files:
    """A new certificate of the authority, in the place of the one before; `valid` from now on."""
    folder.mkdir(exist_ok=True)
    files = Files(
        cert_file=folder / "cert.pem", key_file=folder / "key.pem", ca_file=folder / "ca.pem"
    )
    now = datetime.now(UTC)
    # Of one that has expired, the beginning lies before its end.
    begins = min(now, now + valid) - timedelta(hours=1)
    leaf = authority.issue_cert(*NAMES, not_before=begins, not_after=now + valid)
    for path, pem in (
        (files.ca_file, authority.cert_pem),
        (files.key_file, leaf.private_key_pem),
        (files.cert_file, leaf.cert_chain_pems[0]),
    ):
        fresh = path.with_suffix(".new")
        fresh.write_bytes(pem.bytes())
        fresh.replace(path)
    return files


def client_credentials(
    authority: trustme.CA, *, shown_by: trustme.CA | None = None
) -> grpc.ChannelCredentials:
    """Of a client that believes an authority, and shows a certificate if there is who made it."""
    if shown_by is None:
        return grpc.ssl_channel_credentials(authority.cert_pem.bytes())
    leaf = shown_by.issue_cert("gateway.example")
    return grpc.ssl_channel_credentials(
        authority.cert_pem.bytes(), leaf.private_key_pem.bytes(), leaf.cert_chain_pems[0].bytes()
    )
