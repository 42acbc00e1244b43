"""The commands of `glossa`; each imports what it needs when it runs, so that help is quick."""
# ruff: noqa: PLC0415, PLR0917 - imports are late on purpose, and typer wants plain parameters

import asyncio
import io
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="glossa",
    help="Every page explained once, for everyone.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

User = Annotated[str, typer.Option("--user", help="Who asks, e.g. alice.")]
Page = Annotated[int, typer.Option("--page", help="Page number, from 1.")]
Locale = Annotated[str, typer.Option("--locale", help="Language: en or zh-Hans.")]
# A flag has no value, so no metavar either.
Json = Annotated[
    bool, typer.Option("--json", metavar="", help="One JSON object per line, for machines.")
]


@app.command()
def up() -> None:
    """Run the whole suite on this machine until Ctrl-C."""
    from services.cli.up import run_up

    run_up()


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def serve(
    context: typer.Context,
    service: Annotated[str, typer.Argument(help="registry, cache, quota or worker.")],
) -> None:
    """Run one service, configured by GLOSSA_… variables.

    `glossa serve worker --once --budget 50s --batch 10` does what is waiting and exits.
    """
    from services.local.layout import SERVICES

    if service not in SERVICES:
        raise typer.BadParameter(f"choose one of {', '.join(SERVICES)}")
    if context.args and service != "worker":
        raise typer.BadParameter(f"{service} takes no {context.args[0]}")
    command = [sys.executable, "-P", "-m", f"services.{service}", *context.args]
    os.execv(command[0], command)  # noqa: S606 - signals must reach the service itself


@app.command()
def migrate(as_json: Json = False) -> None:
    """Make roles, schemas and tables where they are missing (DATABASE_URL or the embedded one)."""
    from services.cli.migrate import run_migrate

    asyncio.run(run_migrate(as_json=as_json))


@app.command()
def token(
    scope: Annotated[
        str | None, typer.Option(help="gateway (unless told), worker or admin.")
    ] = None,
    user: Annotated[str | None, typer.Option(help="A token for this user alone instead.")] = None,
    lifetime: Annotated[str, typer.Option(help="How long it is good: 30m, 12h, 7d.")] = "1h",
    admin: Annotated[bool, typer.Option("--admin", help="The same as --scope admin.")] = False,
    email: Annotated[
        str, typer.Option(help="With --admin: who signs in to the admin page with it.")
    ] = "",
) -> None:
    """Print a token that the services of this state folder believe."""
    from services.cli.tokens import make_token

    print(make_token(scope=scope, user=user, lifetime=lifetime, admin=admin, email=email))


@app.command()
def upload(file: Path, user: User, as_json: Json = False) -> None:
    """Upload a PDF for a user."""
    from services.cli.ask import run_upload

    asyncio.run(run_upload(file=file, user=user, as_json=as_json))


@app.command()
def explain(
    user: User,
    file: Annotated[Path | None, typer.Argument(help="A PDF; it is uploaded first.")] = None,
    file_id: Annotated[str, typer.Option(help="A file uploaded before.")] = "",
    pdf_hash: Annotated[str, typer.Option("--hash", help="A document the user holds.")] = "",
    page: Page = 1,
    locale: Locale = "en",
    as_json: Json = False,
) -> None:
    """Explain a page and show how it goes."""
    from services.cli.ask import Question, run_explain

    question = Question(
        user=user, file=file, file_id=file_id, pdf_hash=pdf_hash, page=page, locale=locale
    )
    asyncio.run(run_explain(question, as_json=as_json))


