"""Holds what clients were told against what the database says."""

import asyncpg
from glossa.cache.v1 import cache_pb2
from glossa.quota.v1 import quota_pb2

from tests.faults.client import Acknowledged, Log
from tests.faults.house import PRICES, House

CHARGES = """
SELECT request_id::text, user_id, outcome, quota_units, status, generation_id::text,
       (SELECT count(*) FROM quota.ledger_entries AS entry
        WHERE entry.request_id = charge.request_id AND entry.kind = 'charge') AS charges
FROM quota.explain_requests AS charge WHERE request_id = ANY($1::uuid[])
"""
GENERATIONS = """
SELECT generation_id::text, status FROM cache.generations WHERE generation_id = ANY($1::uuid[])
"""
STATUSES: dict[int, str] = {
    cache_pb2.GENERATION_STATUS_READY: "ready",
    cache_pb2.GENERATION_STATUS_FAILED: "failed",
}
OUTCOMES: dict[int, str] = {
    quota_pb2.OUTCOME_GENERATED: "generated",
    quota_pb2.OUTCOME_CACHED: "cached",
    quota_pb2.OUTCOME_JOINED: "joined",
}


async def find_differences(house: House, log: Log) -> list[str]:
    """Whatever was acknowledged and is not so; nothing when all is well."""
    ids = [known.ask.request_id for known in log.acknowledged]
    charges = {row["request_id"]: row for row in await house.rows(CHARGES, ids + log.given_up)}
    wanted = [known.generation_id for known in log.acknowledged]
    generations = {
        row["generation_id"]: row["status"] for row in await house.rows(GENERATIONS, wanted)
    }
    found = [
        f"{known.ask.request_id} of {known.ask.user}: {difference}"
        for known in log.acknowledged
        for difference in _differences(
            known, charges.get(known.ask.request_id), generations.get(known.generation_id)
        )
    ]
    # Who was never answered does not pay.
    found += [
        f"{request_id} was given up and is {charges[request_id]['status']}"
        for request_id in log.given_up
        if request_id in charges and charges[request_id]["status"] == "charged"
    ]
    return found


def _differences(
    known: Acknowledged, charge: asyncpg.Record | None, status: str | None
) -> list[str]:
    if charge is None:
        return ["acknowledged, and not in the ledger"]
    if status is None:
        return [f"generation {known.generation_id} is gone"]
    found = []
    if status != STATUSES.get(known.status):
        found.append(f"was told {STATUSES.get(known.status)}, and it is {status}")
    if charge["user_id"] != known.ask.user:
        found.append(f"charged to {charge['user_id']}")
    if charge["charges"] != 1:
        found.append(f"charged {charge['charges']} times")
    expected = "charged" if status == "ready" else "refunded"
    if charge["status"] != expected and charge["quota_units"]:
        found.append(f"{status}, and {charge['status']}")
    if known.outcome in OUTCOMES and OUTCOMES[known.outcome] != charge["outcome"]:
        found.append(f"was told {OUTCOMES[known.outcome]}, charged as {charge['outcome']}")
    if charge["quota_units"] != PRICES[charge["outcome"]]:
        found.append(f"{charge['outcome']} for {charge['quota_units']} units")
    return found
