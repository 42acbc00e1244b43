"""SQL for reading generations: by key, by id, and where they stand in the queue."""

from datetime import timedelta
from uuid import UUID

import asyncpg

from services.cache.domain import Generation, Key, Queue, Status, Sticker
from services.runtime.database import Database

# A part of statements, not one itself: lower case keeps it out of the list of statements.
generation_columns = """generation_id, kind, pdf_hash, page, prompt_version, locale, effective_mode,
       model, scope, status, stage, done, total, attempts, stickers, error_reason, error_message,
       created_at, completed_at"""

FIND_LIVE = f"""
SELECT {generation_columns}
FROM cache.generations
WHERE kind = $1 AND pdf_hash = $2 AND page = $3 AND prompt_version = $4 AND locale = $5
  AND effective_mode = $6 AND model = $7 AND scope = $8 AND status IN ('generating', 'ready')
"""

READ_GENERATION = f"""
SELECT {generation_columns}
FROM cache.generations
WHERE generation_id = $1
"""

# How many wait before this one (itself counted), and how many are being worked on. Counting stops
# at a thousand: nobody cares about the exact place beyond that.
READ_QUEUE = """
SELECT
    (SELECT count(*) FROM (
        SELECT 1 FROM cache.generations AS ahead
        WHERE ahead.status = 'generating'
          AND (ahead.leased_until IS NULL OR ahead.leased_until < now())
          AND (ahead.run_after, ahead.generation_id) <= (mine.run_after, mine.generation_id)
        LIMIT 1000
    ) AS queue) AS position,
    (SELECT count(*) FROM (
        SELECT 1 FROM cache.generations AS leased
        WHERE leased.status = 'generating' AND leased.leased_until >= now()
        LIMIT 1000
    ) AS working) AS working,
    mine.run_after - now() AS delay
FROM cache.generations AS mine
WHERE mine.generation_id = $1 AND mine.status = 'generating'
  AND (mine.leased_until IS NULL OR mine.leased_until < now())
"""


class GenerationStore:
    """Generations as readers see them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find_live(self, key: Key) -> Generation | None:
        async with self._database.connection() as connection:
            row = await connection.fetchrow(FIND_LIVE, *key_values(key))
        return generation_from(row) if row else None

    async def read_generation(self, generation_id: UUID) -> Generation | None:
        async with self._database.connection() as connection:
            row = await connection.fetchrow(READ_GENERATION, generation_id)
        return generation_from(row) if row else None

    async def read_queue(self, generation_id: UUID, *, seconds_each: float) -> Queue:
        """Place and expected wait, when a generation takes about `seconds_each`."""
        async with self._database.connection() as connection:
            row = await connection.fetchrow(READ_QUEUE, generation_id)
        if row is None:
            return Queue()
        wait = timedelta(seconds=seconds_each * row["position"] / max(1, row["working"]))
        return Queue(position=row["position"], estimated_wait=max(wait, row["delay"]))


def key_values(key: Key) -> tuple[str | int, ...]:
    return (
        key.kind,
        key.pdf_hash,
        key.page,
        key.prompt_version,
        key.locale,
        key.effective_mode,
        key.model,
        key.scope,
    )


def key_from(row: asyncpg.Record) -> Key:
    return Key(
        kind=row["kind"],
        pdf_hash=row["pdf_hash"],
        page=row["page"],
        prompt_version=row["prompt_version"],
        locale=row["locale"],
        effective_mode=row["effective_mode"],
        model=row["model"],
        scope=row["scope"],
    )


def generation_from(row: asyncpg.Record) -> Generation:
    return Generation(
        generation_id=row["generation_id"],
        key=key_from(row),
        status=Status(row["status"]),
        stage=row["stage"],
        done=row["done"],
        total=row["total"],
        attempts=row["attempts"],
        created_at=row["created_at"],
        completed_at=row["completed_at"],
        stickers=tuple(_sticker(item) for item in row["stickers"] or ()),
        error_reason=row["error_reason"],
        error_message=row["error_message"],
    )


def _sticker(item: dict[str, object]) -> Sticker:
    box = item.get("box")
    return Sticker(
        sticker_id=str(item["sticker_id"]),
        kind=str(item["kind"]),
        title=str(item["title"]),
        body_markdown=str(item["body_markdown"]),
        quote=str(item["quote"]),
        box=(box[0], box[1], box[2], box[3]) if isinstance(box, list) else None,
    )
