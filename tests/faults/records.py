"""What one client saw of one response. Filled by `clients` and `readers`, judged by `checker`."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from app.protocol.status import Status
from tests.faults.questions import Question

Json = dict[str, Any]


class Form(Enum):
    SYNC = "sync"
    STREAM = "stream"
    BACKGROUND = "background"
    BACKGROUND_STREAM = "background+stream"

    @property
    def background(self) -> bool:
        return self in (Form.BACKGROUND, Form.BACKGROUND_STREAM)

    @property
    def stream(self) -> bool:
        return self in (Form.STREAM, Form.BACKGROUND_STREAM)


@dataclass(slots=True)
class Seen:
    """All that one reader was sent, over as many connections as it took."""

    after: int = -1
    """It asked for what comes after this event."""
    frames: list[bytes] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    """When each frame came (seconds since the epoch)."""
    connections: int = 0
    done: bool = False
    """`[DONE]` came."""
    terminal: bool = False
    """The last frame is a terminal event."""
    wrong: list[str] = field(default_factory=list)

    @property
    def next(self) -> int:
        """The sequence number that is due."""
        return self.after + 1 + len(self.frames)

    @property
    def raw(self) -> bytes:
        return b"".join(self.frames)


@dataclass(frozen=True, slots=True)
class Poll:
    """One GET that was answered."""

    status: Status
    text: str
    began: float
    ended: float


@dataclass(slots=True)
class Story:
    """One request of one client, and everything that came of it."""

    key: str
    keyed: bool
    """Whether it sends its key as Idempotency-Key, too; `metadata` has it always."""
    form: Form
    question: Question
    began: float
    ended: float = 0.0
    posts: list[str] = field(default_factory=list)
    """How each attempt to POST went: a status code, or an exception's name."""
    response_id: str | None = None
    """Known once an answer came."""
    polls: list[Poll] = field(default_factory=list)
    finals: list[Json] = field(default_factory=list)
    """Every final response object that was seen."""
    cancel_sent: bool = False
    cancel_answers: list[Status] = field(default_factory=list)
    delete_sent: bool = False
    deleted: bool = False
    """A DELETE was answered with 200."""
    left: bool = False
    """The client walked away from a foreground request without an Idempotency-Key, or lost the line."""
    readers: list[Seen] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """What the client itself found strange."""
    gave_up: bool = False
    """The run ended before the client had its answer."""
