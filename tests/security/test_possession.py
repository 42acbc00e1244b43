"""Nobody learns of what is not theirs: the id of another is answered like one nobody has.

Every RPC that users or gateways may call and that takes an id is attacked with an id of alice's and
with one nobody has; what comes back must be the same.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from uuid import uuid4

import grpc
import pytest
from glossa.cache.v1 import cache_pb2
from glossa.quota.v1 import quota_pb2
from glossa.registry.v1 import registry_pb2
from google.protobuf.message import Message

from tests.security.rpcs import RPCS, Told, call
from tests.security.scopes import ALLOWED
from tests.security.test_tokens import name_user
from tests.suite import Suite, lecture, metadata
from tests.worker.test_lease_loop import until_ended

PAGE = "Osmosis moves water through a membrane towards where more is dissolved in it."
IDS = {"pdf_hash", "file_id", "file_ids", "generation_id", "request_id", "ref_ids"}
# Fields that are no way to ask about what somebody else has.
NOT_A_QUESTION = {
    ("ExplainPage", "request_id"): "made up by the caller; reuse with other parameters is refused",
    ("ConvertDocument", "request_id"): "the same",
    ("RemoveReference", "ref_ids"): "of services alone, which made them; no owner is named",
    ("UploadDocument", "file_id"): "made up by the caller; replacing is tested below",
}


@dataclass(frozen=True, kw_only=True)
class Belongings:
    """Alice's ids by the fields they go into, and what nobody has."""

    theirs: dict[str, str]

    def unknown(self, field: str) -> str:
        return "0" * 64 if field == "pdf_hash" else str(uuid4())


@pytest.fixture(scope="module")
async def belongings(town: Suite) -> AsyncIterator[Belongings]:
    uploaded = await town.upload("alice", lecture(PAGE))
    asked = await town.explain("alice", uploaded.file.pdf_hash, request_id=str(uuid4()))
    await until_ended(town, asked.generation_id)
    yield Belongings(
        theirs={
            "pdf_hash": uploaded.file.pdf_hash,
            "file_id": uploaded.file.file_id,
            "file_ids": uploaded.file.file_id,
            "generation_id": asked.generation_id,
            "request_id": asked.request_id,
        }
    )
    kept = await town.registry.GetFile(
        registry_pb2.GetFileRequest(
            owner=registry_pb2.Owner(user_id="alice"), file_id=uploaded.file.file_id
        ),
        metadata=town.bearer(),
    )
    assert kept.file.pdf_hash == uploaded.file.pdf_hash, "no attack has removed it"


def questions() -> list[tuple[str, str]]:
    """RPC and field, wherever a user or a gateway can name something by its id."""
    return [
        (name, field.name)
        for name, rpc in RPCS.items()
        if ALLOWED[name] & {"user", "gateway"}
        for field in rpc.method.input_type.fields
        if field.name in IDS and (name, field.name) not in NOT_A_QUESTION
    ]


@pytest.mark.parametrize("scope", ["user", "gateway"])
@pytest.mark.parametrize(("name", "field"), questions())
async def test_anothers_id_is_answered_like_an_unknown_one(
    town: Suite, belongings: Belongings, name: str, field: str, scope: str
) -> None:
    if scope not in ALLOWED[name]:
        return
    if (name, scope) == ("CheckBudget", "gateway"):
        return  # what a document has cost is told to services on purpose, and to no user
    answers = [
        await ask(town, name, field, value, scope)
        for value in (belongings.theirs[field], belongings.unknown(field))
    ]

    assert answers[0] == answers[1]
    assert answers[0].code in {grpc.StatusCode.NOT_FOUND, grpc.StatusCode.OK}
    if answers[0].code is grpc.StatusCode.OK:
        assert name in {"BulkDeleteFiles", "CheckBudget"}, "the others have something to hide"


async def ask(town: Suite, name: str, field: str, value: str, scope: str) -> Told:
    """As bob, who has nothing."""
    request = filled(name)
    chosen = getattr(request, field)
    if isinstance(chosen, str):
        setattr(request, field, value)
    else:
        chosen.append(value)
    token = town.keys.user_token("bob") if scope == "user" else town.keys.token(scope)
    return await call(town, RPCS[name], request.SerializeToString(), metadata=metadata(token))


