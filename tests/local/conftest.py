"""A folder the server's account can reach, and one throw-away cluster for this package."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from services.local.postgres import EmbeddedPostgres

UNSAFE_BUT_QUICK = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


@pytest.fixture
def folder() -> Iterator[Path]:
    # pytest's own folders are closed to other accounts, which would test the fallback every time.
    path = Path(tempfile.mkdtemp(prefix="glossa-test-"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
async def cluster() -> AsyncIterator[EmbeddedPostgres]:
    path = Path(tempfile.mkdtemp(prefix="glossa-test-"))
    async with EmbeddedPostgres(path, options=UNSAFE_BUT_QUICK) as postgres:
        yield postgres
    shutil.rmtree(path)
