"""Delivers refunds from the outbox to Quota until they are acknowledged."""

import structlog

from services.cache.clients import QuotaClient
from services.cache.request_store import RequestStore

log = structlog.get_logger()

BATCH = 500


class Relay:
    """One pass over the outbox. Delivering twice is harmless: Quota settles each refund once."""

    def __init__(self, *, requests: RequestStore, quota: QuotaClient) -> None:
        self._requests = requests
        self._quota = quota

    async def run_once(self) -> None:
        while refunds := await self._requests.read_refunds(BATCH):
            await self._quota.refund_many(refunds)
            await self._requests.delete_refunds([refund.outbox_id for refund in refunds])
            log.info("refunds_delivered", count=len(refunds))
