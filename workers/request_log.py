"""The request log, which operators switch on: a line for each response that ends on this worker.

`summary` has figures alone. `full` adds the texts, as JSON, each cut to MAX_TEXT characters: docs/settings.md says what
that reveals.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from itertools import islice
from typing import Any, Literal

import orjson

from app.protocol.types import Json
from app.store.rows import ResponseRow

log = logging.getLogger("longhaul.requests")

MAX_TEXT = 2000
"""Characters of a text that `full` logs."""
_SAMPLING = ("temperature", "top_p", "max_output_tokens", "presence_penalty", "frequency_penalty")
_FIGURES = (bool, int, float)


class RequestLog:
    """Logs what `LONGHAUL_LOG_REQUESTS` says."""

    def __init__(self, level: Literal["off", "summary", "full"]) -> None:
        self._is_on = level != "off"
        self._has_texts = level == "full"

    def ended(self, row: ResponseRow, response: Json, finish: str, seconds: float) -> None:
        """The response has ended, completed, failed, ..., so many seconds after its insert."""
        if not self._is_on:
            return
        fields: dict[str, object] = {**_request(row), **_answer(row, response, finish, seconds)}
        if self._has_texts:
            fields |= _texts(row, response)
        log.info("response", extra={"fields": fields})


def _request(row: ResponseRow) -> Json:
    request = row.request
    figures = {name: value for name, value in request.get("extra", {}).items() if isinstance(value, _FIGURES)}
    reasoning = request.get("reasoning") or {}
    known = {
        "model": row.model,
        **{name: request.get(name) for name in _SAMPLING},
        **figures,
        "effort": reasoning.get("effort"),
        "background": row.background,
        "stream": row.stream,
        "tools": len(request.get("tools") or ()),
    }
    return {name: value for name, value in known.items() if value is not None}


def _answer(row: ResponseRow, response: Json, finish: str, seconds: float) -> Json:
    usage = response["usage"] or {}
    why = (response["incomplete_details"] or {}).get("reason") or (response["error"] or {}).get("code")
    waited = None if row.started_at is None else (row.started_at - row.inserted_at).total_seconds()
    known = {
        "finish": finish if why is None else f"{finish}:{why}",
        "input_tokens": usage.get("input_tokens"),
        "cached_tokens": (usage.get("input_tokens_details") or {}).get("cached_tokens"),
        "output_tokens": usage.get("output_tokens"),
        "reasoning_tokens": (usage.get("output_tokens_details") or {}).get("reasoning_tokens"),
        "waited_ms": None if waited is None else round(1000 * waited),
        "total_ms": round(1000 * seconds),
        "yields": row.yields or None,
    }
    return {name: value for name, value in known.items() if value is not None}


def _texts(row: ResponseRow, response: Json) -> Json:
    request = row.request
    known = {"instructions": [request.get("instructions")], "input": request["input"], "output": response["output"]}
    return {name: _cut(values) for name, values in known.items() if values != [None]}


def _cut(values: Iterable[Any]) -> str:
    """The first MAX_TEXT characters of the values as JSON, one behind the other."""
    text = ""
    for value in values:
        text += orjson.dumps(_head(value)).decode()
        if len(text) > MAX_TEXT:
            return f"{text[:MAX_TEXT]}..."
    return text


def _head(value: Any) -> Any:
    """As much of a value as the first MAX_TEXT characters of its JSON can show: images have megabytes."""
    if isinstance(value, str):
        return value[:MAX_TEXT]
    if isinstance(value, dict):
        return {name: _head(each) for name, each in islice(value.items(), MAX_TEXT)}
    return [_head(each) for each in islice(value, MAX_TEXT)] if isinstance(value, list) else value
