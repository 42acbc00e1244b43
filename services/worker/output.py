"""What a model is asked to answer, and how an answer becomes stickers: checked and inert."""

import re
from collections.abc import Iterable, Sequence
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from services.worker.domain import (
    MAX_STICKERS,
    Image,
    ImageSummary,
    ImageType,
    Page,
    Sticker,
    StickerKind,
    numbered,
)
from services.worker.markdown import clean_markdown, clean_text, clean_title, locate_quote, shorten
from services.worker.model import ModelBadOutput, ModelGarbled
from services.worker.openai_response import sound_json

# As much as a scanned page of small print holds.
OCR_CHARACTERS = 8_000
ALT_CHARACTERS = 1_000
# A note that holds this much of our own instructions is a leak, not a note.
LEAK_CHARACTERS = 40


class Note(BaseModel):
    model_config = ConfigDict(extra="forbid")

    kind: Literal["summary", "term", "concept", "formula", "figure", "example"]
    title: str
    body_markdown: str
    quote: str


class Notes(BaseModel):
    model_config = ConfigDict(extra="forbid")

    stickers: list[Note]


class Picture(BaseModel):
    model_config = ConfigDict(extra="forbid")

    image_type: Literal[
        "diagram", "chart", "table", "formula", "photo", "screenshot", "text", "decorative"
    ]
    ocr_text: str
    alt_text: str


STICKER_SCHEMA: dict[str, object] = Notes.model_json_schema()
IMAGE_SCHEMA: dict[str, object] = Picture.model_json_schema()

Shape = TypeVar("Shape", bound=BaseModel)


def stickers_from(
    text: str, page: Page, *, instructions: str, link_hosts: Sequence[str] = ()
) -> tuple[Sticker, ...]:
    """The notes of an answer as stickers; one that cannot be used is left out."""
    notes = _parse(Notes, text).stickers
    if any("\x00" in field for note in notes for field in _texts(note)):
        raise ModelGarbled("NUL in a note")
    # More than enough to choose from, and a bound on the work.
    cleaned = (_sticker(note, page.text, link_hosts) for note in notes[: 2 * MAX_STICKERS])
    usable = [one for one in cleaned if one.title and one.body_markdown]
    stickers = [one for one in usable if not _leaks(one, instructions)]
    if not stickers:
        raise ModelBadOutput("no sticker with a title and a body")
    return numbered(stickers[:MAX_STICKERS])


def summary_from(text: str, image: Image) -> ImageSummary:
    picture = _parse(Picture, text)
    if any("\x00" in field for field in _texts(picture)):
        raise ModelGarbled("NUL in a description")
    return ImageSummary(
        digest=image.digest,
        image_type=ImageType(picture.image_type),
        ocr_text=shorten(clean_text(picture.ocr_text), OCR_CHARACTERS),
        alt_text=clean_markdown(picture.alt_text, ALT_CHARACTERS),
    )


def _parse(shape: type[Shape], text: str) -> Shape:
    try:
        return shape.model_validate_json(sound_json(text))
    except ValidationError as error:
        problems = error.error_count()
        raise ModelBadOutput(f"not {shape.__name__}: {problems} problems") from None


def _texts(model: BaseModel) -> Iterable[str]:
    return (value for _, value in model if isinstance(value, str))


def _sticker(note: Note, page_text: str, link_hosts: Sequence[str]) -> Sticker:
    return Sticker(
        sticker_id="",
        kind=StickerKind(note.kind),
        title=clean_title(note.title),
        body_markdown=clean_markdown(note.body_markdown, link_hosts=link_hosts),
        quote=locate_quote(note.quote, page_text),
    )


def _leaks(sticker: Sticker, instructions: str) -> bool:
    """Whether a sentence of our instructions stands in it, as a page may ask a model to write."""
    told = _plain(f"{sticker.title} {sticker.body_markdown}")
    sentences = re.split("[.:\n\u3002\uff1a]", instructions)
    return any(
        len(sentence) >= _long_enough(sentence) and sentence in told
        for sentence in map(_plain, sentences)
    )


def _long_enough(sentence: str) -> int:
    """A Chinese sentence says as much in a third of the characters."""
    return LEAK_CHARACTERS // 3 if any(one > "\u2e80" for one in sentence) else LEAK_CHARACTERS


def _plain(text: str) -> str:
    return "".join(one for one in text.casefold() if one.isalnum())
