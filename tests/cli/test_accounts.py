"""Units and money as people read them."""

import io

import pytest
from glossa.quota.v1 import quota_pb2
from rich.console import Console

from services.cli.accounts import dollars, show_costs, show_ledger
from services.cli.show import show_quota

HASH = "0123456789abcdef" * 4


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=96, highlight=False)


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("nanodollars", "words"),
    [
        (0, "$0.00"),
        (1, "$0.000000001"),
        (1_200_000, "$0.0012"),
        (500_000_000, "$0.50"),
        (1_234_567_800_000_000, "$1,234,567.80"),
    ],
)
def test_money_is_exact(nanodollars: int, words: str) -> None:
    assert dollars(nanodollars) == words


def test_an_entry_is_one_line_with_sign_words_and_page(console: Console) -> None:
    entry = quota_pb2.LedgerEntry(units=-1, explanation="A page was explained for you.")
    entry.created_at.FromJsonString("2026-11-18T10:00:00Z")
    entry.page.pdf_hash, entry.page.page = HASH, 7

    show_ledger(console, "alice", [entry], more=True)

    lines = shown(console).splitlines()
    row = " ".join(lines[1].split())
    assert row == "2026-11-18 10:00:00 UTC -1 A page was explained for you. 0123456789ab p. 7"
    assert "--limit" in lines[-1]


def test_an_empty_ledger_says_so(console: Console) -> None:
    show_ledger(console, "[alice]", [], more=False)

    assert shown(console) == "nothing has been written down for [alice]\n"


def test_costs_tell_what_was_spent_and_saved(console: Console) -> None:
    costs = quota_pb2.Costs(
        operations=2, cost_nanodollars=2_400_000, shared_requests=5, saved_nanodollars=6_000_000
    )
    report = quota_pb2.GetUserCostsResponse(total=costs)
    report.days.add(day="2026-11-18", costs=costs)
    report.documents.add(pdf_hash=HASH, costs=costs)

    show_costs(console, "alice", report)

    assert "spent $0.0024, saved $0.006 by sharing" in shown(console)
    rows = [line.split() for line in shown(console).splitlines()]
    assert ["2026-11-18", "2", "0", "0", "$0.0024", "5", "$0.006"] in rows
    assert ["0123456789ab", "2", "0", "0", "$0.0024", "5", "$0.006"] in rows


def test_a_degraded_status_is_no_empty_table(console: Console) -> None:
    show_quota(console, "alice", quota_pb2.GetQuotaStatusResponse(degraded=True))

    assert "does not answer" in shown(console)
