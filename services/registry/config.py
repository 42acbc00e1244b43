"""Settings of the Registry."""

from pathlib import Path

from pydantic import Field, SecretStr, field_validator

from services.registry.callbacks import CallbackRules
from services.registry.sandbox import SandboxLimits
from services.runtime.settings import ServiceSettings


class Config(ServiceSettings):
    """Where bytes are kept and what a PDF may cost; `GLOSSA_STORE_URL` and so on."""

    # A folder, file://, s3:// or gs://.
    store_url: str = ".glossa/objects"
    # Uploads on their way; local and large enough for those of one moment.
    spool_dir: Path = Path(".glossa/spool")
    max_upload_bytes: int = Field(default=300_000_000, ge=1)
    upload_idle_seconds: float = Field(default=30.0, gt=0)
    pdf_children: int = Field(default=2, ge=1, le=64)
    pdf_memory_bytes: int = Field(default=1 << 30, ge=1 << 28)
    pdf_cpu_seconds: int = Field(default=10, ge=1)
    pdf_wall_seconds: float = Field(default=30.0, gt=0)
    pdf_max_pages: int = Field(default=10_000, ge=1)

    # Look at all pages of a document after its upload, rather than at each on first use.
    detect_at_upload: bool = True
    # How long a document nobody refers to is kept, and how often such are looked for.
    garbage_grace_seconds: float = Field(default=24 * 3600.0, ge=0)
    garbage_every_seconds: float = Field(default=600.0, gt=0)
    # Where the Cache is told that a document is gone; without it, it is told once there is one.
    cache_address: str = ""
    # What callbacks are signed with, at least 32 characters; without it there are none.
    callback_secret: SecretStr = SecretStr("")
    callback_allow_private: bool = False

    @field_validator("callback_secret")
    @classmethod
    def _long_enough(cls, secret: SecretStr) -> SecretStr:
        if 0 < len(secret.get_secret_value()) < 32:
            raise ValueError("must have at least 32 characters")
        return secret

    def callback_rules(self) -> CallbackRules:
        return CallbackRules(
            secret=self.callback_secret.get_secret_value().encode(),
            allow_private=self.callback_allow_private,
        )

    def sandbox_limits(self) -> SandboxLimits:
        return SandboxLimits(
            children=self.pdf_children,
            memory_bytes=self.pdf_memory_bytes,
            cpu_seconds=self.pdf_cpu_seconds,
            wall_seconds=self.pdf_wall_seconds,
            pages=self.pdf_max_pages,
        )
