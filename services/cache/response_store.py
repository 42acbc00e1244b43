"""SQL for responses kept for a while: found by key, counted exactly, forgotten in time."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from services.runtime.database import Database

# Counting and reading are one statement: every hit is counted, and none twice.
HIT_RESPONSE = """
UPDATE cache.ai_responses_cache
SET hit_count = hit_count + 1
WHERE cache_key = $1 AND expires_at > now()
RETURNING response, hit_count, expires_at
"""

STORE_RESPONSE = """
INSERT INTO cache.ai_responses_cache (cache_key, operation, scope, response, expires_at)
VALUES ($1, $2, $3, $4, now() + $5::interval)
ON CONFLICT (cache_key) DO UPDATE
SET response = excluded.response, expires_at = excluded.expires_at, created_at = now(),
    hit_count = 0
RETURNING expires_at
"""

DELETE_RESPONSES = """
DELETE FROM cache.ai_responses_cache
WHERE operation = $1 AND ($2::text IS NULL OR scope = $2) AND ($3::text IS NULL OR cache_key = $3)
"""

DELETE_EXPIRED_RESPONSES = """
DELETE FROM cache.ai_responses_cache
WHERE cache_key IN (
    SELECT cache_key FROM cache.ai_responses_cache WHERE expires_at <= now() LIMIT 1000
)
"""


@dataclass(frozen=True, kw_only=True)
class KeptResponse:
    """A response that was found."""

    response: bytes
    hit_count: int
    expires_at: datetime


class ResponseStore:
    """The TTL response cache."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def hit_response(self, cache_key: str) -> KeptResponse | None:
        async with self._database.connection() as connection:
            row = await connection.fetchrow(HIT_RESPONSE, cache_key)
        return KeptResponse(**row) if row else None

    async def store_response(
        self, cache_key: str, *, operation: str, scope: str, response: bytes, ttl: timedelta
    ) -> datetime:
        """Keep it, in the place of an older one; answers until when."""
        async with self._database.connection() as connection:
            expires_at: datetime = await connection.fetchval(
                STORE_RESPONSE, cache_key, operation, scope, response, ttl
            )
        return expires_at

    async def delete_responses(
        self, operation: str, *, scope: str | None, cache_key: str | None
    ) -> int:
        return await self._delete(DELETE_RESPONSES, operation, scope, cache_key)

    async def delete_expired(self) -> int:
        return await self._delete(DELETE_EXPIRED_RESPONSES)

    async def _delete(self, statement: str, *values: str | None) -> int:
        async with self._database.connection() as connection:
            tag = await connection.execute(statement, *values)
        return int(tag.rpartition(" ")[2])
