"""`glossa migrate`: prepare the database of DATABASE_URL, or the embedded one, without serving."""

import json

from services.local.bootstrap import ensure_database, migrate_all, prepare_roles
from services.local.postgres import EmbeddedPostgres
from services.local.supervisor import DATABASE_NAME, SuitePlan, plan_from

STOP_IT = "it migrated its database when it started; stop it to migrate again"


async def run_migrate(*, as_json: bool) -> None:
    plan = plan_from()
    plan.state.prepare()
    if plan.database_url:
        applied = await _migrate(plan, plan.database_url)
    else:
        with plan.state.locked(next_step=STOP_IT):
            async with EmbeddedPostgres(plan.state.postgres) as postgres:
                admin_url = await ensure_database(postgres.url, DATABASE_NAME)
                applied = await _migrate(plan, admin_url)
    for schema, names in applied.items():
        if as_json:
            print(json.dumps({"type": "migrate", "schema": schema, "applied": names}))
        else:
            print(f"{schema}: {', '.join(names) or 'up to date'}")


async def _migrate(plan: SuitePlan, admin_url: str) -> dict[str, list[str]]:
    return await migrate_all(await prepare_roles(admin_url, plan.state.passwords()))
