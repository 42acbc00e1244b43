"""What people see fits their terminal and can be copied from it."""

import io
import json
import shlex
from datetime import UTC, datetime
from pathlib import Path

import pytest
from glossa.cache.v1 import cache_pb2
from glossa.quota.v1 import quota_pb2
from rich.console import Console

from services.cli.show import print_json, show_receipt, show_stickers
from services.cli.up import show_screen
from services.local.supervisor import RunningSuite, plan_from

GENERATION_ID = "01890a5d-ac96-774b-bcce-b302099a8057"


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=80, highlight=False)


def shown(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_the_screen_can_be_copied_however_long_and_odd_the_state_folder_is(
    console: Console, tmp_path: Path
) -> None:
    root = tmp_path / "it's a folder" / ("deep/" * 20)
    plan = plan_from({"GLOSSA_STATE_DIR": str(root)})

    show_screen(console, RunningSuite(plan=plan, database="db", services={}), 1.0)

    lines = shown(console)
    assert f"state      {root}" in lines
    [export] = [line for line in lines if "export" in line]
    assert shlex.split(export) == ["export", f"GLOSSA_STATE_DIR={root}"]


def test_ids_of_a_receipt_are_never_broken(console: Console) -> None:
    answer = cache_pb2.ExplainPageResponse(
        generation_id=GENERATION_ID, request_id=GENERATION_ID, model="[odd]-" + "x" * 70
    )

    show_receipt(console, answer)

    assert shown(console)[1:] == [
        f"model      {answer.model}",
        f"generation {GENERATION_ID}",
        f"request    {GENERATION_ID}",
    ]


def test_a_warning_says_of_what_and_until_when(console: Console) -> None:
    limit = quota_pb2.Limit(tier="soft", limit=3, remaining=0, warning=True)
    limit.resets_at.FromDatetime(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))

    show_receipt(console, cache_pb2.ExplainPageResponse(limits=[limit]))

    assert shown(console)[-1] == (
        "slow down: 0 of 3 requests left in the soft window until 03:04:05 UTC"
    )


def test_a_page_without_stickers_is_said_to_be_empty(console: Console) -> None:
    show_stickers(console, [])

    assert shown(console) == ["there was nothing to explain on this page"]


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_machines_get_every_character_whatever_the_terminal_knows(
    monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="replace")
    monkeypatch.setattr("sys.stdout", stream)

    print_json("sticker", cache_pb2.Sticker(title="桶"))

    stream.seek(0)
    assert json.loads(stream.read())["title"] == "桶"
