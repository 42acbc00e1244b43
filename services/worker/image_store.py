"""SQL of image summaries: what pictures show, kept for every page they stand on."""

from collections.abc import Sequence
from datetime import timedelta

from services.runtime.database import Database
from services.worker.domain import ImageSummary, ImageType

LIST_SUMMARIES = """
SELECT digest, image_type, ocr_text, alt_text, used_at < now() - interval '1 day' AS is_stale
FROM worker.image_summaries
WHERE digest = ANY ($1::text[]) AND prompt_version = $2 AND model = $3
  AND scope IN ('shared', $4)
"""

TOUCH_SUMMARIES = """
UPDATE worker.image_summaries
SET used_at = now()
WHERE digest = ANY ($1::text[]) AND prompt_version = $2 AND model = $3
  AND scope IN ('shared', $4)
"""

# Another process may have described it meanwhile: one description is as good as the other.
SAVE_SUMMARY = """
INSERT INTO worker.image_summaries (
    digest, prompt_version, model, scope, image_type, ocr_text, alt_text
)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (digest, prompt_version, model, scope) DO NOTHING
"""

PRUNE_SUMMARIES = """
DELETE FROM worker.image_summaries AS summary
WHERE (summary.digest, summary.prompt_version, summary.model, summary.scope) IN (
    SELECT old.digest, old.prompt_version, old.model, old.scope FROM worker.image_summaries AS old
    WHERE old.used_at < now() - $1::interval
    ORDER BY old.used_at LIMIT 1000
)
"""


class ImageStore:
    """Summaries made with one version of the prompts by one model."""

    def __init__(self, database: Database, *, prompt_version: str, model: str) -> None:
        self._database = database
        self._made_by = (prompt_version, model)

    async def list_summaries(self, digests: Sequence[str], scope: str) -> dict[str, ImageSummary]:
        """What is known to everybody, and to whose scope it is."""
        async with self._database.connection() as connection:
            rows = await connection.fetch(LIST_SUMMARIES, digests, *self._made_by, scope)
            stale = [row["digest"] for row in rows if row["is_stale"]]
            if stale:
                await connection.execute(TOUCH_SUMMARIES, stale, *self._made_by, scope)
        return {
            row["digest"]: ImageSummary(
                digest=row["digest"],
                image_type=ImageType(row["image_type"]),
                ocr_text=row["ocr_text"],
                alt_text=row["alt_text"],
            )
            for row in rows
        }

    async def save_summary(self, summary: ImageSummary, scope: str) -> None:
        async with self._database.connection() as connection:
            await connection.execute(
                SAVE_SUMMARY,
                summary.digest,
                *self._made_by,
                scope,
                summary.image_type.value,
                summary.ocr_text,
                summary.alt_text,
            )

    async def prune(self, unused_for: timedelta) -> int:
        """Drops what no page has asked for in so long a time; some at a time."""
        async with self._database.connection() as connection:
            result = await connection.execute(PRUNE_SUMMARIES, unused_for)
        return int(result.rpartition(" ")[2])
