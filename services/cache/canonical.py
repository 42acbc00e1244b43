"""One encoding for everything that means the same, so that equal questions get equal keys."""

import hashlib
from collections.abc import Mapping
from typing import Any

import rfc8785

from services.runtime.errors import InvalidInput


def response_key(operation: str, question: Mapping[str, Any], scope: str) -> str:
    """SHA-256 over the canonical JSON (RFC 8785) of operation, input and scope."""
    asked: dict[str, Any] = {"input": dict(question), "operation": operation, "scope": scope}
    try:
        encoded = rfc8785.dumps(asked)
    except (rfc8785.CanonicalizationError, UnicodeEncodeError, RecursionError) as error:
        raise InvalidInput(f"input has no canonical encoding: {error}", field="input") from error
    return hashlib.sha256(encoded).hexdigest()
