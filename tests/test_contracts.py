"""The import contracts of pyproject.toml really catch what they forbid."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("cache/domain.py", "import services.quota.domain", "Services know each other only"),
        ("runtime/errors.py", "import services.cache.domain", "The runtime knows no service"),
        ("quota/domain.py", "import asyncpg", "Rules do no I/O"),
        ("cache/explain.py", "import glossa.cache.v1.cache_pb2", "Protobuf stays at the edge"),
        ("cache/handler.py", "import asyncpg", "SQL is spoken in the stores"),
        ("worker/attempt.py", "import openai", "One module each for the outside world"),
        ("cli/demo.py", "import pymupdf", "The command line is a client"),
        ("worker/handler.py", "import starlette", "HTTP is spoken on the admin pages"),
        (
            "worker/admin/session.py",
            "import services.worker.admin.doors",
            "Admin pages: imports point",
        ),
        ("cli/doctor.py", "import services.registry.objects", "The command line is a client"),
        ("doctor/examine.py", "import services.cache.job_store", "The doctor looks at"),
        ("quota/store.py", "import services.doctor.verdict", "Services do not know the machine"),
        ("doctor/bounds.py", "import services.doctor.visit", "Doctor: imports point"),
        (
            "cache/job_store.py",
            "import services.cache.explain",
            "Cache: imports point from the edge",
        ),
    ],
)
def test_a_forbidden_import_is_caught(
    module: str, line: str, contract: str, tmp_path: Path
) -> None:
    for part in ("services", "gen"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(PROJECT / part, tmp_path / part, ignore=ignored)
    shutil.copy(PROJECT / "pyproject.toml", tmp_path)
    target = tmp_path / "services" / module
    target.write_text(f"{target.read_text()}\n{line}\n")

    path = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(tmp_path / 'gen')!r}]; "
    run = "from importlinter.cli import lint_imports_command; lint_imports_command(['--no-cache'])"
    result = subprocess.run(
        [sys.executable, "-c", path + run],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    broken = [row for row in result.stdout.splitlines() if " BROKEN" in row]
    assert result.returncode == 1, result.stdout
    assert any(row.startswith(contract) for row in broken), broken
