"""The errors a caller can act on; everything else is a bug and stays in the log.

GlossaError
├── InvalidInput     INVALID_ARGUMENT     the request is wrong; `field` names the culprit
├── Unauthenticated  UNAUTHENTICATED      no valid token
├── Forbidden        PERMISSION_DENIED    a valid token that may not do this
├── NotFound         NOT_FOUND            unknown, or not the caller's to know
├── AlreadyExists    ALREADY_EXISTS       the id is taken by something else
├── Conflict         FAILED_PRECONDITION  the state has moved on
├── LimitReached     RESOURCE_EXHAUSTED   a limit or quota is used up
├── DependencyDown   UNAVAILABLE          something we need is away; waiting helps
│   └── DependencyFailed                  it answered, but with nothing we can use
└── RelayedError     (as received)        another service's refusal, passed on as it is

Subclasses say what is wrong in their name and carry the same words as `reason`.
"""

from collections.abc import Mapping
from datetime import timedelta


class GlossaError(Exception):
    """A refusal with a documented reason; `runtime.status` turns it into google.rpc.Status."""

    code: str = "INTERNAL"
    reason: str = "INTERNAL"

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        retry_after: timedelta | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.retry_after = retry_after
        self.metadata = dict(metadata or {})


class InvalidInput(GlossaError):
    """The request cannot be understood or served as it stands."""

    code = "INVALID_ARGUMENT"
    reason = "INVALID_ARGUMENT"

    def within(self, parent: str) -> "InvalidInput":
        """The same, told to whoever sent the message that the field is a part of."""
        assert self.field is not None, "only what names a field can be a part of something"
        return InvalidInput(f"{parent}.{self.message}", field=f"{parent}.{self.field}")


class Unauthenticated(GlossaError):
    """There is no token, or it is not one of ours."""

    code = "UNAUTHENTICATED"
    reason = "UNAUTHENTICATED"


class Forbidden(GlossaError):
    """The token is good, but not for this."""

    code = "PERMISSION_DENIED"
    reason = "PERMISSION_DENIED"


class NotFound(GlossaError):
    """There is no such thing, as far as this caller may know."""

    code = "NOT_FOUND"
    reason = "NOT_FOUND"


class AlreadyExists(GlossaError):
    """The id is taken by something else."""

    code = "ALREADY_EXISTS"
    reason = "ALREADY_EXISTS"


class Conflict(GlossaError):
    """The thing has moved on to a state in which this is no longer possible."""

    code = "FAILED_PRECONDITION"
    reason = "FAILED_PRECONDITION"


class LimitReached(GlossaError):
    """A limit or quota is used up. `spent_quota` marks one that waiting does not refill."""

    code = "RESOURCE_EXHAUSTED"
    reason = "RESOURCE_EXHAUSTED"
    spent_quota: str | None = None


class DependencyDown(GlossaError):
    """Something we need is away; the same call may succeed a little later."""

    code = "UNAVAILABLE"
    reason = "UNAVAILABLE"

    def __init__(
        self,
        message: str,
        *,
        reason: str = "UNAVAILABLE",
        retry_after: timedelta = timedelta(seconds=1),
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, retry_after=retry_after, metadata=metadata)
        self.reason = reason


class DependencyFailed(DependencyDown):
    """Something we need answered, but with trouble of its own that is not our caller's fault."""


class RelayedError(GlossaError):
    """Another service's refusal: code, reason and details are passed on as they came."""

    def __init__(
        self,
        message: str,
        *,
        code: str,
        reason: str,
        field: str | None = None,
        retry_after: timedelta | None = None,
        metadata: Mapping[str, str] | None = None,
        # Whether it carried a reason of our domain, and so was meant for whoever asked.
        is_ours: bool = True,
    ) -> None:
        super().__init__(message, field=field, retry_after=retry_after, metadata=metadata)
        self.code = code
        self.reason = reason
        self.is_ours = is_ours
