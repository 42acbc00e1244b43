"""The commands about units and money: quota, ledger, costs."""

from datetime import UTC, datetime, timedelta

from glossa.quota.v1 import quota_pb2
from rich.console import Console
from rich.table import Table
from rich.text import Text

from services.cli.client import connected
from services.cli.errors import CommandFailed
from services.cli.show import moment, print_json, show_quota
from services.cli.terminal import make_console

LONGEST_DAYS = 400
LEDGER_PAGE = 500
DOCUMENTS_SHOWN = 10
HASH_SHOWN = 12
NANODOLLARS = 1_000_000_000


async def run_quota(*, user: str, as_json: bool) -> None:
    async with connected() as suite:
        status = await suite.quota(user)
    if as_json:
        print_json("quota", status)
    else:
        show_quota(make_console(), user, status)


async def run_ledger(*, user: str, limit: int, as_json: bool) -> None:
    if limit < 1:
        raise CommandFailed(f"--limit must be at least 1, not {limit}")
    entries: list[quota_pb2.LedgerEntry] = []
    async with connected() as suite:
        token = ""
        while len(entries) < limit:
            size = min(LEDGER_PAGE, limit - len(entries))
            page = await suite.ledger(user, page_size=size, page_token=token)
            entries += page.entries
            token = page.next_page_token
            if not token:
                break
    if as_json:
        for entry in entries:
            print_json("entry", entry)
    else:
        show_ledger(make_console(), user, entries, more=bool(token))


async def run_costs(*, user: str, days: int | None, as_json: bool) -> None:
    if days is not None and not 1 <= days <= LONGEST_DAYS:
        raise CommandFailed(f"--days must be from 1 to {LONGEST_DAYS}, not {days}")
    since = None if days is None else datetime.now(UTC) - timedelta(days=days)
    async with connected() as suite:
        report = await suite.costs(user, since)
    if as_json:
        print_json("costs", report)
    else:
        show_costs(make_console(), user or "everybody", report)


def show_ledger(
    console: Console, user: str, entries: list[quota_pb2.LedgerEntry], *, more: bool
) -> None:
    if not entries:
        console.print(f"nothing has been written down for {user}", markup=False)
        return
    table = Table("when", "units", "what", "page", box=None, pad_edge=False)
    table.columns[1].justify = "right"
    for entry in entries:
        colour = "green" if entry.units > 0 else ""
        table.add_row(
            moment(entry.created_at),
            Text(f"{entry.units:+}", style=colour),
            Text(entry.explanation),
            _page(entry),
        )
    console.print(table)
    if more:
        console.print(Text("there are older entries; see them with --limit", style="dim"))


def show_costs(console: Console, who: str, report: quota_pb2.GetUserCostsResponse) -> None:
    total = report.total
    console.print(
        f"{who}: spent {dollars(total.cost_nanodollars)},"
        f" saved {dollars(total.saved_nanodollars)} by sharing",
        markup=False,
    )
    span = f"{moment(report.begins_at)} to {moment(report.ends_at)}"
    console.print(Text(span, style="dim"))
    if report.days:
        console.print(_table("day", [(day.day, day.costs) for day in report.days]))
    if report.documents:
        shown = report.documents[:DOCUMENTS_SHOWN]
        rows = [(one.pdf_hash[:HASH_SHOWN] or "(none)", one.costs) for one in shown]
        console.print()
        console.print(_table("document", rows))


def dollars(nanodollars: int) -> str:
    """Exact, with at least two decimals: $0.00, $0.0012, $1,234.50."""
    whole, part = divmod(nanodollars, NANODOLLARS)
    decimals = f"{part:09}".rstrip("0").ljust(2, "0")
    return f"${whole:,}.{decimals}"


def _table(first: str, rows: list[tuple[str, quota_pb2.Costs]]) -> Table:
    table = Table(first, "calls", "failed", "tokens", "spent", "hits", "saved", box=None)
    table.pad_edge = False
    for column in table.columns[1:]:
        column.justify = "right"
    for name, costs in rows:
        table.add_row(
            name,
            f"{costs.operations:,}",
            f"{costs.failed_operations:,}",
            f"{costs.input_tokens + costs.output_tokens:,}",
            dollars(costs.cost_nanodollars),
            f"{costs.shared_requests:,}",
            dollars(costs.saved_nanodollars),
        )
    return table


def _page(entry: quota_pb2.LedgerEntry) -> str:
    if not entry.page.pdf_hash:
        return ""
    return f"{entry.page.pdf_hash[:HASH_SHOWN]} p. {entry.page.page}"
