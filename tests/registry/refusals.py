"""Reads the reason, field and metadata out of a refused call."""

from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2


class Refusal:
    """What a caller is told."""

    def __init__(self) -> None:
        self.code = ""
        self.reason = ""
        self.field = ""
        self.message = ""
        self.metadata: dict[str, str] = {}


@contextmanager
def refused() -> Iterator[Refusal]:
    """Expect the block to be refused and tell how, once it has ended."""
    told = Refusal()
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        yield told
    error = raised.value
    told.code = error.code().name
    told.message = error.details() or ""
    status = status_pb2.Status()
    trailing = dict(error.trailing_metadata() or ())
    status.ParseFromString(trailing.get("grpc-status-details-bin", b""))
    read_details(status, told)


def read_details(status: status_pb2.Status, told: Refusal) -> None:
    for detail in status.details:
        info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
        if detail.Unpack(info):
            told.reason = info.reason
            told.metadata = dict(info.metadata)
        if detail.Unpack(bad):
            told.field = bad.field_violations[0].field
