"""Times as protobuf and back."""

from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp

from services.runtime.errors import InvalidInput

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_timestamp(field: str, message: Timestamp) -> datetime:
    """A time of a request; protobuf holds some that nobody else can."""
    try:
        return message.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError):
        problem = f"{field} must be a time from year 1 to 9999"
        raise InvalidInput(problem, field=field) from None


def fill_timestamp(message: Timestamp, moment: datetime) -> None:
    """FromDatetime in a third of its time: answers hold many."""
    since = moment - _EPOCH
    message.seconds = since.days * 86_400 + since.seconds
    message.nanos = since.microseconds * 1_000
