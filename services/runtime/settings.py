"""Settings every service reads from the environment, and those that are part of the cache key."""

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

# Bump whenever prompts, chunking or the sticker schema change: it is part of the cache key.
PROMPT_VERSION = "2026-11-18.4"
# The same for turning documents into Markdown; never one that PROMPT_VERSION has had.
CONVERSION_VERSION = "markdown-1"
# How many pages before and after a page its reader is shown: part of what makes two pages the same.
CONTEXT_NEIGHBOURS = 1
OFFLINE_MODEL = "offline-extractive"
DEFAULT_OPENAI_MODEL = "gpt-4.1-mini"


class ExplanationSettings(BaseSettings):
    """Which model explains. The Cache keys by it and the Worker runs it, so both read it here."""

    model_config = SettingsConfigDict(env_prefix="GLOSSA_", extra="ignore", populate_by_name=True)

    model: str = ""
    openai_api_key: SecretStr = Field(default=SecretStr(""), validation_alias="OPENAI_API_KEY")
    openai_base_url: str = Field(default="", validation_alias="OPENAI_BASE_URL")

    @property
    def uses_openai(self) -> bool:
        return bool(self.openai_api_key.get_secret_value())

    @property
    def model_name(self) -> str:
        if not self.uses_openai:
            return OFFLINE_MODEL
        return self.model or DEFAULT_OPENAI_MODEL

    @property
    def prompt_version(self) -> str:
        return PROMPT_VERSION


class ServiceSettings(BaseSettings):
    """What every service needs to serve; `GLOSSA_PORT`, `GLOSSA_DATABASE_URL` and so on."""

    model_config = SettingsConfigDict(env_prefix="GLOSSA_", extra="ignore", populate_by_name=True)

    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)
    metrics_port: int = Field(default=0, ge=0, le=65535)
    # Our certificate and key, and the authority that peers are checked with: PEM, all or none.
    tls_cert_file: str = ""
    tls_key_file: str = ""
    tls_ca_file: str = ""
    # "require": whoever calls must show a certificate of that authority too.
    tls_client_auth: str = "none"
    # Where something else encrypts, as a service mesh does; else only loopback may be plain.
    allow_plaintext: bool = False
    database_url: SecretStr
    database_pool_size: int = Field(default=10, ge=1, le=200)
    # Public key that tokens are checked with.
    verify_key_file: Path
    # This service's own token for calling others; re-read when it changes.
    token_file: Path | None = None
    reflection: bool = True
    max_message_bytes: int = Field(default=4 * 1024 * 1024, ge=1024)
    max_concurrent_rpcs: int = Field(default=2000, ge=1)
    drain_seconds: float = Field(default=10.0, ge=0)
    # Unset: as OpenTelemetry's own variables say.
    tracing: bool | None = None
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
