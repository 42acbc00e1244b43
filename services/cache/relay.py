"""Delivers refunds from the outbox to Quota until they are acknowledged."""

import structlog

from services.cache.clients import QuotaClient
from services.cache.domain import Refund
from services.cache.outbox_store import OutboxStore
from services.runtime.errors import DependencyFailed, RelayedError

log = structlog.get_logger()

BATCH = 200


class Relay:
    """One pass over the outbox. Delivering twice is harmless: Quota settles each refund once."""

    def __init__(self, *, outbox: OutboxStore, quota: QuotaClient) -> None:
        self._outbox = outbox
        self._quota = quota

    async def run_once(self) -> None:
        """Deliver what is due, in order; a refund that Quota refuses does not hold up others."""
        after = 0
        while refunds := await self._outbox.read_refunds(after=after, limit=BATCH):
            delivered = await self._deliver(refunds)
            await self._outbox.delete_refunds([refund.outbox_id for refund in delivered])
            refused = len(refunds) - len(delivered)
            log.info("refunds_delivered", count=len(delivered), refused=refused)
            after = refunds[-1].outbox_id

    async def _deliver(self, refunds: list[Refund]) -> list[Refund]:
        try:
            await self._quota.refund_many(refunds)
        except (RelayedError, DependencyFailed):
            # One of them is poison: alone, each is delivered or fails for itself.
            return [refund for refund in refunds if await self._delivered_alone(refund)]
        return refunds

    async def _delivered_alone(self, refund: Refund) -> bool:
        try:
            await self._quota.refund_many([refund])
        except (RelayedError, DependencyFailed) as error:
            log.warning("refund_refused", charge=str(refund.request_id), reason=error.reason)
            return False
        return True
