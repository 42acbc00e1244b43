"""Explain a page: from the cache, by joining work under way, or by starting it.

Charge and enqueue are atomic in effect though two services own them. The order is what makes it so:
write the intent, charge, attach. Whatever stops us in between leaves an intent that the sweep finds
and refunds, and every refund that becomes due is written in the transaction that makes it due.
"""

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

import structlog

from services.cache.attach_store import AttachStore
from services.cache.clients import Admission, Decision, Limits, QuotaClient, Receipt
from services.cache.domain import (
    DOCUMENT_MARKDOWN,
    Ask,
    Attached,
    Generation,
    GenerationNotFound,
    Key,
    Lane,
    Outcome,
    Queue,
    Request,
    RequestIdDead,
    RequestIdReused,
    RequestInProgress,
    RequestState,
    ResolvedPage,
    Status,
    generation_started_by,
    scope_of,
    version_of,
)
from services.cache.generation_store import GenerationStore
from services.cache.job_domain import Clocks
from services.cache.memory import ReadyMemory, ReadyResult, ShareMemory
from services.cache.metrics import ANSWERED, LOCK_FAILURES, count_refusal
from services.cache.outbox_store import OutboxStore
from services.cache.queue import JobBell, Pace
from services.cache.refusals import PreferenceChanged, Refused, dead, require_admitted, reused
from services.cache.request_store import RequestStore
from services.cache.resolve import ResolvePage
from services.cache.samples import Samples
from services.runtime.errors import DependencyDown, GlossaError
from services.runtime.settings import ExplanationSettings
from services.runtime.single_flight import SingleFlight

log = structlog.get_logger()

# How long a call waits for another one that serves the same request_id.
WAIT_FOR_TWIN_SECONDS = 2.0
TWIN_POLL_SECONDS = 0.02
# A user may change the mind while we look; nobody changes it every millisecond.
MOST_SCOPES_TRIED = 3

ATTACH_FAILURES = LOCK_FAILURES.labels("attach")

# A result as it goes over the wire.
Prepare = Callable[[Generation], bytes]


class Answer(NamedTuple):
    """What the caller is told; `result` is prepared for the wire."""

    request_id: UUID
    generation_id: UUID
    status: Status
    model: str
    outcome: Outcome
    receipt: Receipt
    limits: Limits
    queue: Queue
    result: bytes = b""
    stale: bool = False
    error: tuple[str, str] | None = None


