"""A refusal in the words of the command line: what, why, and one advice."""

import json
from datetime import timedelta

import pytest

from services.cli.errors import error_json, error_line
from services.local.errors import LocalError
from services.registry.errors import PageOutOfRange, PdfEmpty, PdfEncrypted, PdfUnreadable
from services.runtime.errors import GlossaError, RelayedError
from services.runtime.validation import parse_identity


def refusal(
    message: str, reason: str, *, field: str | None = None, wait: float | None = None
) -> RelayedError:
    retry_after = None if wait is None else timedelta(seconds=wait)
    return RelayedError(
        message, code="INTERNAL", reason=reason, field=field, retry_after=retry_after
    )


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            refusal("no such file", "FILE_NOT_FOUND"),
            "no such file (FILE_NOT_FOUND); upload it first: `glossa upload FILE --user ID`",
        ),
        (
            refusal("too many requests; wait and try again", "RATE_LIMITED", wait=8.2),
            "too many requests (RATE_LIMITED); wait 9 s and try again",
        ),
        (
            refusal("too many requests; wait and try again", "RATE_LIMITED", wait=3000),
            "too many requests (RATE_LIMITED); wait 50 minutes and try again",
        ),
        (
            PdfEncrypted(),
            "the PDF needs a password (PDF_ENCRYPTED); remove it and upload again",
        ),
        (
            PdfEmpty(),
            "the PDF has no pages (PDF_EMPTY); export it again and upload the new file",
        ),
        (
            PdfUnreadable(),
            "the PDF is damaged and cannot be read (PDF_UNREADABLE); "
            "open it in a viewer, save it anew and upload that",
        ),
        (
            PageOutOfRange(total_pages=3),
            "the document has pages 1 to 3 (PAGE_OUT_OF_RANGE); choose one of them with --page",
        ),
    ],
)
def test_a_refusal_names_its_reason_and_advises_once(error: GlossaError, line: str) -> None:
    assert error_line(error) == f"error: {line}"


@pytest.mark.parametrize("field", ["user_id", "owner.user_id", "header.owner.user_id"])
def test_a_field_of_the_request_is_called_by_its_option(field: str) -> None:
    with pytest.raises(GlossaError) as caught:
        parse_identity(field, "a b")

    assert error_line(caught.value).startswith("error: --user must be 1 to 128 letters")


def test_a_field_that_is_no_option_keeps_its_name() -> None:
    error = refusal("chunk must be at most 1 MiB", "INVALID_ARGUMENT", field="chunk")

    assert error_line(error) == "error: chunk must be at most 1 MiB (INVALID_ARGUMENT)"


def test_machines_get_what_and_next_apart() -> None:
    assert json.loads(error_json(PdfEncrypted())) == {
        "type": "error",
        "reason": "PDF_ENCRYPTED",
        "message": "the PDF needs a password",
        "next": "remove it and upload again",
    }


def test_an_error_of_several_lines_is_told_in_one() -> None:
    assert error_line(LocalError("denied\nDETAIL: no")) == "error: denied DETAIL: no"


def test_the_unexpected_is_one_line_too() -> None:
    assert error_line(RuntimeError("boom")) == (
        "error: something unexpected happened (RuntimeError: boom); set GLOSSA_DEBUG=1 to see where"
    )
