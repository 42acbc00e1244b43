"""Turns whatever went wrong into one line, or one JSON object: what, why and what to do next."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from math import ceil

import grpc
from typer.exceptions import TyperException

from services.local.errors import AdvisedError
from services.runtime.errors import GlossaError
from services.runtime.status import from_call
from services.runtime.tls import TlsMisconfigured

NEXT_STEPS = {
    "DEAD_LETTER_NOT_FOUND": "`glossa dead-letters list` shows those there are",
    "FILE_NOT_FOUND": "upload it first: `glossa upload FILE --user ID`",
    "FILE_TOO_LARGE": "split it and upload the parts",
    "GENERATION_NOT_FOUND": "ask for the page with `glossa explain`, which shows its generation",
    "NOT_A_PDF": "only PDF files can be explained",
    "PAGE_OUT_OF_RANGE": "choose one of them with --page",
    "PDF_EMPTY": "export it again and upload the new file",
    "PDF_ENCRYPTED": "save it without a password and upload that",
    "PDF_TIMEOUT": "split it and upload the parts",
    "PDF_TOO_COMPLEX": "split it and upload the parts",
    "PDF_UNREADABLE": "open it in a viewer, save it anew and upload that",
    "QUOTA_EXHAUSTED": "`glossa quota --user ID` tells when the period ends",
    "RATE_LIMITED": "wait a little and ask again",
    "UNAUTHENTICATED": "is GLOSSA_STATE_DIR the folder of the suite that runs?",
}
# What people call the fields of a request here.
OPTIONS = {
    "day": "--day",
    "file_id": "--file-id",
    "generation_id": "the generation id",
    "locale": "--locale",
    "page": "--page",
    "pdf_hash": "--hash",
    "user_id": "--user",
}
IS_IT_RUNNING = "is the suite running? try `make run`"


class CommandFailed(AdvisedError):
    """The command cannot do what was asked; the message is for the person who asked."""

    reason = "COMMAND_FAILED"


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """What went wrong, taken apart; `coded` when the reason means something to its reader."""

    message: str
    reason: str
    next_step: str = ""
    coded: bool = False


@contextmanager
def asking(service: str, address: str) -> Iterator[None]:
    """Around a call: a service that cannot be reached is told apart from one that refuses."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        refusal = from_call(error)
        if refusal.reason == "UNAVAILABLE":  # nobody answered, so there are no details
            message = f"cannot reach the {service} service at {address}"
            raise CommandFailed(message, next_step=IS_IT_RUNNING) from error
        if refusal.reason == "DEADLINE_EXCEEDED":
            message = f"the {service} service at {address} did not answer in time"
            raise CommandFailed(message, next_step="try again") from error
        raise refusal from error


def error_line(error: Exception) -> str:
    trouble = _trouble(error)
    what = f"{trouble.message} ({trouble.reason})" if trouble.coded else trouble.message
    line = "; ".join(filter(None, (f"error: {what}", trouble.next_step)))
    return " ".join(line.splitlines())  # a database may answer in several


def error_json(error: Exception) -> str:
    trouble = _trouble(error)
    fields = {"type": "error", "reason": trouble.reason, "message": trouble.message}
    return json.dumps(fields | {"next": trouble.next_step})


def _trouble(error: Exception) -> Trouble:
    if isinstance(error, GlossaError):
        return _refusal(error)
    if isinstance(error, AdvisedError):
        return Trouble(message=error.message, reason=error.reason, next_step=error.next_step)
    if isinstance(error, TlsMisconfigured):
        return Trouble(message=str(error), reason="TLS_MISCONFIGURED")
    if isinstance(error, TyperException):
        return Trouble(message=error.format_message(), reason="USAGE", next_step="try --help")
    if isinstance(error, OSError) and error.filename:
        return Trouble(message=f"{error.filename}: {error.strerror}", reason="FILE_UNREADABLE")
    return Trouble(
        message=f"something unexpected happened ({type(error).__name__}: {error})",
        reason="UNEXPECTED",
        next_step="set GLOSSA_DEBUG=1 to see where",
    )


def _refusal(error: GlossaError) -> Trouble:
    # Services write their advice behind a semicolon; one advice is enough for anybody.
    what, _, advice = _in_our_words(error).partition("; ")
    if error.retry_after is not None:
        advice = f"wait {_show_wait(error.retry_after)} and try again"
    next_step = advice or NEXT_STEPS.get(error.reason, "")
    return Trouble(message=what, reason=error.reason, next_step=next_step, coded=True)


def _in_our_words(error: GlossaError) -> str:
    """The message, with the name of the option in place of the field it was sent in."""
    field = error.field or ""
    option = OPTIONS.get(field.rpartition(".")[2])
    if option is None or not error.message.startswith(f"{field} "):
        return error.message
    return option + error.message.removeprefix(field)


def _show_wait(wait: timedelta) -> str:
    seconds = max(1, ceil(wait.total_seconds()))
    return f"{seconds} s" if seconds < 120 else f"{ceil(seconds / 60)} minutes"
