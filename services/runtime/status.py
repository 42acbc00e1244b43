"""The one place where our errors become google.rpc.Status, and a received Status our error."""

from collections.abc import Iterable
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from services.runtime.errors import GlossaError, LimitReached, RelayedError

DOMAIN = "glossa"
DETAILS_KEY = "grpc-status-details-bin"

Metadata = tuple[tuple[str, str | bytes], ...]


def to_status(error: GlossaError) -> status_pb2.Status:
    status = status_pb2.Status(code=status_code(error).value[0], message=error.message)
    for detail in _details(error):
        status.details.add().Pack(detail)
    return status


def status_code(error: GlossaError) -> grpc.StatusCode:
    return grpc.StatusCode[error.code]


def trailing_metadata(error: GlossaError) -> Metadata:
    metadata: list[tuple[str, str | bytes]] = [(DETAILS_KEY, to_status(error).SerializeToString())]
    if error.retry_after is not None:
        metadata.append(
            ("retry-after", str(max(1, round(error.retry_after.total_seconds() + 0.499))))
        )
    return tuple(metadata)


def _details(error: GlossaError) -> Iterable[Message]:
    yield error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=error.metadata)
    if error.field is not None:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=error.field, description=error.message
        )
        yield error_details_pb2.BadRequest(field_violations=[violation])
    if error.retry_after is not None:
        delay = Duration()
        delay.FromTimedelta(error.retry_after)
        yield error_details_pb2.RetryInfo(retry_delay=delay)
    if isinstance(error, LimitReached) and error.spent_quota is not None:
        spent = error_details_pb2.QuotaFailure.Violation(
            subject=error.spent_quota, description=error.message
        )
        yield error_details_pb2.QuotaFailure(violations=[spent])


def from_call(error: grpc.aio.AioRpcError) -> RelayedError:
    """What another service answered, with every detail we understand."""
    status = status_pb2.Status()
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            status.ParseFromString(value)
    info = _unpack(status, error_details_pb2.ErrorInfo)
    fields = _unpack(status, error_details_pb2.BadRequest)
    retry = _unpack(status, error_details_pb2.RetryInfo)
    return RelayedError(
        error.details() or error.code().name,
        code=error.code().name,
        reason=info.reason if info else error.code().name,
        is_ours=info is not None and info.domain == DOMAIN,
        field=fields.field_violations[0].field if fields and fields.field_violations else None,
        retry_after=retry.retry_delay.ToTimedelta() if retry else None,
        metadata=dict(info.metadata) if info else None,
    )


def _unpack(status: status_pb2.Status, kind: type[Message]) -> Any:
    """The first detail of this kind; the types of google.rpc are not stubbed."""
    for detail in status.details:
        if detail.Is(kind.DESCRIPTOR):
            message = kind()
            detail.Unpack(message)
            return message
    return None
