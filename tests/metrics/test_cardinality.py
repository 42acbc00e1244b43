"""However many users and documents there are, there are as many series as before."""

import asyncio
from collections.abc import Sequence
from hashlib import sha256
from uuid import uuid4

import grpc
import pytest
from glossa.cache.v1 import cache_pb2
from glossa.quota.v1 import quota_pb2

from services.registry.page_identity import FINGERPRINT_VERSION
from services.runtime.settings import OFFLINE_MODEL, PROMPT_VERSION
from tests.metrics.conftest import Metered, hit

CROWD = 1000
AT_ONCE = 50

# Documents with one page, each held by a user of its own, and explained already.
SEED = """
WITH crowd AS (
    SELECT user_id, pdf_hash FROM unnest($1::text[], $2::text[]) AS one (user_id, pdf_hash)
), documents AS (
    INSERT INTO registry.canonical_documents
        (pdf_hash, size_bytes, total_pages, reference_count, unreferenced_at, processed_at)
    SELECT pdf_hash, 10, 1, 1, NULL, now() FROM crowd
), files AS (
    INSERT INTO registry.files (file_id, user_id, content_hash, filename, size_bytes)
    SELECT gen_random_uuid(), user_id, pdf_hash, 'a.pdf', 10 FROM crowd
), pages AS (
    INSERT INTO registry.canonical_page_metadata
        (pdf_hash, page, word_count, images_count, is_scanned, has_hidden_text, fingerprint)
    SELECT pdf_hash, 1, 1, 0, FALSE, FALSE, $3 || ':' || pdf_hash FROM crowd
)
INSERT INTO cache.generations
    (kind, pdf_hash, page, prompt_version, locale, effective_mode, model, scope, images_count,
     status, stage, result, completed_at, turn)
SELECT 'page_explanation', pdf_hash, 1, $4, 'en', 'text_only', $5, 'shared', 0, 'ready', 'ready',
       ''::bytea, now(), NULL
FROM crowd
"""


def document(user: str) -> str:
    return sha256(user.encode()).hexdigest()


async def visit(metered: Metered, users: Sequence[str]) -> None:
    """Everything one may cheaply ask for, each user for a document of its own."""
    documents = [document(user) for user in users]
    await metered.admin.execute(
        SEED, users, documents, FINGERPRINT_VERSION, PROMPT_VERSION, OFFLINE_MODEL
    )
    charges = [hit(user, document(user)) for user in users]
    request = quota_pb2.AdmitManyRequest(requests=charges)
    admitted = await metered.suite.quota.AdmitMany(request, metadata=metered.suite.bearer("cache"))
    assert {one.decision for one in admitted.responses} == {quota_pb2.DECISION_ADMITTED}
    for start in range(0, len(users), AT_ONCE):
        some = users[start : start + AT_ONCE]
        await asyncio.gather(*(visit_as(metered, user) for user in some))


async def visit_as(metered: Metered, user: str) -> None:
    suite = metered.suite
    answer = await suite.explain(user, document(user))
    assert answer.outcome == quota_pb2.OUTCOME_CACHED
    await suite.quota.GetQuotaStatus(
        quota_pb2.GetQuotaStatusRequest(user_id=user), metadata=suite.as_user(user)
    )
    unknown = cache_pb2.ExplainPageRequest(
        user_id=user, pdf_hash=document(f"not {user}"), page=1, locale="en"
    )
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await suite.cache.ExplainPage(unknown, metadata=suite.bearer())
    assert refused.value.code() == grpc.StatusCode.NOT_FOUND


async def test_a_thousand_users_and_documents_add_no_series(metered: Metered) -> None:
    await metered.explain_and_wait("first")
    await visit(metered, ["second"])
    before = await metered.series()

    await visit(metered, [f"user-{uuid4().hex}" for _ in range(CROWD)])

    more = await metered.series() - before
    # The garbage collector and the like are not ours.
    assert {one for one in more if one[0].startswith("glossa_")} == set()
    assert len(before) < 2500
