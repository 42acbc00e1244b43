"""What the doctor says: one check, and all of them together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from services.local.errors import AdvisedError

Row = Mapping[str, Any]


class CannotCheck(AdvisedError):
    """What is asked for cannot be found out as things stand."""

    reason = "CANNOT_CHECK"


class Unfit(AdvisedError):
    """What was found is not as it must be."""

    reason = "UNFIT"


class Status(StrEnum):
    """How a check came out."""

    SOUND = "sound"
    VIOLATED = "violated"
    # It could not be made.
    UNKNOWN = "unknown"
    # It was not wanted.
    LEFT_OUT = "left_out"


class Kind(StrEnum):
    """What a check is about."""

    INVARIANT = "invariant"
    ENVIRONMENT = "environment"


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that was looked at."""

    name: str
    kind: Kind
    # What holds while it is sound.
    promise: str
    status: Status
    # What was found, in a few words.
    detail: str = ""
    # What to do unless it is sound.
    advice: str = ""
    # How many rows violate an invariant, and the first of them.
    rows: int = 0
    examples: Sequence[Row] = ()
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that was looked at."""

    checks: Sequence[Check]
    taken_at: datetime
    seconds: float

    def count(self, status: Status) -> int:
        return sum(check.status is status for check in self.checks)

    @property
    def exit_code(self) -> int:
        """A violation that is known outweighs what is not known."""
        if self.count(Status.VIOLATED):
            return 1
        return 2 if self.count(Status.UNKNOWN) else 0
