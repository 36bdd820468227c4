"""Checks the `extra` of sampling parameters, for engines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.protocol.errors import InvalidRequest
from app.protocol.requests.bodies.vllm_params import ENGINE_PARAMS, Extras
from app.protocol.requests.validation import validate
from workers.engine.base import InvalidSampling


def check_extra(extra: Mapping[str, Any]) -> None:
    """Raises InvalidSampling, which names the first parameter that no engine takes, or that is out of its range.

    The lengths of lists are not checked here: a format may have added stop tokens to those of the request.
    """
    for name in extra:
        if name not in ENGINE_PARAMS or ENGINE_PARAMS[name].reader == "worker":
            raise InvalidSampling(f"{name} is not a sampling parameter of this engine, or not in this worker's version")
    try:
        validate(Extras, {name: value for name, value in extra.items() if not isinstance(value, list)})
    except InvalidRequest as error:
        raise InvalidSampling(f"{error.error.param}: {error.error.message}") from None
