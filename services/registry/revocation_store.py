"""SQL about revocations: which documents lost a reference, in an order nobody can miss."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta

from services.runtime.database import Connection, Database

_CHANNEL = "registry_revocations"

# Kept until the transaction ends: a smaller number can never become visible after a larger one.
LOCK_REVOCATIONS = "SELECT pg_advisory_xact_lock(hashtextextended('registry:revocations', 0))"

ADD_REVOCATIONS = """
INSERT INTO registry.revocations (pdf_hash)
SELECT unnest($1::text[])
"""

# A hint only: whoever does not hear it finds the rows at its next look.
NOTIFY_REVOCATIONS = f"SELECT pg_notify('{_CHANNEL}', '')"

GET_NEWEST_REVOCATION = """
SELECT coalesce(max(revocation.revocation_id), 0)
FROM registry.revocations AS revocation
"""

LIST_REVOCATIONS = """
SELECT revocation.revocation_id, revocation.pdf_hash
FROM registry.revocations AS revocation
WHERE revocation.revocation_id > $1
ORDER BY revocation.revocation_id
LIMIT $2
"""

PRUNE_REVOCATIONS = """
DELETE FROM registry.revocations AS revocation
WHERE revocation.revoked_at < now() - $1::interval
"""


@dataclass(frozen=True, kw_only=True)
class Revocation:
    """A document lost a reference."""

    revocation_id: int
    pdf_hash: str


class RevocationStore:
    """Reads what `add_revocations` wrote."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get_newest_revocation(self) -> int:
        """The number up to which everything has happened already."""
        async with self._database.connection() as connection:
            return int(await connection.fetchval(GET_NEWEST_REVOCATION))

    async def list_revocations(self, *, after: int, most: int) -> list[Revocation]:
        """What happened since, oldest first."""
        async with self._database.connection() as connection:
            rows = await connection.fetch(LIST_REVOCATIONS, after, most)
        return [Revocation(**dict(row)) for row in rows]

    async def prune_revocations(self, *, older_than: timedelta) -> None:
        """Forget what every watcher has heard long ago."""
        async with self._database.connection() as connection:
            await connection.execute(PRUNE_REVOCATIONS, older_than)

    async def listen(self, on_revocation: Callable[[], None]) -> None:
        """Call `on_revocation` whenever there may be news, until the connection is lost."""
        lost = asyncio.Event()

        def hear(*_: object) -> None:
            on_revocation()

        async with self._database.connection() as connection:
            connection.add_termination_listener(lambda _: lost.set())
            await connection.add_listener(_CHANNEL, hear)
            try:
                await lost.wait()
            finally:
                await connection.remove_listener(_CHANNEL, hear)


async def add_revocations(connection: Connection, pdf_hashes: Collection[str]) -> None:
    """Last in a transaction that removes references: nothing may be waited for after the lock."""
    await connection.execute(LOCK_REVOCATIONS)
    await connection.execute(ADD_REVOCATIONS, list(pdf_hashes))
    await connection.execute(NOTIFY_REVOCATIONS)
