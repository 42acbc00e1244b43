"""Times as protobuf; its own conversion takes several times as long, and answers hold many."""

from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def fill_timestamp(message: Timestamp, moment: datetime) -> None:
    since = moment - _EPOCH
    message.seconds = since.days * 86_400 + since.seconds
    message.nanos = since.microseconds * 1_000
