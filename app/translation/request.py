"""A request of another protocol that was checked, as a request for a response."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.protocol.errors import InvalidRequest
from app.protocol.requests.bodies.create_response import CreateResponse
from app.protocol.requests.bodies.request import ResponseRequest, checked_request
from app.translation.names import Names


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslatedRequest(ResponseRequest):
    """`body` is what the client sent."""

    names: Names


def checked_fields(made: Mapping[str, Any], names: Names) -> CreateResponse:
    """Returns the checked fields of a response request. Raises InvalidRequest, which names the sender's fields."""
    try:
        return checked_request(made).fields
    except InvalidRequest as error:
        error.error = names.error(error.error)
        raise
