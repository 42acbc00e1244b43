"""Every hostile PDF ends in a typed answer, costs at most children, and is not tried twice."""

from typing import Any

import pytest
from glossa.registry.v1 import registry_pb2 as pb

from tests.registry import hostile, pdfs
from tests.registry.client import Registry
from tests.registry.refusals import Refusal, refused
from tests.registry.test_files_and_pages import content_of
from tests.registry.test_upload import hash_of

READ = "read"


async def ending(action: Any) -> str:
    """The reason of a refusal, which must be typed, or "read"."""
    told = Refusal()
    try:
        with refused() as told:
            await action
    except pytest.fail.Exception:
        return READ
    assert told.code == "INVALID_ARGUMENT"
    assert told.reason in hostile.REFUSED
    return told.reason


@pytest.mark.parametrize("name", hostile.CORPUS)
async def test_a_hostile_pdf_ends_in_a_typed_answer(
    registry: Registry, someone: pb.Owner, name: str
) -> None:
    case = hostile.CORPUS[name]
    content = case.make()
    uploaded = await ending(registry.upload(content, someone))
    assert uploaded in case.upload
    if uploaded != READ:
        return
    request = pb.ResolvePageRequest(owner=someone, pdf_hash=hash_of(content), page=1)
    resolved = await ending(registry.call("ResolvePage", request))
    assert resolved in case.page
    # Remembered: the second answer is the first.
    assert await ending(registry.call("ResolvePage", request)) == resolved
    everything = content_of(
        registry.as_service("worker"),
        pdf_hash=hash_of(content),
        page=1,
        neighbours=2,
        include_images=True,
        include_render=True,
    )
    assert await ending(everything) in {resolved, *hostile.REFUSED}
    # And the service goes on.
    assert (await registry.upload(pdfs.unique_pdf(f"after {name}"), someone)).document.total_pages


async def test_hidden_text_is_flagged_for_those_who_decide(
    registry: Registry, someone: pb.Owner
) -> None:
    for make, flagged in ((hostile.hidden_injection, True), (hostile.visible_injection, False)):
        content = make()
        await registry.upload(content, someone)
        request = pb.ResolvePageRequest(owner=someone, pdf_hash=hash_of(content), page=1)
        assert (await registry.call("ResolvePage", request)).has_hidden_text == flagged
        worker = registry.as_service("worker")
        parts = await content_of(worker, pdf_hash=hash_of(content), page=1)
        assert parts[0].text.has_hidden_text == flagged
        assert hostile.INJECTION in parts[0].text.text.replace("\n", " ")


async def test_hidden_text_of_neighbours_is_flagged_though_nobody_has_looked_at_them(
    registry: Registry, someone: pb.Owner
) -> None:
    content = pdfs.joined(
        hostile.visible_injection(), hostile.hidden_injection(), hostile.visible_injection()
    )
    await registry.upload(content, someone)
    worker = registry.as_service("worker")
    for page, flags in ((1, {2: True}), (3, {2: True}), (2, {1: False, 3: False})):
        parts = await content_of(worker, pdf_hash=hash_of(content), page=page, neighbours=1)
        around = [part.neighbour for part in parts if part.HasField("neighbour")]
        assert {one.page: one.has_hidden_text for one in around} == flags
