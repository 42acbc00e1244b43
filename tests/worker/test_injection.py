"""Page text is data: no page, no picture and no obedient model leaves a trace of an attack."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from services.worker import prompts
from services.worker.domain import ImageSummary, ImageType, Page
from services.worker.markdown import clean_markdown
from services.worker.material import neutral, page_material
from tests import fake_openai as fake
from tests.fake_openai import Answer, FakeOpenAI, Question
from tests.suite import Keys, Suite, running_suite
from tests.worker.conftest import StartWorker
from tests.worker.injections import ATTACKS, CANARY, PAYLOADS, Attack
from tests.worker.pages import READY, Sheet, document, explained

ALLOWED = ("en.wikipedia.org",)
# What a browser or a Markdown renderer would act upon.
ACTS = re.compile(
    r"<[a-z/!?]|javascript:|vbscript:|data:[\w/;,]|https?://|\bwww\.|\]\(|\]\[|^\[[^\]]+\]:",
    re.IGNORECASE | re.MULTILINE,
)
MARKS = ("<|", "|>", "[INST]", "[/INST]", "<<SYS>>", "</page_text>", "<system>", "<end_of_turn>")


def gullible(question: Question) -> Answer:
    """A model that does whatever it is told anywhere but inside the material.

    That is what delimiting is to prevent: text of a page in the place of an instruction.
    """
    outside = question.instructions
    try:
        material: Any = json.loads(question.text)
    except ValueError:
        outside, material = outside + question.text, {}
    told = json.dumps(material, ensure_ascii=False)
    # Names are part of the form; and a mark of a chat template ends the material for real.
    outside += "".join(material) + (told if any(mark in told for mark in MARKS) else "")
    title = CANARY if CANARY in outside else "What this page says"
    if question.about == "image":
        return fake.picture(ocr_text=ATTACKS[0].text, alt_text=f"A slide. {ATTACKS[3].text}")
    return fake.notes({"kind": "summary", "title": title, "body_markdown": title, "quote": ""})


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_an_attack_stays_inside_the_string_it_stands_in(attack: Attack) -> None:
    summary = ImageSummary(
        digest="0" * 64, image_type=ImageType.TEXT, ocr_text=attack.text, alt_text=attack.text
    )
    page = Page(
        page=1, text=attack.text, locale="en", neighbours=(attack.text,), summaries=(summary,)
    )

    material = json.loads(page_material(page))

    assert set(material) == {
        "page_text",
        "page_image_attached",
        "images",
        "context",
    }
    [image] = material["images"]
    given = [material["page_text"], *material["context"], image["alt_text"], image["ocr_text"]]
    assert given == [neutral(attack.text)] * 4
    assert not any(mark in one for mark in MARKS for one in given)
    assert not any(0xE0000 <= ord(character) <= 0xE007F for one in given for character in one)


def test_text_that_only_looks_like_a_mark_is_still_read() -> None:
    code = "if a < b and c > d: print([INSTANCE], x || y, '<system-wide>')"

    assert neutral(code) == code


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_no_instruction_ever_holds_text_of_a_page(attack: Attack) -> None:
    for text in (prompts.explain_page("en"), prompts.explain_page("zh-Hans")):
        assert attack.text not in text
        assert CANARY not in text


@pytest.mark.parametrize("payload", PAYLOADS)
def test_what_an_obedient_model_writes_does_not_act(payload: str) -> None:
    for text in (payload, f"A heap grows. {payload} It shrinks.", payload * 3):
        cleaned = clean_markdown(text, link_hosts=ALLOWED)
        assert not ACTS.search(cleaned.replace("[x](https://en.wikipedia.org/wiki)", "")), cleaned


def test_only_links_to_allowed_hosts_stay_links() -> None:
    good = "See [heaps](https://en.wikipedia.org/wiki/Heap#Use) and [more](https://evil.example)."

    assert clean_markdown(good, link_hosts=ALLOWED) == (
        "See [heaps](https://en.wikipedia.org/wiki/Heap#Use) and more."
    )
    assert clean_markdown(good) == "See heaps and more."


async def test_the_whole_corpus_leaves_no_trace_in_results(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker
) -> None:
    """Visible on the page and on its neighbours, and in a picture; both languages."""
    model.answer = gullible
    sheets = [
        Sheet(text=f"A tree is a connected graph.\n{one.text}", pictures=[9]) for one in ATTACKS
    ]
    content = document(*sheets)
    async with start_worker(concurrency=4):
        for number in range(len(sheets)):
            generation = await explained(
                cluster,
                content,
                page=number + 1,
                user=f"user-{number}",
                locale="zh-Hans" if number % 2 else "en",
            )
            assert generation.status == READY
            told = "".join(one.title + one.body_markdown for one in generation.stickers)
            assert CANARY not in told
            assert not ACTS.search(told)

    asked = [question for question in model.questions if question.about == "stickers"]
    assert len(asked) == len(ATTACKS)
    # The attacks did reach the model, as material.
    assert all(CANARY in question.text for question in asked)


async def test_what_readers_cannot_see_does_not_reach_the_model(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker
) -> None:
    shown = "A tree is a connected graph without cycles."
    note = {"kind": "term", "title": "Tree", "body_markdown": "A graph.", "quote": "a tree is"}
    model.always(fake.notes(note))
    async with start_worker():
        for attack in ATTACKS[:4]:
            page = Sheet(text=shown, hidden=attack.text, pictures=[9])
            generation = await explained(cluster, document(page))
            # The words it was written about are found all the same.
            assert generation.stickers[0].anchor.quote == "A tree is"

    assert len(model.questions) == 4
    for question in model.questions:
        assert CANARY not in question.text + question.instructions
        assert len(question.images) == 1


async def test_what_readers_of_the_next_page_cannot_see_does_not_reach_the_model(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker
) -> None:
    shown = Sheet(text="A tree is a connected graph without cycles.")
    async with start_worker():
        for attack in ATTACKS[:4]:
            hidden = Sheet(text="A heap is a tree.", hidden=attack.text)
            await explained(cluster, document(shown, hidden))

    assert len(model.questions) == 4
    for question in model.questions:
        assert CANARY not in question.text
        assert question.material["context"] == []


@pytest.mark.parametrize("page", [1, 2])
async def test_what_readers_cannot_see_is_not_quoted_by_the_offline_explainer(
    databases: Mapping[str, str], keys: Keys, tmp_path: Path, page: int
) -> None:
    first, second = "A tree is a connected graph without cycles.", "A heap is a tree of numbers."
    async with running_suite(databases, keys, tmp_path) as suite:
        for attack in ATTACKS[:4]:
            content = document(Sheet(text=first), Sheet(text=second, hidden=attack.text))
            generation = await explained(suite, content, page=page)
            assert generation.status == READY
            assert generation.stickers
            for one in generation.stickers:
                assert CANARY not in one.title + one.body_markdown + one.anchor.quote


async def test_a_model_that_obeys_still_publishes_nothing_that_acts(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker
) -> None:
    notes = [
        {"kind": "concept", "title": f"{n} {one}", "body_markdown": f"Read: {one}", "quote": one}
        for n, one in enumerate(PAYLOADS)
    ]
    model.always(fake.notes(*notes[:12]))
    async with start_worker():
        first = await explained(cluster, document(Sheet(text="A tree is a graph.")))
        model.always(fake.notes(*notes[12:24]))
        second = await explained(cluster, document(Sheet(text="A heap is a tree.")))

    stickers = [*first.stickers, *second.stickers]
    assert len(stickers) >= 20
    for sticker in stickers:
        assert not ACTS.search(f"{sticker.title} {sticker.body_markdown}"), sticker
        assert sticker.anchor.quote == ""
