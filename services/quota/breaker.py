"""When to stop asking a database that does not answer; no I/O, time is an argument."""

from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum


class Circuit(StrEnum):
    CLOSED = "closed"  # calls pass
    OPEN = "open"  # calls are refused
    HALF_OPEN = "half_open"  # one call is out to see whether it is over


@dataclass(kw_only=True)
class Breaker:
    """Opens after failures in a row; from then on one call at a time may see whether it is over."""

    failures_to_open: int = 3
    pause: timedelta = timedelta(seconds=1)
    circuit: Circuit = Circuit.CLOSED
    _failures: int = 0
    _opened_at: float = field(default=0.0)

    def may_pass(self, now: float) -> bool:
        """Whether a call may go on; the first one after the pause becomes the probe."""
        if self.circuit is Circuit.CLOSED:
            return True
        if self.circuit is Circuit.OPEN and now >= self._opened_at + self.pause.total_seconds():
            self.circuit = Circuit.HALF_OPEN
            return True
        return False

    def succeeded(self) -> None:
        self.circuit = Circuit.CLOSED
        self._failures = 0

    def failed(self, now: float) -> None:
        self._failures += 1
        # A failure that set out before the circuit opened tells nothing new.
        if self.circuit is Circuit.HALF_OPEN or self._failures == self.failures_to_open:
            self.circuit = Circuit.OPEN
            self._opened_at = now

    def retry_after(self, now: float) -> timedelta:
        """How long a refused caller should wait: until a probe may pass, and never not at all."""
        left = timedelta(seconds=self._opened_at) + self.pause - timedelta(seconds=now)
        return min(self.pause, max(left, self.pause / 10))
