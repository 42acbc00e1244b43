"""SQL of chunk plans: where a page was cut, and what has been made of its chunks so far."""

from dataclasses import asdict
from datetime import timedelta
from typing import Any
from uuid import UUID

from services.runtime.database import Database
from services.worker.chunks import ChunkPlan
from services.worker.domain import Box, Sticker, StickerKind

# A plan for another text is of no use: it is replaced, and its explanations go with it.
FORGET_OTHER_PLAN = """
DELETE FROM worker.chunk_plans WHERE generation_id = $1 AND text_digest <> $2
"""

# Another attempt may have planned meanwhile: its plan stays.
SAVE_PLAN = """
INSERT INTO worker.chunk_plans (generation_id, text_digest, chunk_ends)
VALUES ($1, $2, $3)
ON CONFLICT (generation_id) DO NOTHING
"""

GET_PLAN = """
SELECT text_digest, chunk_ends FROM worker.chunk_plans WHERE generation_id = $1
"""

LIST_EXPLAINED = """
SELECT chunk, stickers FROM worker.chunk_explanations WHERE generation_id = $1
"""

# An attempt that is late explained the same chunk of the same text: the first stays. One that is
# so late that the plan is gone has nothing to add.
SAVE_EXPLAINED = """
INSERT INTO worker.chunk_explanations (generation_id, chunk, stickers)
SELECT plan.generation_id, $3::integer, $4::jsonb
FROM worker.chunk_plans AS plan
WHERE plan.generation_id = $1 AND plan.text_digest = $2
FOR KEY SHARE
ON CONFLICT (generation_id, chunk) DO NOTHING
"""

FORGET_PLAN = "DELETE FROM worker.chunk_plans WHERE generation_id = $1"

PRUNE_PLANS = """
DELETE FROM worker.chunk_plans AS plan
WHERE plan.generation_id IN (
    SELECT old.generation_id FROM worker.chunk_plans AS old
    WHERE old.created_at < now() - $1::interval
    ORDER BY old.created_at LIMIT 1000
)
"""


class ChunkStore:
    """Plans of generations under way."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def resume(
        self, generation_id: UUID, plan: ChunkPlan
    ) -> tuple[ChunkPlan, dict[int, tuple[Sticker, ...]]]:
        """The plan that counts, the given one unless there is one for this text, and how far it is.

        An earlier version may have cut otherwise; what it explained is not paid for again.
        """
        async with self._database.transaction() as connection:
            await connection.execute(FORGET_OTHER_PLAN, generation_id, plan.text_digest)
            await connection.execute(SAVE_PLAN, generation_id, plan.text_digest, list(plan.ends))
            kept = await connection.fetchrow(GET_PLAN, generation_id)
            rows = await connection.fetch(LIST_EXPLAINED, generation_id)
        if kept is None:  # forgotten by somebody who ended the generation this very moment
            return plan, {}
        found = ChunkPlan(text_digest=kept["text_digest"], ends=tuple(kept["chunk_ends"]))
        return found, {row["chunk"]: _stickers(row["stickers"]) for row in rows}

    async def save_explained(
        self, generation_id: UUID, plan: ChunkPlan, chunk: int, stickers: tuple[Sticker, ...]
    ) -> None:
        values = [asdict(sticker) for sticker in stickers]
        async with self._database.connection() as connection:
            await connection.execute(SAVE_EXPLAINED, generation_id, plan.text_digest, chunk, values)

    async def forget(self, generation_id: UUID) -> None:
        async with self._database.connection() as connection:
            await connection.execute(FORGET_PLAN, generation_id)

    async def prune(self, older_than: timedelta) -> int:
        """Drops plans of generations that must have ended by now; some at a time."""
        async with self._database.connection() as connection:
            result = await connection.execute(PRUNE_PLANS, older_than)
        return int(result.rpartition(" ")[2])


def _stickers(values: list[dict[str, Any]]) -> tuple[Sticker, ...]:
    return tuple(
        Sticker(
            **{
                **value,
                "kind": StickerKind(value["kind"]),
                "box": Box(**value["box"]) if value["box"] else None,
            }
        )
        for value in values
    )
