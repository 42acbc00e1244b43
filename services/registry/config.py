"""Settings of the Registry."""

from pathlib import Path

from pydantic import Field

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

    def sandbox_limits(self) -> SandboxLimits:
        return SandboxLimits(
            children=self.pdf_children,
            memory_bytes=self.pdf_memory_bytes,
            cpu_seconds=self.pdf_cpu_seconds,
            wall_seconds=self.pdf_wall_seconds,
            pages=self.pdf_max_pages,
        )
