"""What one process remembers so that it need not ask again, and when it must forget."""

import time
from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from uuid import UUID

from services.cache.domain import Ask, Key, ResolvedPage

# The Registry speaks at least once a second; after three of silence nothing is believed any more.
TRUST_SECONDS = 3.0
MOST_PAGES = 100_000
ENTRY_BYTES = 1024
MOST_USERS = 100_000
MOST_REVOCATIONS = 10_000


@dataclass(frozen=True, kw_only=True)
class ReadyResult:
    """A result that will never change, as it goes over the wire."""

    generation_id: UUID
    model: str
    prepared: bytes


class ReadyMemory:
    """Ready results, the least used forgotten first; remembers which ones were served."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._size_bytes = 0
        self._results: OrderedDict[Key, ReadyResult] = OrderedDict()
        self._keys: dict[UUID, Key] = {}
        self._used: set[UUID] = set()

    def get(self, key: Key) -> ReadyResult | None:
        result = self._results.get(key)
        if result is not None:
            self._results.move_to_end(key)
            self._used.add(result.generation_id)
        return result

    def add(self, key: Key, result: ReadyResult) -> None:
        self._used.add(result.generation_id)
        self._drop(key)
        self._results[key] = result
        self._keys[result.generation_id] = key
        self._size_bytes += _weight(result)
        while self._size_bytes > self._most_bytes:
            self._drop(next(iter(self._results)))

    def forget(self, generation_ids: Collection[UUID]) -> None:
        for generation_id in generation_ids:
            if key := self._keys.get(generation_id):
                self._drop(key)

    def clear(self) -> None:
        self._results.clear()
        self._keys.clear()
        self._size_bytes = 0

    def take_used(self) -> set[UUID]:
        used, self._used = self._used, set()
        return used

    def _drop(self, key: Key) -> None:
        if result := self._results.pop(key, None):
            del self._keys[result.generation_id]
            self._size_bytes -= _weight(result)


def _weight(result: ReadyResult) -> int:
    """Bytes, with what the entry itself takes: an empty page is not free."""
    return len(result.prepared) + ENTRY_BYTES


_Target = tuple[str, UUID | str | None, int]


class PageMemory:
    """Pages that users may see, as the Registry resolved them.

    Access can go away, so this is believed only while the Registry tells us about every reference
    that goes. A page that was being resolved when its document lost a reference is not remembered:
    the answer may be older than the loss.
    """

    def __init__(self) -> None:
        self._pages: OrderedDict[_Target, ResolvedPage] = OrderedDict()
        self._targets: dict[str, set[_Target]] = {}
        self._trusted_until = 0.0
        # Counts losses; a resolution takes the count with it when it begins.
        self._losses = 0
        self._last_loss: dict[str, int] = {}
        self._oldest_ticket = 0

    @property
    def trusted(self) -> bool:
        return time.monotonic() < self._trusted_until

    def get(self, ask: Ask) -> ResolvedPage | None:
        return self._pages.get(_target(ask)) if self.trusted else None

    def ticket(self) -> int:
        return self._losses

    def add(self, ask: Ask, page: ResolvedPage, ticket: int) -> None:
        lost_since = self._last_loss.get(page.pdf_hash, 0) > ticket
        if not self.trusted or lost_since or ticket < self._oldest_ticket:
            return
        target = _target(ask)
        self._pages[target] = page
        self._targets.setdefault(page.pdf_hash, set()).add(target)
        if len(self._pages) > MOST_PAGES:
            oldest, gone = self._pages.popitem(last=False)
            self._discard(gone.pdf_hash, oldest)

    def begin(self) -> None:
        """From now on the Registry tells everything; what was learnt before may be wrong."""
        self._pages.clear()
        self._targets.clear()
        self._last_loss.clear()
        self._losses += 1
        self._oldest_ticket = self._losses
        self._trusted_until = time.monotonic() + TRUST_SECONDS

    def hear(self, pdf_hashes: Iterable[str]) -> None:
        """The Registry spoke: these documents lost a reference, and nothing else happened."""
        for pdf_hash in pdf_hashes:
            self._losses += 1
            self._last_loss[pdf_hash] = self._losses
            for target in self._targets.pop(pdf_hash, ()):
                self._pages.pop(target, None)
        if len(self._last_loss) > MOST_REVOCATIONS:
            self._last_loss.clear()
            self._oldest_ticket = self._losses
        self._trusted_until = time.monotonic() + TRUST_SECONDS

    def distrust(self) -> None:
        self._trusted_until = 0.0

    def _discard(self, pdf_hash: str, target: _Target) -> None:
        targets = self._targets.get(pdf_hash, set())
        targets.discard(target)
        if not targets:
            self._targets.pop(pdf_hash, None)


class ShareMemory:
    """Whether users share, as Quota last told; only a guess, for Quota refuses a wrong one."""

    def __init__(self) -> None:
        # Sharing is the default, so only the others need remembering.
        self._private: OrderedDict[str, None] = OrderedDict()

    def shares(self, user_id: str) -> bool:
        return user_id not in self._private

    def learn(self, user_id: str, *, shares: bool) -> None:
        if shares:
            self._private.pop(user_id, None)
            return
        self._private[user_id] = None
        if len(self._private) > MOST_USERS:
            self._private.popitem(last=False)


def _target(ask: Ask) -> _Target:
    return (ask.user_id, ask.file_id or ask.pdf_hash, ask.page)