@app.command()
def convert(
    user: User,
    file: Annotated[Path | None, typer.Argument(help="A PDF; it is uploaded first.")] = None,
    file_id: Annotated[str, typer.Option(help="A file uploaded before.")] = "",
    pdf_hash: Annotated[str, typer.Option("--hash", help="A document the user holds.")] = "",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write it; else it is printed.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Turn a document into Markdown and show how it goes."""
    from services.cli.ask import Question, run_convert

    question = Question(user=user, file=file, file_id=file_id, pdf_hash=pdf_hash)
    asyncio.run(run_convert(question, output=output, as_json=as_json))


@app.command()
def watch(generation_id: str, user: User, as_json: Json = False) -> None:
    """Follow a generation until it is ready or failed."""
    from services.cli.ask import run_watch

    asyncio.run(run_watch(generation_id=generation_id, user=user, as_json=as_json))


@app.command()
def request(request_id: str, user: User, as_json: Json = False) -> None:
    """Tell the story of a request: how it was served and why, what it cost, how it went."""
    from services.cli.ask import run_request

    asyncio.run(run_request(request_id=request_id, user=user, as_json=as_json))


@app.command()
def quota(user: User, as_json: Json = False) -> None:
    """What a user may still ask for."""
    from services.cli.accounts import run_quota

    asyncio.run(run_quota(user=user, as_json=as_json))


@app.command()
def files(
    user: User,
    limit: Annotated[int, typer.Option(help="How many, newest first.")] = 100,
    as_json: Json = False,
) -> None:
    """What a user has uploaded."""
    from services.cli.files import run_files

    asyncio.run(run_files(user=user, limit=limit, as_json=as_json))


@app.command()
def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would go.")] = False,
    grace: Annotated[
        str,
        typer.Option(help="Unused for this long: 30m, 12h, 7d; as in the settings unless told."),
    ] = "",
    as_json: Json = False,
) -> None:
    """Remove documents nobody refers to any more, bytes included."""
    from services.cli.files import run_gc

    asyncio.run(run_gc(dry_run=dry_run, grace=grace, as_json=as_json))


@app.command()
def backfill(
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Also those that could not be hashed before.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Hash files that are known without a hash; may be stopped and started at any time."""
    from services.cli.files import run_backfill

    asyncio.run(run_backfill(retry_failed=retry_failed, as_json=as_json))


@app.command()
def ledger(
    user: User,
    limit: Annotated[int, typer.Option("--limit", help="How many entries at most.")] = 20,
    as_json: Json = False,
) -> None:
    """Every movement of a user's units, newest first."""
    from services.cli.accounts import run_ledger

    asyncio.run(run_ledger(user=user, limit=limit, as_json=as_json))


@app.command()
def costs(
    user: Annotated[str, typer.Option("--user", help="Whose; everybody's unless told.")] = "",
    days: Annotated[
        int | None, typer.Option("--days", help="The last so many; this month unless told.")
    ] = None,
    as_json: Json = False,
) -> None:
    """What models cost, and what sharing saved."""
    from services.cli.accounts import run_costs

    asyncio.run(run_costs(user=user, days=days, as_json=as_json))


@app.command("fake-openai")
def fake_openai(
    port: Annotated[int, typer.Option(help="On loopback; any free one unless told.")] = 0,
    fail: Annotated[str, typer.Option(help="How to fail, e.g. rate-limit, drip, refusal.")] = "",
    times: Annotated[int, typer.Option(min=0, help="How often; always unless told.")] = 0,
    every: Annotated[int, typer.Option(min=1, help="Only every so-many-th call.")] = 1,
    retry_after: Annotated[str, typer.Option(help="Seconds, sent with the failure.")] = "",
    delay: Annotated[float, typer.Option(min=0, help="Seconds before each answer.")] = 0.0,
) -> None:
    """Stand in for OpenAI on this machine, in success and in every failure."""
    from services.cli.fake_openai import Manner, run_fake_openai

    manner = Manner(
        fail=fail, times=times, every=every, retry_after=retry_after, delay_seconds=delay
    )
    with suppress(KeyboardInterrupt):  # Ctrl-C is how it ends
        asyncio.run(run_fake_openai(port, manner))


@app.command()
def metrics(
    day: Annotated[
        str, typer.Option("--day", help="Like 2026-11-18, or today; yesterday unless told.")
    ] = "",
    as_json: Json = False,
) -> None:
    """One day in numbers: hits, latencies, failures; by hour, mode, language and document."""
    from services.cli.worker import run_metrics

    asyncio.run(run_metrics(day=day, as_json=as_json))


letters = typer.Typer(no_args_is_help=True, help="What failed for good, and how to try it again.")
app.add_typer(letters, name="dead-letters")

Reason = Annotated[str, typer.Option(help="Why they failed, e.g. MODEL_UNAVAILABLE.")]
Document = Annotated[str, typer.Option("--hash", help="Pages of this document.")]
Model = Annotated[str, typer.Option(help="Made by this model.")]
Since = Annotated[str, typer.Option(help="Failed within the last 30m, 12h, 7d.")]


@letters.command("list")
def list_letters(
    reason: Reason = "",
    pdf_hash: Document = "",
    model: Model = "",
    since: Since = "",
    limit: Annotated[int, typer.Option(help="How many, newest first.")] = 50,
    redriven: Annotated[
        bool, typer.Option("--redriven", help="Also those that were started anew.")
    ] = False,
    as_json: Json = False,
) -> None:
    """What failed for good: why, after how many tries, at what cost."""
    from services.cli.worker import Choice, run_list

    choice = Choice(reason=reason, pdf_hash=pdf_hash, model=model, since=since)
    asyncio.run(run_list(choice, limit=limit, redriven=redriven, as_json=as_json))


@letters.command("show")
def show_letter(generation_id: str, as_json: Json = False) -> None:
    """One of them, with every attempt."""
    from services.cli.worker import run_show

    asyncio.run(run_show(generation_id, as_json=as_json))


@letters.command()
def redrive(
    generation_ids: Annotated[list[str] | None, typer.Argument(help="These alone.")] = None,
    reason: Reason = "",
    pdf_hash: Document = "",
    model: Model = "",
    since: Since = "",
    everything: Annotated[bool, typer.Option("--all", help="Everything that failed.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell what would be done.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Start pages anew that failed, in the background and at nobody's expense."""
    from services.cli.worker import Choice, run_redrive

    choice = Choice(
        generation_ids=generation_ids or (),
        reason=reason,
        pdf_hash=pdf_hash,
        model=model,
        since=since,
    )
    asyncio.run(run_redrive(choice, everything=everything, dry_run=dry_run, as_json=as_json))


@app.command()
def doctor(
    only: Annotated[
        list[str] | None, typer.Option(help="This check, or all of a schema; may be repeated.")
    ] = None,
    grace: Annotated[str, typer.Option(help="How long recovery may take: 30s, 5m, 0.")] = "5m",
    since: Annotated[str, typer.Option(help="How far back to look: 2h, 7d.")] = "2h",
    full: Annotated[bool, typer.Option("--full", help="Look at all there ever was.")] = False,
    listing: Annotated[bool, typer.Option("--list", help="Only tell what is promised.")] = False,
    watch: Annotated[
        float | None, typer.Option(min=0.1, help="Look again every so many seconds.")
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="For Prometheus, while watching.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check every promise of the suite, and what it stands on.

    Exits with 0 when all is well, 1 when not, and 2 when something could not be checked.
    """
    from services.cli.doctor import Wish, list_invariants, run_doctor, whatever_happens

    if listing:
        list_invariants(as_json=as_json)
        return
    wish = Wish(
        grace=grace,
        since=since,
        full=full,
        only=only or (),
        watch=watch,
        metrics_port=metrics_port,
        as_json=as_json,
    )
    with suppress(KeyboardInterrupt), whatever_happens():  # Ctrl-C is how watching ends
        sys.exit(asyncio.run(run_doctor(wish)))


@app.command()
def demo() -> None:
    """Two users, one PDF: the first generates live, the second gets it at once."""
    from services.cli.demo import run_demo

    asyncio.run(run_demo())


def main() -> None:
    """Run a command; whatever goes wrong is one line, and JSON where JSON was asked for."""
    _print_anything()
    as_json = "--json" in sys.argv
    try:
        # Usage errors are drawn by typer unless a machine reads them.
        sys.exit(app(standalone_mode=not as_json))
    except Exception as error:
        from services.cli.errors import error_json, error_line

        print(error_json(error) if as_json else error_line(error), file=sys.stderr)
        if os.environ.get("GLOSSA_DEBUG"):
            raise
        sys.exit(getattr(error, "exit_code", 1))


def _print_anything() -> None:
    """A character the terminal does not know becomes a question mark, not the end."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


if __name__ == "__main__":
    main()
