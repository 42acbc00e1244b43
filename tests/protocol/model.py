"""Cache, Quota and the network between them, in which everything may go wrong at every step."""

from dataclasses import dataclass, replace

from tests.protocol.bugs import Bug, must
from tests.protocol.cache_model import Ask, CacheModel, Lease
from tests.protocol.calls_model import (
    Answer,
    Calls,
    Dead,
    Message,
    QuotaAway,
    Refusal,
    Steps,
    Transaction,
)
from tests.protocol.properties import Properties
from tests.protocol.quota_model import Admit, QuotaModel

USERS = ("alice", "bob")
KEYS = ("page-1", "page-2")
REQUEST_IDS = (1, 2, 3, 4, 5)


@dataclass(eq=False)
class Task:
    """A call under way in some Cache process: it waits for a transaction or for Quota."""

    steps: Steps
    ask: Ask | None
    # What this id had been answered when the call began.
    known: Answer | None
    next: Transaction | Message | None = None


@dataclass(eq=False)
class Envelope:
    """A message on its way to Quota; `sender` waits for the answer, unless it has given up."""

    message: Message
    sender: Task | None


class World:
    """The whole system; every method is one thing that can happen."""

    def __init__(self, bug: Bug | None = None, *, late_duplicates: bool = False) -> None:
        self._bug = bug
        # Whether a charge may arrive once more after its sender has heard the answer.
        self._late_duplicates = late_duplicates
        self.cache = CacheModel(bug)
        self.quota = QuotaModel(bug, USERS)
        self.calls = Calls(self.cache, bug)
        self.tasks: list[Task] = []
        self.network: list[Envelope] = []
        self.leases: list[Lease] = []
        self.retired: set[int] = set()
        self.properties = Properties(self.cache, self.quota)

    # Calls.

    def ask(self, ask: Ask) -> Task | None:
        """A client calls, for the first time or again; a retired id is never asked again."""
        if ask.request_id in self.retired:
            return None
        return self.start(self.calls.explain(ask), ask)

    def start(self, steps: Steps, ask: Ask | None = None) -> Task:
        known = self.properties.answers.get(ask.request_id) if ask else None
        task = Task(steps, ask, known)
        self.tasks.append(task)
        self._resume(task, None)
        return task

    def go_on(self, task: Task) -> None:
        """A task commits the transaction it has come to, or hears from Quota at once."""
        if callable(task.next):
            self._resume(task, task.next())
        elif task.next is not None:
            self.deliver(self.sent_by(task))

    def crash(self, task: Task) -> None:
        """The process dies; what it sent may still arrive."""
        task.steps.close()
        self._forget(task)

    def finish(self, task: Task) -> None:
        """Run a task to its end on a good day."""
        while task in self.tasks:
            self.go_on(task)

    # The network.

    def deliver(
        self,
        envelope: Envelope,
        *,
        full: bool = False,
        answer_lost: bool = False,
        again: bool = False,
    ) -> None:
        """Quota acts on a message. Its answer may get lost, and the message may come again."""
        sender = envelope.sender
        heard = sender is not None and not answer_lost
        may_repeat = isinstance(envelope.message, tuple) or self._late_duplicates or not heard
        if again and may_repeat:
            self.network.append(Envelope(envelope.message, None))
        if isinstance(envelope.message, Admit):
            answer = self.quota.admit(envelope.message, full=full)
        else:
            answer = None
            self.quota.refund_many(envelope.message)
        self.network.remove(envelope)
        if sender is not None:
            self._resume(sender, QuotaAway() if answer_lost else answer)

    def time_out(self, envelope: Envelope, *, lost: bool) -> None:
        """The sender gives up waiting; the message is lost, or still on its way."""
        sender, envelope.sender = envelope.sender, None
        if lost:
            self.network.remove(envelope)
        if sender is not None:
            self._resume(sender, QuotaAway())

    # Time and workers.

    def grow_older(self, request_id: int) -> None:
        """Its holder has been silent too long; after that, the sweep may give it up."""
        request = self.cache.requests.get(request_id)
        if request is not None and request.state == "intent":
            self.cache.requests[request_id] = replace(request, held=False, old=not request.held)

    def open_intents(self) -> list[int]:
        requests = self.cache.requests.values()
        return [request.request_id for request in requests if request.state == "intent"]

    def needs_sweeping(self) -> bool:
        old = any(request.old for request in self.cache.requests.values())
        return old or bool(self.cache.find_overdue())

    def has_ended_requests(self) -> bool:
        states = {request.state for request in self.cache.requests.values()}
        return not states <= {"intent", "waiting"}

    def lease_runs_out(self, lease: Lease) -> None:
        generation = self.cache.generations.get(lease.generation_id)
        if generation is not None and generation.leased and generation.attempts == lease.attempt:
            self.cache.generations[lease.generation_id] = replace(generation, lease_over=True)

    def lease(self) -> Lease | None:
        lease = self.cache.lease_job()
        if lease is not None:
            must(lease not in self.leases, "an attempt number is never used twice", lease)
            self.leases.append(lease)
        return lease

    def retire(self, request_id: int) -> None:
        """The client will not ask with this id again, and no message about it is on its way."""
        asked = any(task.ask and task.ask.request_id == request_id for task in self.tasks)
        if not asked and request_id not in self._ids_on_the_way():
            self.retired.add(request_id)

    def forget_old(self) -> None:
        """Retention: requests that have ended, once their clients are done with them (R10)."""
        short = self._bug is Bug.R10_SHORT_RETENTION
        due = {refund.request_id for refund in self.cache.outbox.values()}
        for request in list(self.cache.requests.values()):
            ended = request.state in ("served", "failed", "aborted")
            if ended and request.request_id not in due:
                if request.request_id in self.retired:
                    self.properties.forget(request.request_id)
                    del self.cache.requests[request.request_id]
                elif short:
                    del self.cache.requests[request.request_id]
                    self.quota.ledger.pop(request.request_id, None)
        self._forget_failed_generations()

    def _forget_failed_generations(self) -> None:
        if self.tasks:
            return  # no call lasts as long as a failed generation is kept
        named = {request.generation for request in self.cache.requests.values()}
        for generation in list(self.cache.generations.values()):
            if generation.status == "failed" and generation.generation_id not in named:
                del self.cache.generations[generation.generation_id]

    # The end of all trouble.

    def settle(self, *, works: bool, late_messages: bool) -> None:
        """Everything is delivered, every call ends, time passes, all recovery runs."""
        if not late_messages:
            self._drain()
        for _ in range(4):
            for request_id in 2 * self.open_intents():
                self.grow_older(request_id)
            for lease in self.leases:
                self.lease_runs_out(lease)
            while works and (job := self.lease()) is not None:
                self.finish(self.start(self.calls.complete(job)))
            self.finish(self.start(self.calls.sweep(late=True)))
            self.finish(self.start(self.calls.relay()))
            self._drain()
        self.properties.check_settled()
        self._ask_everything_again()

    def _ask_everything_again(self) -> None:
        """Whoever was answered once is answered alike for as long as they may ask."""
        for answer in list(self.properties.answers.values()):
            task = self.ask(answer.ask)
            if task is not None:
                self.finish(task)
        self.properties.check_settled()

    def _drain(self) -> None:
        while self.tasks:
            self.finish(self.tasks[0])
        while self.network:
            self.deliver(self.network[0])

    def _resume(self, task: Task, answer: object) -> None:
        try:
            if isinstance(answer, QuotaAway):
                task.next = task.steps.throw(answer)
            else:
                task.next = task.steps.send(answer)
        except StopIteration as end:
            self._forget(task)
            if isinstance(end.value, Answer):
                self.properties.answered(end.value)
        except (Refusal, QuotaAway) as refusal:
            self._forget(task)
            if isinstance(refusal, Dead) and task.ask is not None:
                self.properties.refused_as_dead(task.ask, task.known)
        else:
            if not callable(task.next):
                self.network.append(Envelope(task.next, task))

    def _forget(self, task: Task) -> None:
        self.tasks.remove(task)
        task.next = None
        for envelope in self.network:
            if envelope.sender is task:
                envelope.sender = None

    def sent_by(self, task: Task) -> Envelope:
        return next(envelope for envelope in self.network if envelope.sender is task)

    def _ids_on_the_way(self) -> set[int]:
        ids: set[int] = set()
        for envelope in self.network:
            if isinstance(envelope.message, Admit):
                ids.add(envelope.message.request_id)
            else:
                ids |= {refund.request_id for refund in envelope.message}
        return ids