class ExplainPage:
    """The use case behind CacheService.ExplainPage, and ConvertDocument: only the kind differs."""

    def __init__(
        self,
        *,
        pages: ResolvePage,
        quota: QuotaClient,
        requests: RequestStore,
        attaching: AttachStore,
        outbox: OutboxStore,
        generations: GenerationStore,
        ready: ReadyMemory,
        shares: ShareMemory,
        prepare: Prepare,
        bell: JobBell,
        pace: Pace,
        clocks: Clocks,
        settings: ExplanationSettings,
        samples: Samples,
    ) -> None:
        self._pages = pages
        self._quota = quota
        self._requests = requests
        self._attaching = attaching
        self._outbox = outbox
        self._generations = generations
        self._ready = ready
        self._shares = shares
        self._prepare = prepare
        self._bell = bell
        self._pace = pace
        self._clocks = clocks
        self._settings = settings
        self._samples = samples
        self._looks: SingleFlight[Key, Generation | None] = SingleFlight()
        self._places: SingleFlight[UUID, Queue] = SingleFlight()

    async def explain(self, ask: Ask) -> Answer:
        try:
            answer = await self._explain(ask)
        except GlossaError as error:
            count_refusal(error.reason)
            raise
        ANSWERED[answer.outcome].inc()
        return answer

    async def _explain(self, ask: Ask) -> Answer:
        page = await self._pages.resolve(ask)
        if ask.kind == DOCUMENT_MARKDOWN:
            page = page.as_document()
        for _ in range(MOST_SCOPES_TRIED):
            shares = self._shares.shares(ask.user_id)
            try:
                return await self._explain_in(scope_of(ask.user_id, shares=shares), ask, page)
            except PreferenceChanged as changed:
                self._shares.learn(ask.user_id, shares=changed.shares)
        raise RequestInProgress

    async def _explain_in(self, scope: str, ask: Ask, page: ResolvedPage) -> Answer:
        if not ask.id_is_new and await self._requests.read_request(ask.request_id) is not None:
            return await self._answer_again(ask, page)
        key = self._key(ask, page, scope)
        if (result := self._ready.get(key)) is not None:
            return await self._serve_cached(ask, page, scope, result)
        # A crowd asks the same at once: one look is enough for all who wait for it.
        generation = await self._looks.run(key, lambda: self._find(key, page))
        if generation is not None and generation.status is Status.READY:
            return await self._serve_cached(ask, page, scope, self._remember(generation))
        if generation is not None and generation.status is Status.FAILED:
            # Nothing is bought, so nothing is charged and the request_id is not used up.
            free = Admission(decision=Decision.ADMITTED)
            return await self._answer(ask, generation, Outcome.CACHED, free)
        return await self._start_or_join(ask, page, scope, generation)

    async def _find(self, key: Key, page: ResolvedPage) -> Generation | None:
        """The live generation of this page, or its like in another file, or a late failure."""
        return (
            await self._generations.find_live(key)
            or await self._generations.adopt_twin(key, page.context_fingerprint)
            or await self._generations.find_remembered_failure(key, self._clocks.remember_failure)
        )

    async def _serve_cached(
        self, ask: Ask, page: ResolvedPage, scope: str, result: ReadyResult
    ) -> Answer:
        """A ready result needs no intent: the charge names it, and whoever paid can fetch it."""
        admission = await self._quota.admit(
            ask, page, scope=scope, outcome=Outcome.CACHED, generation_id=result.generation_id
        )
        require_admitted(ask, admission)
        if admission.decision is Decision.REPLAYED:
            bought_otherwise = admission.outcome is not Outcome.CACHED
            if bought_otherwise and await self._requests.read_request(ask.request_id) is not None:
                # The charge is a twin's, made under an intent: that is what must be gone on with.
                return await self._answer_again(ask, page)
            return await self._answer_from_ledger(ask, admission, result.generation_id)
        self._samples.note_hit(ask, page)
        return Answer(
            request_id=ask.request_id,
            generation_id=result.generation_id,
            status=Status.READY,
            model=result.model,
            outcome=Outcome.CACHED,
            receipt=admission.receipt,
            limits=admission.limits,
            queue=Queue(),
            result=result.prepared,
        )

    async def _start_or_join(
        self, ask: Ask, page: ResolvedPage, scope: str, generation: Generation | None
    ) -> Answer:
        request = await self._requests.open_intent(
            ask,
            page,
            scope=scope,
            outcome=Outcome.JOINED if generation else Outcome.GENERATED,
            generation_id=generation.generation_id if generation else None,
        )
        if request is None:
            return await self._answer_again(ask, page)
        try:
            return await self._charge_and_attach(ask, page, request)
        except (Refused, RequestIdReused, RequestIdDead, PreferenceChanged):
            # Nobody else has charged under this intent, so it may vanish without a trace.
            await self._requests.drop_intent(request.request_id, request.nonce)
            raise

    async def _charge_and_attach(self, ask: Ask, page: ResolvedPage, request: Request) -> Answer:
        admission = await self._charge(ask, page, request)
        if admission.outcome is Outcome.CACHED:
            # Paid for as a hit that is no longer live: it still gets what it paid for.
            await self._requests.drop_intent(request.request_id, request.nonce)
            return await self._answer_from_ledger(ask, admission, None)
        if served := await self._served_long_ago(request, admission):
            await self._requests.drop_intent(request.request_id, request.nonce)
            return await self._answer(ask, served, Outcome.REPLAYED, admission)
        with ATTACH_FAILURES.count_exceptions(DependencyDown):
            attached = await self._attach(ask, page, request, admission.receipt.units)
        if attached is None:  # we took too long, and somebody has gone on with it
            return await self._answer_again(ask, page, may_take_over=False)
        return await self._answer_attached(ask, attached, admission)

    async def _served_long_ago(self, request: Request, admission: Admission) -> Generation | None:
        """What this id bought before its request was forgotten; the ledger remembers longer.

        An intent that was never attached cannot have started its generation, and is charged for
        what it says: whatever differs from that was bought by a request that is gone.
        """
        differs = admission.outcome is Outcome.GENERATED or admission.outcome is not request.outcome
        bought = admission.generation_id
        if admission.decision is not Decision.REPLAYED or not differs or bought is None:
            return None
        return await self._generations.read_generation(bought)

    async def _attach(
        self, ask: Ask, page: ResolvedPage, request: Request, units: int
    ) -> Attached | None:
        if request.outcome is Outcome.JOINED:
            assert request.generation_id is not None
            return await self._attaching.join(
                request.request_id,
                nonce=request.nonce,
                generation_id=request.generation_id,
                units=units,
            )
        return await self._attaching.attach(
            request.request_id,
            nonce=request.nonce,
            key=self._key(ask, page, request.scope),
            page=page,
            units=units,
        )

    async def _charge(self, ask: Ask, page: ResolvedPage, request: Request) -> Admission:
        try:
            admission = await self._quota.admit(
                ask,
                page,
                scope=request.scope,
                outcome=request.outcome,
                generation_id=_bought(request),
            )
        except DependencyDown:
            # The charge may have landed: the intent stays, for a retry or for the sweep to undo.
            await self._requests.give_up_intent(request.request_id, request.nonce)
            raise
        require_admitted(ask, admission)
        return admission

    async def _answer_attached(self, ask: Ask, attached: Attached, admission: Admission) -> Answer:
        if attached.created:
            self._bell.ring()
        elif attached.generation.status is Status.GENERATING:
            await self._note_joined(ask, attached.generation)
        receipt = admission.receipt
        if attached.refund is not None:
            receipt = await self._settle_now(attached, receipt)
        answer = await self._answer(ask, attached.generation, attached.outcome, admission)
        return answer._replace(receipt=receipt)

    async def _note_joined(self, ask: Ask, generation: Generation) -> None:
        log.info("lock_skipped_duplicate", generation=str(generation.generation_id))
        if generation.lane is Lane.BACKGROUND and not ask.background:
            await self._attaching.lift(generation.generation_id)
            self._bell.ring()

    async def _settle_now(self, attached: Attached, receipt: Receipt) -> Receipt:
        """Deliver the refund before answering, so that the receipt is right, or let the relay."""
        assert attached.refund is not None
        try:
            receipt = await self._quota.refund(attached.refund)
            await self._outbox.delete_refunds([attached.refund.outbox_id])
        except GlossaError as error:
            log.warning("refund_left_to_the_relay", reason=error.reason)
        return receipt

    async def _answer_again(
        self, ask: Ask, page: ResolvedPage, *, may_take_over: bool = True
    ) -> Answer:
        """The same request_id again: the same answer, or the rest of what a broken call began."""
        stop_at = time.monotonic() + WAIT_FOR_TWIN_SECONDS
        while time.monotonic() < stop_at:
            request = await self._requests.read_request(ask.request_id)
            if request is None:  # a twin was refused a moment ago and took its intent away
                break
            if not request.is_for(ask, page):
                raise reused()
            if request.state is not RequestState.INTENT:
                return await self._replay(ask, page, request)
            taken = may_take_over and await self._requests.take_over_intent(ask.request_id)
            if taken:
                return await self._go_on_with(ask, page, taken)
            await asyncio.sleep(TWIN_POLL_SECONDS)
        raise RequestInProgress

    async def _go_on_with(self, ask: Ask, page: ResolvedPage, taken: Request) -> Answer:
        try:
            return await self._charge_and_attach(ask, page, taken)
        except PreferenceChanged:
            # Whether its former holder was charged in the other scope is not known: the sweep
            # undoes it.
            await self._requests.give_up_intent(taken.request_id, taken.nonce)
            raise RequestInProgress from None
        except (Refused, RequestIdReused, RequestIdDead):
            # It stays, for a charge of its former holder may still land; but nobody holds it now.
            await self._requests.give_up_intent(taken.request_id, taken.nonce)
            raise

    async def _replay(self, ask: Ask, page: ResolvedPage, request: Request) -> Answer:
        if request.state is RequestState.ABORTED:
            return await self._replay_aborted(ask, page, request)
        assert request.generation_id is not None
        generation = await self._generations.read_generation(request.generation_id)
        if generation is None:
            raise dead()
        admission = await self._receipt_of(ask, page, request)
        return await self._answer(ask, generation, Outcome.REPLAYED, admission)

    async def _replay_aborted(self, ask: Ask, page: ResolvedPage, request: Request) -> Answer:
        """Its twin may have been served as a hit: what is paid for can be read, the rest is dead.

        If this is the first charge to arrive, the refund that is due undoes it.
        """
        admission = await self._quota.admit(
            ask, page, scope=request.scope, outcome=request.outcome, generation_id=_bought(request)
        )
        if admission.outcome is not Outcome.CACHED:
            raise dead()
        return await self._answer_from_ledger(ask, admission, None)

    async def _receipt_of(self, ask: Ask, page: ResolvedPage, request: Request) -> Admission:
        """What was paid, from the ledger; what is paid for can be read even while Quota is away."""
        try:
            return await self._quota.admit(
                ask,
                page,
                scope=request.scope,
                outcome=request.outcome,
                generation_id=_bought(request),
            )
        except DependencyDown:
            return Admission(decision=Decision.REPLAYED)

    async def _answer_from_ledger(
        self, ask: Ask, admission: Admission, current: UUID | None
    ) -> Answer:
        """A replayed hit: the generation that was paid for, if it is still there."""
        generation = None
        for generation_id in (admission.generation_id, current):
            if generation is None and generation_id is not None:
                generation = await self._generations.read_generation(generation_id)
        if generation is None:
            raise GenerationNotFound("the explanation that was paid for is no longer kept")
        return await self._answer(ask, generation, Outcome.REPLAYED, admission)

    async def _answer(
        self, ask: Ask, generation: Generation, outcome: Outcome, admission: Admission
    ) -> Answer:
        queue = Queue()
        shown: Generation | None = generation
        if generation.status is Status.GENERATING:
            queue = await self._place(generation.generation_id)
            shown = await self._generations.find_stale(generation.key) if ask.allow_stale else None
        failed = generation.status is Status.FAILED
        return Answer(
            request_id=ask.request_id,
            generation_id=generation.generation_id,
            status=generation.status,
            model=generation.key.model,
            outcome=outcome,
            receipt=admission.receipt,
            limits=admission.limits,
            result=self._prepare(shown) if shown else b"",
            stale=shown is not None and shown is not generation,
            error=(generation.error_reason or "", generation.error_message or "")
            if failed
            else None,
            queue=queue,
        )

    async def _place(self, generation_id: UUID) -> Queue:
        return await self._places.run(
            generation_id,
            lambda: self._generations.read_queue(generation_id, seconds_each=self._pace.seconds),
        )

    def _remember(self, generation: Generation) -> ReadyResult:
        result = ReadyResult(
            generation_id=generation.generation_id,
            model=generation.key.model,
            prepared=self._prepare(generation),
        )
        self._ready.add(generation.key, result)
        return result

    def _key(self, ask: Ask, page: ResolvedPage, scope: str) -> Key:
        return Key(
            kind=ask.kind,
            pdf_hash=page.pdf_hash,
            page=page.page,
            prompt_version=version_of(ask.kind, prompt_version=self._settings.prompt_version),
            locale=ask.locale,
            effective_mode=page.effective_mode,
            model=self._settings.model_name,
            scope=scope,
        )


def _bought(request: Request) -> UUID:
    """The generation a charge names: the one it joins, or the one it will start."""
    return request.generation_id or generation_started_by(request.request_id)
