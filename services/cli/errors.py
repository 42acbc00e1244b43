"""Turns whatever went wrong into one line that says what, why and what to do next."""

from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from services.local.errors import LocalError
from services.runtime.errors import GlossaError
from services.runtime.status import from_call

NEXT_STEPS = {
    "FILE_NOT_FOUND": "upload it first: `glossa upload FILE --user ID`",
    "GENERATION_NOT_FOUND": "ask for the page with `glossa explain`, which shows its generation",
    "UNAUTHENTICATED": "is GLOSSA_STATE_DIR the folder of the suite that runs?",
    "QUOTA_EXHAUSTED": "`glossa quota --user ID` tells when the period ends",
    "RATE_LIMITED": "wait a little and ask again",
    "NOT_A_PDF": "only PDF files can be explained",
    "PDF_ENCRYPTED": "save it without a password and try again",
    "FILE_TOO_LARGE": "split it and upload the parts",
}
IS_IT_RUNNING = "is the suite running? try `make run`"


class CommandFailed(Exception):
    """The command cannot do what was asked; the message is for the person who asked."""


@contextmanager
def asking(service: str, address: str) -> Iterator[None]:
    """Around a call: a service that cannot be reached is told apart from one that refuses."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        refusal = from_call(error)
        if refusal.reason == "UNAVAILABLE":  # nobody answered, so there are no details
            message = f"cannot reach the {service} service at {address}; {IS_IT_RUNNING}"
            raise CommandFailed(message) from error
        if refusal.reason == "DEADLINE_EXCEEDED":
            message = f"the {service} service at {address} did not answer in time; try again"
            raise CommandFailed(message) from error
        raise refusal from error


def error_line(error: Exception) -> str:
    if isinstance(error, GlossaError):
        return f"error: {_refusal(error)}"
    if isinstance(error, CommandFailed | LocalError):
        return f"error: {error}"
    if isinstance(error, OSError) and error.filename:
        return f"error: {error.filename}: {error.strerror}"
    return (
        f"error: something unexpected happened ({type(error).__name__}: {error}); "
        "set GLOSSA_DEBUG=1 to see where"
    )


def _refusal(error: GlossaError) -> str:
    parts = [f"{error.message} ({error.reason})"]
    if error.reason in NEXT_STEPS:
        parts.append(NEXT_STEPS[error.reason])
    if error.retry_after is not None:
        parts.append(f"waiting {error.retry_after.total_seconds():.0f} s helps")
    return "; ".join(parts)
