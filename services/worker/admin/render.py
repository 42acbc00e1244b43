"""Templates into pages; everything that is put into one is escaped."""

import json
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import HTMLResponse

from services.worker.admin import charts, words
from services.worker.admin.session import Session

FOLDER = Path(__file__).parent
STATIC = FOLDER / "static"


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for word in (
        words.count,
        words.counted,
        words.percent,
        words.dollars,
        words.took,
        words.span,
        words.moment,
        words.exactly,
        words.day,
        words.short,
        words.label,
        words.sentence,
    ):
        environment.filters[word.__name__] = word
    # As text, so that autoescape makes an attribute of it.
    environment.filters["as_json"] = json.dumps
    for measure in (charts.hit_rate, charts.made_ms, charts.hit_ms):
        environment.filters[measure.__name__] = measure
    return environment


_ENVIRONMENT = _environment()


def page(
    template: str,
    *,
    session: Session | None = None,
    status: int = 200,
    headers: dict[str, str] | None = None,
    **content: Any,
) -> HTMLResponse:
    """A whole page, or with a template that is one, a part of it."""
    text = _ENVIRONMENT.get_template(template).render(session=session, **content)
    return HTMLResponse(text, status_code=status, headers=headers)
