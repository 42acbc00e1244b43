"""Forms as they are sent: bounded, from our own pages, and only then believed."""

from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import parse_qs

from starlette.requests import Request

from services.runtime.errors import Forbidden, InvalidInput

MOST_BYTES = 128 * 1024
MOST_FIELDS = 2_000
FORM_TYPE = "application/x-www-form-urlencoded"


class ForeignForm(Forbidden):
    """Sent from another site's page."""

    reason = "FOREIGN_FORM"


class Form(Mapping[str, str]):
    """The fields of a form; of those that come several times, the first."""

    def __init__(self, fields: Mapping[str, Sequence[str]]) -> None:
        self._fields = fields

    def __getitem__(self, name: str) -> str:
        return self._fields[name][0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def all(self, name: str) -> Sequence[str]:
        return self._fields.get(name, ())


async def read_form(request: Request, *, origin: str) -> Form:
    """What was sent, if it was sent from a page of this origin."""
    if request.headers.get("origin") != origin:
        raise ForeignForm("this was not sent from a page of this site; open the page and repeat")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != FORM_TYPE:
        raise InvalidInput(f"forms are sent as {FORM_TYPE}", field="content-type")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BYTES:
            raise InvalidInput(
                "the form is larger than 128 KiB; choose less at a time", field="body"
            )
    try:
        fields = parse_qs(body.decode("utf-8"), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        raise InvalidInput("the form cannot be read", field="body") from None
    return Form(fields)
