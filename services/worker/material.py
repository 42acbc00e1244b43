"""A page as a model is given it: data in a form that cannot turn into an instruction."""

import json
import re

from services.worker.domain import Page
from services.worker.markdown import clean_text

CONTEXT_CHARACTERS = 2_000

# What chat templates and prompts mark roles and material with. On a page it is text like any
# other; one space takes its meaning away and leaves it readable.
_MARKS = re.compile(
    r"<\|(?=[\w/])|(?<=[\w/])\|>"
    r"|\[(?=/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS)\])"
    r"|<<(?=/?SYS>>)"
    r"|<(?=/?(?:s|bos|eos|pad|unk|think|tool_call|tool_response|start_of_turn|end_of_turn)>)"
    r"|<(?=/?(?:system|developer|user|assistant|human|instructions?|prompt|material|page_text|"
    r"context|images)(?:\s[^<>]*)?>)",
    re.IGNORECASE,
)


def page_material(page: Page) -> str:
    """The page as JSON: its text cannot end the string it stands in.

    Of a page that is shown as a picture, or hides some of its text, the text is kept back: what
    readers cannot see would only mislead.
    """
    material = {
        "page_text": "" if page.render or page.has_hidden_text else neutral(page.text),
        "page_image_attached": page.render is not None,
        "images": [
            {
                "image_type": one.image_type.value,
                "alt_text": neutral(one.alt_text),
                "ocr_text": neutral(one.ocr_text[:CONTEXT_CHARACTERS]),
            }
            for one in page.summaries
            if one.shows_content
        ],
        "context": [neutral(text[:CONTEXT_CHARACTERS]) for text in page.neighbours if text],
    }
    return json.dumps(material, ensure_ascii=False)


def neutral(text: str) -> str:
    """Text without invisible characters and without the marks that prompts are made of."""
    return _MARKS.sub(_spaced, clean_text(text))


def _spaced(mark: re.Match[str]) -> str:
    return f"{mark[0][0]} {mark[0][1:]}"
