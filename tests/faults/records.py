"""Records of what one client was sent about one response, or one batch.

`clients`, `readers` and `batch_clients` fill them, `checker` and the files of its rules read them.
"""

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
class ReaderRecord:
    """Everything that one reader of a stream was sent, over all its connections."""

    after: int = -1
    """The `starting_after` of its first request; -1 for the whole stream."""
    frames: list[bytes] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    """When each frame arrived (seconds since the epoch)."""
    connections: int = 0
    done: bool = False
    """Whether `[DONE]` arrived."""
    terminal: bool = False
    """Whether the last frame is a terminal event."""
    problems: list[str] = field(default_factory=list)

    @property
    def next(self) -> int:
        """The sequence number of the next event."""
        return self.after + 1 + len(self.frames)

    @property
    def raw(self) -> bytes:
        return b"".join(self.frames)


@dataclass(frozen=True, slots=True)
class Poll:
    """One GET that was answered, and when (monotonic seconds)."""

    status: Status
    text: str
    began: float
    ended: float


@dataclass(slots=True)
class Story:
    """One request of one client, and everything that followed."""

    key: str
    keyed: bool
    """Whether the request has the key as Idempotency-Key. Its `metadata` always has it."""
    form: Form
    question: Question
    began: float
    ended: float = 0.0
    tenant: int = 0
    """Which of the projects its client belongs to."""
    posts: list[str] = field(default_factory=list)
    """The result of each POST: a status code, or an exception's name."""
    response_id: str | None = None
    """Set once a POST was answered."""
    polls: list[Poll] = field(default_factory=list)
    finals: list[Json] = field(default_factory=list)
    """Every final response object that the client was sent."""
    cancel_sent: bool = False
    cancel_answers: list[Status] = field(default_factory=list)
    delete_sent: bool = False
    deleted: bool = False
    """Whether a DELETE was answered."""
    left: bool = False
    """Whether the client left, or was cut off from, a foreground request without an Idempotency-Key."""
    readers: list[ReaderRecord] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Answers that no fault explains."""
    gave_up: bool = False
    """Whether the run ended before the client had its answer."""


@dataclass(slots=True)
class BatchStory:
    """One batch of one client, and everything that followed."""

    key: str
    """Key in the batch's `metadata`."""
    endpoint: str
    window: str
    lines: dict[str, Question]
    """The questions by `custom_id`, in the order of the file."""
    tenant: int = 0
    ended: float = 0.0
    batch_id: str | None = None
    """Set once a POST was answered."""
    polls: list[Json] = field(default_factory=list)
    """Every batch object that the client was sent."""
    seen: list[Json] = field(default_factory=list)
    """The results that it followed, and their end: the batch."""
    connections: int = 0
    """In which it followed them."""
    files: dict[str, bytes] = field(default_factory=dict)
    """`output` and `error` as the client read them."""
    cancel_sent: bool = False
    problems: list[str] = field(default_factory=list)
    """Answers that no fault explains."""
    gave_up: bool = False
    """Whether the run ended before the client had its files."""
