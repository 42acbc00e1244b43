"""The invariants as SQL: each file must return no row when all is well."""

from pathlib import Path
from typing import Any

import asyncpg

FOLDER = Path(__file__).with_name("invariants")


async def find_broken(
    admin: "asyncpg.Connection[Any]", *, grace: str = "0"
) -> dict[str, list[str]]:
    """What does not hold, by the name of its file; `grace` is how long recovery may take."""
    broken = {}
    async with admin.transaction():
        await admin.execute("SELECT set_config('glossa.grace', $1, true)", grace)
        for file in sorted(FOLDER.glob("*.sql")):
            rows = await admin.fetch(file.read_text())
            if rows:
                broken[file.stem] = [str(dict(row)) for row in rows]
    return broken
