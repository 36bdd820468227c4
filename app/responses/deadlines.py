"""How long a response may wait and run: the least of what the settings, its model and its request say."""

from __future__ import annotations

from dataclasses import dataclass

from app.protocol.errors import InvalidRequest
from app.protocol.requests.request import CreateResponse
from config.models import ServedModel
from config.settings import Settings


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds; None: for ever."""

    queue_seconds: float | None
    run_seconds: float | None


def limits_of(fields: CreateResponse, model: ServedModel, settings: Settings) -> Limits:
    """Raises InvalidRequest where a request asks for more than it may have."""
    queue = _least(model.queue_timeout_seconds, settings.queue_timeout_seconds)
    run = _least(model.run_timeout_seconds, settings.run_timeout_seconds)
    return Limits(
        _shortened("queue_timeout", fields.queue_timeout, queue), _shortened("run_timeout", fields.run_timeout, run)
    )


def _least(*limits: float | None) -> float | None:
    return min((limit for limit in limits if limit is not None), default=None)


def _shortened(name: str, wanted: float | None, limit: float | None) -> float | None:
    if wanted is None or limit is None or wanted <= limit:
        return limit if wanted is None else wanted
    message = f"Invalid '{name}': expected at most {limit:g} seconds, but got {wanted:g} instead."
    raise InvalidRequest(message, name, "decimal_above_max_value")
