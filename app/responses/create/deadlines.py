"""How long a response may wait and run: the shortest of what the settings, its model and its request say.

Work in a window is meant to wait. The window takes the place of the queue timeouts of the settings and the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from app.protocol.errors import InvalidRequest
from app.protocol.requests.bodies.create_response import CreateResponse
from config.models import ServedModel
from config.settings import Settings

COMPLETION_WINDOWS: Mapping[str, float] = MappingProxyType({"2h": 2 * 3600.0, "8h": 8 * 3600.0})
"""`background_options.completion_window`: when the response is due, in seconds. `soonest` is none."""


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds; None: no deadline."""

    queue_seconds: float | None
    run_seconds: float | None
    window_seconds: float | None = None


def deadlines_of(
    fields: CreateResponse, model: ServedModel, settings: Settings, batch_seconds: float | None = None
) -> Deadlines:
    """Returns the deadlines of a request. Raises InvalidRequest if it asks for more than the operator allows.

    `batch_seconds`: until its batch is due; None: it is no line of a batch.
    """
    queue = _shortest(model.queue_timeout_seconds, settings.queue_timeout_seconds)
    run = _shortest(model.run_timeout_seconds, settings.run_timeout_seconds)
    window = COMPLETION_WINDOWS.get(fields.completion_window) if batch_seconds is None else batch_seconds
    waits = _allowed("queue_timeout", fields.queue_timeout, queue if window is None else None)
    return Deadlines(waits, _allowed("run_timeout", fields.run_timeout, run), window)


def _shortest(*seconds: float | None) -> float | None:
    return min((each for each in seconds if each is not None), default=None)


def _allowed(param: str, requested: float | None, limit: float | None) -> float | None:
    if requested is None:
        return limit
    if limit is not None and requested > limit:
        message = f"Invalid '{param}': expected at most {limit:g} seconds, but got {requested:g} instead."
        raise InvalidRequest(message, param, "decimal_above_max_value")
    return requested