def filled(name: str) -> Message:
    """A request of bob's that lacks nothing but the id."""
    request = RPCS[name].request()
    assert name_user(request, "bob")
    usual = {"page": 1, "locale": "en", "ref_type": "lecture", "ref_id": str(uuid4())}
    for field, value in usual.items():
        if field in request.DESCRIPTOR.fields_by_name:
            setattr(request, field, value)
    if "pages" in request.DESCRIPTOR.fields_by_name:
        request.pages.append(1)  # type: ignore[attr-defined]
    return request


async def test_whoever_holds_it_is_answered_otherwise(town: Suite, belongings: Belongings) -> None:
    """So that the test above compares refusals, and not the same mistake in both requests."""
    for name, field in questions():
        request = filled(name)
        assert name_user(request, "alice")
        if name in {"DeleteFile", "BulkDeleteFiles", "AddReference"}:
            continue
        setattr(request, field, belongings.theirs[field])
        told = await call(town, RPCS[name], request.SerializeToString(), metadata=town.bearer())
        assert told.code is grpc.StatusCode.OK, f"{name} by {field}: {told.message}"


async def test_an_upload_that_claims_anothers_document_learns_nothing(
    town: Suite, belongings: Belongings
) -> None:
    """The hash counts only as what the bytes must have; claiming it gives no access to it."""

    async def claimed(pdf_hash: str) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await town.upload("bob", content, expected_pdf_hash=pdf_hash)
        return grpc.StatusCode(refused.value.code()), str(refused.value.details())

    content = lecture("Something else.")
    assert await claimed(belongings.theirs["pdf_hash"]) == await claimed("0" * 64)


async def test_replacing_anothers_file_is_answered_like_replacing_none(
    town: Suite, belongings: Belongings
) -> None:
    async def replaced(file_id: str) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await town.upload("bob", lecture("Mine now."), file_id=file_id, replace=True)
        return grpc.StatusCode(refused.value.code()), str(refused.value.details())

    answer = await replaced(belongings.theirs["file_id"])

    assert answer == await replaced(str(uuid4()))
    assert answer[0] is grpc.StatusCode.NOT_FOUND


async def test_what_a_user_does_not_share_is_served_to_nobody_else(town: Suite) -> None:
    """Bob holds the same document and asks the same thing, and still gets work of his own."""
    await town.quota.UpdatePreferences(
        quota_pb2.UpdatePreferencesRequest(user_id="carol", share_to_cache=False),
        metadata=town.bearer(),
    )
    content = lecture(PAGE.replace("water", "salt water"))
    pdf_hash = (await town.upload("carol", content)).file.pdf_hash
    await town.upload("dave", content)
    private = await town.explain("carol", pdf_hash)
    await until_ended(town, private.generation_id)

    asked = await town.explain("dave", pdf_hash)
    told = [
        await ask_as_dave(town, generation_id)
        for generation_id in (private.generation_id, str(uuid4()))
    ]

    assert asked.generation_id != private.generation_id
    assert asked.outcome == quota_pb2.OUTCOME_GENERATED
    assert told[0] == told[1]
    assert told[0].code is grpc.StatusCode.NOT_FOUND


async def ask_as_dave(town: Suite, generation_id: str) -> Told:
    request = cache_pb2.GetGenerationRequest(user_id="dave", generation_id=generation_id)
    bearer = metadata(town.keys.user_token("dave"))
    return await call(town, RPCS["GetGeneration"], request.SerializeToString(), metadata=bearer)


async def test_a_ledger_page_of_another_user_shows_ones_own_lines(
    town: Suite, belongings: Belongings
) -> None:
    request = quota_pb2.ListLedgerRequest(user_id="alice", page_size=1)
    page = await town.quota.ListLedger(request, metadata=town.bearer())
    assert page.next_page_token, "alice has more than one line"
    stolen = quota_pb2.ListLedgerRequest(user_id="bob", page_token=page.next_page_token)

    told = await town.quota.ListLedger(stolen, metadata=town.as_user("bob"))

    assert not told.entries
