"""`glossa up`: runs the suite and shows on one screen where it is and what to try."""

import asyncio
import contextlib
import os
import shlex
import signal
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from services.cli.terminal import make_console, show_seconds
from services.local.layout import SERVICES
from services.local.supervisor import RunningSuite, SuitePlan, plan_from, running_suite
from services.local.tether import die_with_parent

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
QUOTA_METHOD = "glossa.quota.v1.QuotaService/GetQuotaStatus"


def run_up() -> None:
    _follow_make()
    asyncio.run(_until_told(plan_from(), make_console()))


async def _until_told(plan: SuitePlan, console: Console) -> None:
    serving = asyncio.create_task(_serve(plan, console))

    def stop() -> None:
        if serving.cancelling():
            # Told twice, so in a hurry: the kernel ends our children when we are gone.
            os._exit(1)
        serving.cancel()

    for number in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stop)
    with contextlib.suppress(asyncio.CancelledError):
        await serving
    console.print("stopped")


async def _serve(plan: SuitePlan, console: Console) -> None:
    began = time.monotonic()
    with console.status("starting the suite") as status:
        async with running_suite(plan, report=lambda line: _note(console, line)) as suite:
            status.stop()
            show_screen(console, suite, time.monotonic() - began)
            try:
                await asyncio.Event().wait()
            finally:
                console.print("stopping the services, then the database …")


def show_screen(console: Console, suite: RunningSuite, seconds: float) -> None:
    console.print(f"[bold green]Glossa is ready[/] in {show_seconds(seconds)}; Ctrl-C stops it\n")
    console.print(_addresses(suite))
    console.print()
    for name, value in _facts(suite):
        # Never wrapped or cut: what is shown is there to be copied.
        console.print(Text(f"{name:<11}{value}"), soft_wrap=True)
    console.print("\n[bold]Try this in another terminal[/]")
    for line in _things_to_try(suite.plan):
        console.print(Text(f"  {line}", style="cyan"), soft_wrap=True)


def _addresses(suite: RunningSuite) -> Table:
    table = Table("service", "gRPC", "metrics", box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for service in SERVICES:
        ports = suite.plan.ports
        metrics = f"http://{ports.metrics_address(service)}/metrics"
        table.add_row(service, ports.address(service), metrics)
    return table


def _facts(suite: RunningSuite) -> list[tuple[str, str]]:
    # Slow to import, and nobody waits for it any more.
    from services.runtime.settings import ExplanationSettings  # noqa: PLC0415

    explanation = ExplanationSettings()
    model = explanation.model_name
    if not explanation.uses_openai:
        model += "; set OPENAI_API_KEY for a language model"
    kind = "DATABASE_URL" if suite.plan.database_url else "embedded PostgreSQL"
    return [
        ("model", model),
        ("database", f"{kind} at {suite.database}"),
        ("state", str(suite.plan.state.root)),
        ("logs", str(suite.plan.state.root / "logs")),
        ("token", f"{_program('glossa')} token --scope gateway, or --user alice"),
        *_admin_page(suite.plan),
    ]


def _admin_page(plan: SuitePlan) -> list[tuple[str, str]]:
    """Where it is, and how to get in."""
    emails = [email.strip() for email in plan.admin_emails.split(",") if email.strip()]
    if not emails:
        return []  # nobody may sign in
    address = f"http://{plan.ports.metrics_address('worker')}/admin/metrics"
    token = f"{_program('glossa')} token --admin --email {shlex.quote(emails[0])}"
    return [("admin page", address), ("", f"sign in with what this prints: {token}")]


def _things_to_try(plan: SuitePlan) -> list[str]:
    glossa, buf = _program("glossa"), _program("buf")
    lines = []
    if plan.environment.get("GLOSSA_STATE_DIR"):
        lines.append(f"export GLOSSA_STATE_DIR={shlex.quote(str(plan.state.root))}")
    scheme, transport = "http", "--http2-prior-knowledge"
    if plan.tls is not None:
        names = ("CA_FILE", "CERT_FILE", "KEY_FILE")
        ca, cert, key = (f'"$GLOSSA_TLS_{name}"' for name in names)
        scheme, transport = "https", f"--cacert {ca} --cert {cert} --key {key}"
    return [
        *lines,
        f"{glossa} demo",
        f"{glossa} explain FILE.pdf --user alice --page 1",
        f"{buf} curl --protocol grpc {transport} \\",
        f"""  --reflect-header '*' -H "authorization: Bearer $({glossa} token)" \\""",
        """  -d '{"user_id":"alice"}' \\""",
        f"  {scheme}://{plan.ports.address('quota')}/{QUOTA_METHOD}",
    ]


def _program(name: str) -> str:
    """A command beside our own Python, as short as it can be pasted here."""
    path = Path(sys.executable).parent / name
    with contextlib.suppress(ValueError):
        return shlex.quote(str(path.relative_to(Path.cwd())))
    return shlex.quote(str(path))


def _note(console: Console, line: str) -> None:
    console.print(Text(line, style="yellow"))


def _follow_make() -> None:
    """Stop when a `make` that started us is killed: to its user, make is the suite."""
    parent = os.getppid()
    with contextlib.suppress(OSError):
        name = Path(f"/proc/{parent}/comm").read_text().strip()
        if name in {"make", "gmake"} and not die_with_parent(parent, signal.SIGTERM):
            sys.exit(1)
