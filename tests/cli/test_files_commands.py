"""`glossa files`, `gc` and `backfill` against a real suite: what people see, what machines read."""

import io
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
from glossa.registry.v1 import registry_pb2 as pb
from rich.console import Console

from services.cli.files import show_backfilled, show_bytes, show_collected
from services.cli.sample_pdf import lecture_pdf
from services.local.bootstrap import service_url
from services.local.supervisor import DATABASE_NAME
from tests.cli.test_commands import glossa, json_lines, lecture, module_folder
from tests.local.up import Up, started

__all__ = ["lecture", "module_folder"]  # fixtures


@pytest.fixture(scope="module")
async def up(module_folder: Path) -> AsyncIterator[Up]:
    async with started(module_folder) as up:
        yield up


@pytest.fixture
def written() -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, width=96), text


def test_files_of_a_user_are_listed(up: Up, lecture: Path) -> None:
    assert glossa(up, "files", "--user", "flo").stdout.strip() == "flo has no files"
    [uploaded] = json_lines(glossa(up, "upload", str(lecture), "--user", "flo", "--json"))

    shown = glossa(up, "files", "--user", "flo")
    [listed] = json_lines(glossa(up, "files", "--user", "flo", "--json"))

    assert uploaded["file"]["file_id"] in shown.stdout
    assert "lecture.pdf" in shown.stdout
    assert listed["file_id"] == uploaded["file"]["file_id"]
    refused = glossa(up, "files", "--user", "flo", "--limit", "0")
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "--limit" in refused.stderr


def test_garbage_is_collected_from_the_command_line(up: Up) -> None:
    [nothing] = json_lines(glossa(up, "gc", "--grace", "0s", "--json"))
    assert (nothing["type"], nothing["documents"]) == ("gc", "0")
    assert glossa(up, "gc", "--dry-run").stdout.startswith("would remove 0 documents (0 B)")
    refused = glossa(up, "gc", "--grace", "soon")
    assert refused.returncode == 1
    assert "'soon' is no lifetime" in refused.stderr


async def test_files_without_a_hash_are_hashed_from_the_command_line(up: Up) -> None:
    assert "every file has its hash" in glossa(up, "backfill").stdout
    source = up.state.objects / "old" / "lecture.pdf"
    source.parent.mkdir()
    source.write_bytes(lecture_pdf("backfilled"))
    [noted] = up.state.postgres.rglob("postmaster.pid")
    postmaster = noted.read_text().split("\n")
    url = f"postgresql://x@127.0.0.1:{postmaster[3]}/{DATABASE_NAME}"
    connection = await asyncpg.connect(
        service_url(url, "registry", up.state.passwords()["registry"])
    )
    await connection.execute(
        "INSERT INTO registry.files (file_id, user_id, filename, source_key)"
        " VALUES (gen_random_uuid(), 'old', 'lecture.pdf', 'old/lecture.pdf')"
    )
    await connection.close()

    told = json_lines(glossa(up, "backfill", "--json"))

    assert [(one["total"], one["hashed"]) for one in told] == [("1", "0"), ("1", "1")]
    [file] = json_lines(glossa(up, "files", "--user", "old", "--json"))
    assert len(file["pdf_hash"]) == 64


def test_what_was_collected_is_told_in_words(written: tuple[Console, io.StringIO]) -> None:
    console, text = written
    answer = pb.CollectGarbageResponse(
        documents=1, freed_bytes=2_500_000, orphan_objects=2, failed=1
    )
    show_collected(console, answer, dry_run=False)
    assert text.getvalue().split("\n")[:2] == [
        "removed 1 document (2.5 MB) and 2 orphan objects",
        "1 document could not be removed now; the next run tries again",
    ]


def test_what_was_backfilled_is_told_in_words(written: tuple[Console, io.StringIO]) -> None:
    console, text = written
    show_backfilled(console, pb.BackfillContentHashesResponse(total=3, hashed=1, failed=2))
    assert "1 file hashed" in text.getvalue()
    assert "2 files could not be hashed" in text.getvalue()


@pytest.mark.parametrize(
    ("number", "shown"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (3_000_000_000, "3.0 GB")]
)
def test_sizes_are_told_in_round_numbers(number: int, shown: str) -> None:
    assert show_bytes(number) == shown
