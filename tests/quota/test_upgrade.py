"""A ledger of the first version goes on under the newest migrations."""

import shutil
from pathlib import Path
from uuid import uuid4

import asyncpg

from services.doctor.examine import find_violations
from services.local.bootstrap import PROJECT, ensure_database, prepare_roles
from services.quota.store import QuotaStore
from services.runtime.database import open_database
from services.runtime.migrate import migrate
from tests.conftest import PASSWORDS
from tests.quota.test_windows import RULES, request_of

MIGRATIONS = PROJECT / "services" / "quota" / "migrations"
FIRST = ("0001_create_ledger.sql", "0002_create_windows.sql")

# Alice has paid for one page and was let in three times just now.
OLD_ROWS = """
INSERT INTO quota.accounts (user_id, balance_units, period_ends_at)
VALUES ('alice', 999, now() + interval '1 day');
INSERT INTO quota.explain_requests
    (request_id, user_id, endpoint, outcome, pdf_hash, page, locale, effective_mode,
     quota_units, status)
VALUES ('00000000-0000-4000-8000-000000000001', 'alice', 'explain_page', 'cached', repeat('a', 64),
        1, 'en', 'text_only', 1, 'charged');
INSERT INTO quota.ledger_entries (user_id, kind, units, reason) VALUES ('alice', 'grant', 1000, '');
INSERT INTO quota.ledger_entries (user_id, request_id, kind, units, reason)
VALUES ('alice', '00000000-0000-4000-8000-000000000001', 'charge', -1, 'cached');
INSERT INTO quota.ai_request_log (user_id, endpoint, admitted_at)
SELECT 'alice', 'explain_page', now() - interval '1 second' * n FROM generate_series(1, 3) AS n;
"""


async def test_a_ledger_of_the_first_version_goes_on(template: str, tmp_path: Path) -> None:
    admin_url = await ensure_database(template, f"test_{uuid4().hex}")
    url = (await prepare_roles(admin_url, PASSWORDS))["quota"]
    for name in FIRST:
        shutil.copy(MIGRATIONS / name, tmp_path)
    await migrate(url, schema="quota", folder=tmp_path)
    connection = await asyncpg.connect(url)
    await connection.execute(OLD_ROWS)

    await migrate(url, schema="quota", folder=MIGRATIONS)

    async with open_database(url, application_name="test") as database:
        [answer] = await QuotaStore(database, RULES).admit_many([request_of()])
    assert (answer.decision, answer.remaining_units) == ("admitted", 998)
    assert {limit.tier: limit.used for limit in answer.limits} == {"soft": 4, "hard": 4, "daily": 4}
    assert await find_violations(connection, only={"quota"}) == {}
    await connection.close()
