"""The work of a client and its figures: plain data that goes between processes as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import orjson


class Mode(StrEnum):
    """The kind of requests that a client sends."""

    STREAM = "stream"
    ENQUEUE = "enqueue"
    """Background POSTs, and nothing waits for their end; the engine is kept busy meanwhile."""
    FIRE = "fire"
    """All background POSTs at once, then polls until the last one has ended."""
    ARRIVE = "arrive"
    """Streams of mixed lengths that come at random, `concurrency` a second, however many are still served."""


STREAMING = frozenset({Mode.STREAM, Mode.ARRIVE})
IN_BACKGROUND = frozenset({Mode.ENQUEUE, Mode.FIRE})

FIRST_SECONDS = 0.2
TOKEN_SECONDS = 0.02


class Time(StrEnum):
    """What is timed, once per request but for `GAP`: once per text delta."""

    TTFT = "ttft"
    """From the request to the first text."""
    INTER_TOKEN = "inter_token"
    """Pause between tokens of one response: from its first text to its last, by its tokens less one."""
    GAP = "gap"
    """From one piece of text to the next, as they arrive."""
    POST = "post"
    """Time of a POST that does not wait."""


@dataclass(frozen=True, slots=True)
class Load:
    """One round's worth of requests to one server. Durations are seconds."""

    url: str
    mode: Mode
    concurrency: int
    requests: int
    body: dict[str, Any] = field(default_factory=dict)
    """Fields of every POST, but for `input`, `stream` and `background`."""
    prompt: str = "Hello!"
    warmup: int = 2
    poll: float = 0.02
    """Between two looks at a background response."""
    busy: int = 64
    """For `ENQUEUE`: how many long responses keep the engine busy."""
    busy_tokens: int = 2000
    realtime: bool = True
    """Whether the client asks for SCHED_FIFO: engines busy-wait on all cores, and a plain client would time itself."""
    patience: float = 300.0
    """For one request."""

    def encode(self) -> bytes:
        return orjson.dumps(self)

    @classmethod
    def decode(cls, data: bytes) -> Load:
        fields = orjson.loads(data)
        return cls(**{**fields, "mode": Mode(fields["mode"])})


@dataclass(frozen=True, slots=True)
class Figures:
    """What a client has counted. `times` are milliseconds: Time -> name of a quantile -> value."""

    seconds: float
    ok: int
    errors: int
    complaints: list[str]
    """The first few errors."""
    tokens: int
    events: int
    deltas: int
    frame_bytes: int
    """Bytes of event streams, without HTTP's."""
    client_cpu: float
    """CPU seconds of the client itself."""
    realtime: bool
    """Whether it had SCHED_FIFO."""
    times: dict[str, dict[str, float]]
    tokens_in_time: int = 0
    """Tokens of streams whose first text came within FIRST_SECONDS, then one every TOKEN_SECONDS at the mean."""

    def encode(self) -> bytes:
        return orjson.dumps(self)

    @classmethod
    def decode(cls, data: bytes) -> Figures:
        return cls(**orjson.loads(data))
