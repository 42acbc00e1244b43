"""What PDF children tell, as values; believed only as far as it makes sense.

A PDF may have taken its child over, so nothing here trusts the types it is given.
"""

import base64
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import structlog

from services.registry import metrics
from services.registry.domain import PageContent, PageImage, PageMetadata, PageText
from services.registry.errors import PdfError, PdfUnreadable, pdf_error

log = structlog.get_logger()

Seen = PageMetadata | PdfError

FINGERPRINT = re.compile(r"[0-9]+:[0-9a-f]{64}")


def understood(answer: dict[str, Any], understand: Callable[[Any], object]) -> dict[str, Any]:
    """An answer with a reason we know, or with a result that makes sense."""
    if "refused" in answer:
        return answer | {"refused": pdf_error(answer["refused"]).reason}
    return {"result": understand(answer["result"])}


def result_of(answer: dict[str, Any]) -> Any:
    """What was asked for, or why the PDF is refused."""
    if "refused" in answer:
        log.info("pdf_refused", reason=answer["refused"], detail=answer.get("detail"))
        raise pdf_error(answer["refused"])
    return answer["result"]


def page_seen(part: dict[str, Any]) -> Seen:
    """One page as the child saw it."""
    if "refused" in part:
        return pdf_error(part["refused"])
    return sensible(PageMetadata(**part["result"]))


def some(parts: Sequence[Seen], _: object) -> Sequence[Seen]:
    """At least one page: asking again after none would go on for ever."""
    if not parts:
        raise ValueError("nothing about any page")
    return parts


def sensible(metadata: PageMetadata) -> PageMetadata:
    """What can be true of a page, and what the database has room for."""
    for field in fields(metadata):
        value = getattr(metadata, field.name)
        if type(value) is not field.type:
            raise TypeError(field.name)
        if isinstance(value, int) and not 0 <= value < 2**31:
            raise ValueError(field.name)
    if not FINGERPRINT.fullmatch(metadata.fingerprint):
        raise ValueError("fingerprint")
    return metadata


@contextmanager
def only_sense() -> Iterator[None]:
    """Whatever a child that has been taken over tells, nonsense is the fault of its PDF."""
    try:
        yield
    except (KeyError, TypeError, ValueError, RecursionError):
        metrics.pdf_children_killed.labels("nonsense").inc()
        raise PdfUnreadable from None


def page_content(page: int, result: dict[str, Any]) -> PageContent:
    """The child's answer as values."""
    render = result["render"]
    return PageContent(
        text=PageText(page=page, text=result["text"], is_blank=bool(result["is_blank"])),
        neighbours=tuple(PageText(page=n, text=text) for n, text in result["neighbours"]),
        images=tuple(
            PageImage(**{**image, "content": base64.b64decode(image["content"])})
            for image in result["images"]
        ),
        render_png=None if render is None else base64.b64decode(render),
    )
