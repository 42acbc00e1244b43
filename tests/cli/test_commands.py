"""The commands against a real suite: what people see, what machines read."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pymupdf
import pytest

from services.cli.client import connected
from services.cli.errors import CommandFailed
from services.cli.sample_pdf import lecture_pdf
from services.local.layout import suite_addresses
from tests.local.up import Up, environment, started

NOTHING = "there was nothing to explain on this page"


@pytest.fixture(scope="module")
def module_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="glossa-test-") as name:
        Path(name).chmod(0o711)  # as root, the database runs as somebody else
        yield Path(name)


@pytest.fixture(scope="module")
async def up(module_folder: Path) -> AsyncIterator[Up]:
    async with started(module_folder) as up:
        yield up


@pytest.fixture
def lecture(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    path = tmp_path / "lecture.pdf"
    path.write_bytes(lecture_pdf(request.node.name))
    return path


def glossa(up: Up, *arguments: str) -> subprocess.CompletedProcess[str]:
    variables = environment(up.state.root.parent, up.ports)
    del variables["GLOSSA_PORT_BASE"]  # the state folder tells
    return subprocess.run(
        [sys.executable, "-m", "services.cli", *arguments],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )


def blank_pdf() -> bytes:
    document: Any = pymupdf.Document()  # type: ignore[no-untyped-call]
    document.new_page()
    return bytes(document.tobytes())


def json_lines(result: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_the_suite_is_found_through_its_state_folder(up: Up) -> None:
    found = suite_addresses({"GLOSSA_STATE_DIR": str(up.state.root)})

    assert found == up.ports.addresses()


def test_a_file_is_uploaded_once_however_often_it_is_sent(up: Up, lecture: Path) -> None:
    [first] = json_lines(glossa(up, "upload", str(lecture), "--user", "ann", "--json"))
    [second] = json_lines(glossa(up, "upload", str(lecture), "--user", "ann", "--json"))

    assert first["note"] == "UPLOAD_NOTE_CREATED"
    # Whether its pages have all been looked at by now is a question of time.
    assert second["note"] in {"UPLOAD_NOTE_DEDUPLICATED", "UPLOAD_NOTE_DUPLICATE_UPLOAD"}
    assert first["file"] == second["file"]
    assert first["document"]["total_pages"] == 3


def test_a_name_that_is_no_text_is_sent_as_near_as_it_gets(up: Up, lecture: Path) -> None:
    odd = lecture.rename(lecture.with_name(os.fsdecode(b"caf\xe9.pdf")))

    [uploaded] = json_lines(glossa(up, "upload", str(odd), "--user", "ann", "--json"))

    assert uploaded["file"]["filename"] == "caf?.pdf"


def test_explain_tells_machines_everything_in_order(up: Up, lecture: Path) -> None:
    lines = json_lines(glossa(up, "explain", str(lecture), "--user", "bea", "--json"))
    again = json_lines(glossa(up, "explain", str(lecture), "--user", "bob", "--json"))

    assert [line["type"] for line in lines[:2]] == ["upload", "explain"]
    assert lines[1]["outcome"] == "OUTCOME_GENERATED"
    assert {line["type"] for line in lines[2:]} == {"progress"}
    assert lines[-1]["status"] == "GENERATION_STATUS_READY"
    assert again[-1]["outcome"] == "OUTCOME_CACHED"
    assert again[-1]["model"] == "offline-extractive"
    assert again[-1]["stickers"] == lines[-1]["stickers"]


def test_explain_shows_people_stickers_and_the_receipt(up: Up, lecture: Path) -> None:
    [uploaded] = json_lines(glossa(up, "upload", str(lecture), "--user", "cat", "--json"))
    file_id, pdf_hash = uploaded["file"]["file_id"], uploaded["file"]["pdf_hash"]

    first = glossa(up, "explain", "--file-id", file_id, "--user", "cat", "--page", "2")
    second = glossa(up, "explain", "--hash", pdf_hash, "--user", "cat", "--page", "2")

    assert "✓ ready" in first.stdout
    assert "generated, 1 unit charged, 999 left" in first.stdout
    assert "cached, 1 unit charged, 998 left" in second.stdout
    assert "Load factor" in second.stdout
    assert re.search(r"^model      offline-extractive$", second.stdout, re.MULTILINE)
    assert re.search(r"^generation \S{36}$", second.stdout, re.MULTILINE)
    assert re.search(r"^request    \S{36}$", second.stdout, re.MULTILINE)


def test_a_page_with_nothing_on_it_is_said_to_be_so(up: Up, tmp_path: Path) -> None:
    blank = tmp_path / "blank.pdf"
    blank.write_bytes(blank_pdf())

    assert NOTHING in glossa(up, "explain", str(blank), "--user", "cat").stdout
    assert NOTHING in glossa(up, "explain", str(blank), "--user", "col").stdout


def test_a_user_that_is_none_is_told_by_the_option(up: Up, lecture: Path) -> None:
    for arguments in (["upload", str(lecture)], ["quota"], ["explain", "--hash", "0" * 64]):
        line = glossa(up, *arguments, "--user", "a b").stderr

        assert line.startswith("error: --user must be 1 to 128 letters"), arguments


def test_a_refusal_is_told_to_machines_as_one_object(up: Up) -> None:
    result = glossa(up, "explain", "--hash", "0" * 64, "--user", "gus", "--json")

    assert json.loads(result.stderr) == {
        "type": "error",
        "reason": "FILE_NOT_FOUND",
        "message": "no such file",
        "next": "upload it first: `glossa upload FILE --user ID`",
    }


def test_a_finished_generation_can_still_be_watched(up: Up, lecture: Path) -> None:
    lines = json_lines(glossa(up, "explain", str(lecture), "--user", "dan", "--json"))
    generation_id = lines[1]["generation_id"]

    watched = json_lines(glossa(up, "watch", generation_id, "--user", "dan", "--json"))

    assert watched[-1]["stickers"] == lines[-1]["stickers"]


def test_quota_counts_what_was_asked(up: Up, lecture: Path) -> None:
    glossa(up, "explain", str(lecture), "--user", "eve")

    [status] = json_lines(glossa(up, "quota", "--user", "eve", "--json"))
    shown = glossa(up, "quota", "--user", "eve").stdout

    assert status["remaining_units"] == "999"
    assert {tier["tier"]: tier["used"] for tier in status["tiers"]} == {
        "soft": 1,
        "hard": 1,
        "daily": 1,
    }
    assert "eve has 999 units left" in shown


def test_a_request_has_a_story(up: Up, lecture: Path) -> None:
    [*_, answer] = [
        line
        for line in json_lines(glossa(up, "explain", str(lecture), "--user", "noor", "--json"))
        if line["type"] == "explain"
    ]
    request_id = answer["request_id"]

    [story] = json_lines(glossa(up, "request", request_id, "--user", "noor", "--json"))
    shown = glossa(up, "request", request_id, "--user", "noor").stdout
    foreign = glossa(up, "request", request_id, "--user", "mallory")

    assert (story["state"], story["units"]) == ("REQUEST_STATE_SERVED", 1)
    assert "served, 1 unit, page 1 of" in shown
    assert "It has been served." in shown
    assert foreign.returncode == 1
    assert "REQUEST_NOT_FOUND" in foreign.stderr


def test_the_ledger_tells_what_was_charged(up: Up, lecture: Path) -> None:
    glossa(up, "explain", str(lecture), "--user", "lea")

    entries = json_lines(glossa(up, "ledger", "--user", "lea", "--json"))
    newest = json_lines(glossa(up, "ledger", "--user", "lea", "--json", "--limit", "1"))
    table = glossa(up, "ledger", "--user", "lea").stdout

    assert [(entry["type"], entry["units"]) for entry in entries] == [
        ("entry", "-1"),
        ("entry", "1000"),
    ]
    assert newest == entries[:1]
    assert "A page was explained for you." in table
    assert "+1000" in table
    assert glossa(up, "ledger", "--user", "lea", "--limit", "0").returncode == 1


def test_costs_are_told_of_one_user_and_of_everybody(up: Up, lecture: Path) -> None:
    glossa(up, "explain", str(lecture), "--user", "max")

    def operations(*whose: str) -> int:
        [report] = json_lines(glossa(up, "costs", *whose, "--json"))
        return int(report["total"]["operations"])

    while operations("--user", "max") < 1:
        pass  # the worker reports a moment after the page is ready
    assert operations() >= 1
    assert operations("--user", "max", "--days", "1") == 1
    assert "spent $0.00" in glossa(up, "costs", "--user", "max").stdout
    assert glossa(up, "costs", "--days", "0").returncode == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--page", "9"], "PAGE_OUT_OF_RANGE"),
        (["--locale", "fr"], "INVALID_ARGUMENT"),
    ],
)
def test_a_refusal_is_one_line_with_its_reason(
    up: Up, lecture: Path, arguments: list[str], words: str
) -> None:
    result = glossa(up, "explain", str(lecture), "--user", "fay", *arguments)

    assert result.returncode == 1
    [line] = result.stderr.strip().split("\n")
    assert line.startswith("error: ")
    assert f"({words})" in line


def test_a_document_nobody_gave_is_refused_with_the_next_step(up: Up) -> None:
    result = glossa(up, "explain", "--hash", "0" * 64, "--user", "gus")

    assert result.stderr.strip().endswith(
        "(FILE_NOT_FOUND); upload it first: `glossa upload FILE --user ID`"
    )


def test_what_is_no_pdf_is_refused(up: Up) -> None:
    result = glossa(up, "upload", __file__, "--user", "gus")

    assert (result.returncode, "(NOT_A_PDF)" in result.stderr) == (1, True)


def test_the_demo_uses_the_suite_that_runs(up: Up) -> None:
    shown = glossa(up, "demo").stdout

    assert "suite the one that is running" in shown
    assert_demo_is_right(shown)


def test_the_demo_brings_its_own_suite_when_none_runs(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "services.cli", "demo"],
        env=os.environ
        | {"GLOSSA_STATE_DIR": str(tmp_path / "none"), "TMPDIR": tempfile.gettempdir()},
        capture_output=True,
        text=True,
        check=True,
    )

    assert "started for this demo" in result.stdout
    assert_demo_is_right(result.stdout)
    assert not (tmp_path / "none").exists()


def assert_demo_is_right(shown: str) -> None:
    rows = {line.split()[0]: line.split()[1:4] for line in shown.splitlines() if line.strip()}
    assert rows["Ada"] == ["generated", "1", "999"]
    assert rows["Ben"] == ["cached", "1", "999"]
    assert "the same 5 stickers, at once" in shown
    assert "1 generation by offline-extractive for 2 people" in shown
    assert "1 stored document, 2 references to it" in shown


def test_the_command_on_the_screen_works_when_pasted(up: Up) -> None:
    _, _, tried = up.screen.partition("/buf curl")
    command = f"{Path(sys.executable).parent}/buf curl{tried}"
    glossa_path = Path(sys.executable).parent / "glossa"
    variables = environment(up.state.root.parent, up.ports)

    result = subprocess.run(
        ["/bin/sh", "-c", command],
        env=variables,
        cwd=glossa_path.parents[2],
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["remainingUnits"] == "1000"


async def test_a_file_that_breaks_off_while_it_is_read_is_told_so(up: Up) -> None:
    async def breaking_off() -> AsyncIterator[bytes]:
        yield b"%PDF-1.7"
        raise OSError(5, "Input/output error")

    async with connected(state=up.state, addresses=up.ports.addresses()) as client:
        with pytest.raises(
            CommandFailed, match=r"cannot read a\.pdf to its end: Input/output error"
        ):
            await client.upload("alice", "a.pdf", breaking_off())


def test_what_failed_is_listed_shown_and_redriven(up: Up) -> None:
    assert json_lines(glossa(up, "dead-letters", "list", "--json")) == []
    assert glossa(up, "dead-letters", "list").stdout == "nothing has failed\n"
    unknown = glossa(up, "dead-letters", "show", "0b7e2c1a-5d3f-4e6a-9c8b-7a6f5e4d3c2b")
    assert unknown.returncode == 1
    assert "DEAD_LETTER_NOT_FOUND" in unknown.stderr
    assert "glossa dead-letters list" in unknown.stderr
    everything = glossa(up, "dead-letters", "redrive", "--all", "--dry-run")
    assert everything.stdout == "nothing to redrive\n"
    nothing = glossa(up, "dead-letters", "redrive")
    assert nothing.returncode == 1
    assert "say which" in nothing.stderr


def test_metrics_are_a_table_for_people_and_json_for_machines(up: Up) -> None:
    assert "requests" in glossa(up, "metrics").stdout
    [summary] = json_lines(glossa(up, "metrics", "--day", "2026-11-18", "--json"))
    assert (summary["type"], summary["day"]) == ("metrics", "2026-11-18")
    bad = glossa(up, "metrics", "--day", "someday")
    assert bad.returncode == 1
    assert "--day must be a date like 2026-11-18" in bad.stderr


def test_convert_writes_a_document(up: Up, lecture: Path, tmp_path: Path) -> None:
    written = tmp_path / "lecture.md"

    first = glossa(up, "convert", str(lecture), "--user", "alice", "-o", str(written))
    second = glossa(up, "convert", str(lecture), "--user", "bob")

    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert "generated, 1 unit charged" in first.stdout
    markdown = written.read_text()
    assert markdown.startswith("<!-- page 1 -->")
    # A pipe gets the document and nothing else.
    assert second.stdout == markdown
    assert "cached" in second.stderr


def test_convert_says_that_it_cannot_write_before_it_asks(
    up: Up, lecture: Path, tmp_path: Path
) -> None:
    result = glossa(
        up, "convert", str(lecture), "--user", "carol", "-o", str(tmp_path / "no" / "x.md")
    )

    assert result.returncode != 0
    assert "is in a folder that does not exist" in result.stderr
    assert "1000" in glossa(up, "quota", "--user", "carol").stdout
