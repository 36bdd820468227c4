"""Rows as frozen data: what the store takes and returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter
from typing import Any

from sqlalchemy import ColumnClause, Row, column

from app.protocol.events.chunk import Chunk
from app.protocol.response import brief_object, code_of, response_object
from app.protocol.status import Status
from app.protocol.types import Json
from app.sizes import LARGE_BYTES
from app.store.columns import Column, Columns, to_json
from app.store.database import from_json
from app.store.packing import pack_events, pack_tokens

MESSAGES = ("input_messages", "output_messages")
"""Fields of a response object, present if the request asked for them (`Finish.messages`)."""


UNREADABLE = "unreadable"
"""The key of a request that takes the place of one that cannot be read."""


@dataclass(frozen=True, slots=True)
class Idempotency:
    """A request's Idempotency-Key and the fingerprint of its body. A repeated request gets the first one's response."""

    key: str
    fingerprint: bytes


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a request, as its response's row keeps it."""

    key_id: str | None = None
    """Id of the caller's API key. None: no key was asked for."""
    request_id: str | None = None
    traceparent: str | None = None
    """Header of the trace that it belongs to (app/access/trace_context.py)."""
    tracestate: str | None = None


NOWHERE = Origin()
"""Origin of a response that no request made."""


@dataclass(frozen=True, slots=True)
class BatchPlace:
    """A response's place in a batch."""

    batch_id: str
    line: int
    """The number of the line, from 1 on; blank lines do not count."""
    custom_id: str
    window_seconds: float
    """Seconds until the batch is due."""


@dataclass(frozen=True, slots=True)
class PromptSource:
    """The request of a prompt that is only counted."""

    project: str
    request: Json
    conversation_id: str | None
    context_bytes: int
    """Size of the responses that it continues."""
    created_at: int


@dataclass(frozen=True, slots=True)
class ResponseRow:
    """One response, as Postgres has it."""

    id: str
    project: str
    model: str
    queue: str
    priority: int
    status: Status
    background: bool
    stream: bool
    store: bool
    request: Json
    conversation_id: str | None
    attempt: int
    crashes: int
    worker: str | None
    output: list[Json] | None
    messages: Json | None
    """`input_messages` and `output_messages`, if the request asked for them."""
    usage: Json | None
    error: Json | None
    incomplete_details: Json | None
    created_at: datetime
    inserted_at: datetime
    """When it was inserted, by Postgres' clock."""
    started_at: datetime | None
    finished_at: datetime | None
    log: str
    """`live`, `merged` (a row for each page, or what stays as it is), or `deleted` by retention."""
    fingerprint: bytes | None
    """Hash of the body of a request with an Idempotency-Key; None without a key."""
    context_bytes: int
    """Size of the responses in its chain before it."""
    cost: int
    """Estimated tokens."""
    charged: int | None
    """The tokens that its flow was charged when it was sent; None: it waits, or was sent without waiting."""
    sent_at: datetime | None
    """When its message was sent; None: it has none."""
    foreground_place: bool
    """Whether it takes one of the places that are kept for foreground responses."""
    yields: int
    """How often it has yielded."""
    request_id: str | None
    """Id of the request that made it."""
    traceparent: str | None
    tracestate: str | None
    history: list[Json] | None
    """The attempts that handed it over (`handed_over` of the schema), the last ones."""
    read_at: datetime = field(compare=False)
    """When Postgres returned the row, by its clock. No column: every process measures retention by the same clock."""

    @property
    def trace_headers(self) -> Mapping[str, str]:
        """The headers that name the trace that it belongs to; none, if its request had none."""
        known = {"traceparent": self.traceparent, "tracestate": self.tracestate}
        return {name: value for name, value in known.items() if value is not None}

    @property
    def is_readable(self) -> bool:
        """Whether `request` is the one that was stored. If its JSON is damaged, it has no input and no options."""
        return UNREADABLE not in self.request

    @property
    def is_followed(self) -> bool:
        """Whether anybody may follow its events: nobody may if it runs in the background without `stream`."""
        return self.stream or not self.background

    @property
    def conversation_input(self) -> list[Json] | None:
        """The items that go into the response's conversation before its output; None: it has no conversation."""
        return None if self.conversation_id is None else self.request["input"]

    @property
    def request_to_keep(self) -> Json | None:
        """The request without secrets, for the row of a response that has ended; None: the request has none."""
        return {**self.request, "secrets": {}} if self.request.get("secrets") else None

    def as_object(self, output: list[Json] | None = None) -> Json:
        """The response object. `output` takes the place of the row's own while that is None."""
        return response_object(
            self.request,
            response_id=self.id,
            created_at=int(self.created_at.timestamp()),
            status=self.status,
            output=self.output if self.output is not None else output,
            usage=self.usage,
            error=self.error,
            incomplete_details=self.incomplete_details,
            finished_at=int(self.finished_at.timestamp()) if self.finished_at else None,
            messages=self.messages or {},
        )


HasContext = ResponseRow | PromptSource
"""The source of a prompt: a response, or a request whose tokens are counted."""


@dataclass(frozen=True, slots=True)
class ResponseFlags:
    """What a process looks at before it reads anything large of a response; the fields are those of ResponseRow."""

    id: str
    model: str
    created_at: datetime
    background: bool
    stream: bool
    store: bool
    log: str
    finished_at: datetime | None
    fingerprint: bytes | None
    include: Sequence[str] | None
    """What the request included; None: nothing."""
    read_at: datetime

    def as_brief_object(self) -> Json:
        """The response object without what a request and an answer say."""
        return brief_object(self.model, self.id, int(self.created_at.timestamp()))


@dataclass(frozen=True, slots=True)
class Ending:
    """The columns of a final row."""

    status: Status
    output: list[Json]
    finished_at: datetime
    usage: Json | None = None
    error: Json | None = None
    incomplete_details: Json | None = None
    messages: Json | None = None
    tool_results: Json | None = None
    """What models are told of hosted tools' calls, by the output index of the item (a string, as in JSON)."""

    @property
    def error_code(self) -> str | None:
        return None if self.error is None else code_of(self.error)

    @classmethod
    def of(cls, response: Json, finished_at: datetime, tool_results: Json | None = None) -> Ending:
        """The ending in a terminal event's response object; `finished_at` in whole seconds, as clients see it."""
        return cls(
            status=Status(response["status"]),
            output=response["output"],
            finished_at=finished_at,
            usage=response["usage"],
            error=response["error"],
            incomplete_details=response["incomplete_details"],
            messages={name: response[name] for name in MESSAGES if name in response} or None,
            tool_results=tool_results or None,
        )


ENDING: Columns[Ending] = Columns(
    Column("status", "text", attrgetter("value")),
    Column("output", "json", to_json),
    Column("usage", "json", to_json),
    Column("error", "json", to_json),
    Column("error_code", "text"),
    Column("incomplete_details", "json", to_json),
    Column("finished_at", "timestamptz"),
)
"""What every ending sets. No turn of a model produced what else one has (logs.py), if it comes from outside."""


@dataclass(frozen=True, slots=True)
class Notice:
    """The announcement of a response that was ended from outside (app/announcer.py)."""

    response_id: str
    status: Status
    chunk: Chunk | None
    """The response's last chunk; None: nobody has written it (queued.py)."""
    is_followed: bool
    was_sent: bool
    """Whether a worker may know of it."""


@dataclass(frozen=True, slots=True)
class EndResult:
    """How an ending from outside went: the row as it is now, but for `log`, and its terminal chunk if this call ended
    it."""

    row: ResponseRow
    chunk: Chunk | None
    size: int = 0
    """The bytes of a cancelled row and its log."""

    @property
    def notice(self) -> Notice | None:
        """The announcement; None: this call has not ended the response."""
        if self.chunk is None:
            return None
        row = self.row
        return Notice(row.id, row.status, self.chunk, row.is_followed, row.sent_at is not None or row.attempt > 0)


@dataclass(frozen=True, slots=True)
class LargeRow:
    """In place of a row that is too large to be read at once: `lookup.find` and `show` read it in its turn."""

    id: str


LARGE_COLUMNS = ("request", "output", "messages")
"""The columns of a ResponseRow that may be large."""
ROW_BYTES = "r.request_bytes + r.output_bytes + r.messages_bytes"
"""What the row `r` holds of what may be large."""
IS_SMALL = f"(r.messages IS NULL AND r.request_bytes + r.output_bytes <= {LARGE_BYTES})"
"""Whether the row `r` is small. One with `messages` counts as large: it is rare, and they repeat its context."""


def select_list(large: str) -> str:
    """The columns of a ResponseRow, for a statement about the row `r`. `large` makes SQL of those that may be large."""
    made = {"read_at": "now() AS read_at"} | {name: f"{large.format(f'r.{name}')} AS {name}" for name in LARGE_COLUMNS}
    return ", ".join(made.get(name, f"r.{name}") for name in ResponseRow.__slots__)


SMALL_ROW = select_list(f"CASE WHEN {IS_SMALL} THEN {{}} END")
"""For `row_or_large`: without the LARGE_COLUMNS of a row that is not small."""
WHOLE_ROW = select_list("CAST({} AS text)")
"""For `parsed_row`."""


ROW_COLUMNS: list[ColumnClause[Any]] = [column(name) for name in ResponseRow.__slots__]
"""What a text reads with one of these, for statements that run for each response: SQLAlchemy then keeps what it knows
of their columns, where it would find out anew for each result."""


def response_row(row: Row[Any]) -> ResponseRow:
    return _row_of({name: row._mapping[name] for name in ResponseRow.__slots__})


def _row_of(fields: dict[str, Any]) -> ResponseRow:
    fields["status"] = Status(fields["status"])
    if not _is_request(fields["request"]):
        fields["request"] = {"model": fields["model"], "input": [], "include": [], UNREADABLE: True}
    return ResponseRow(**fields)


def _is_request(stored: Any) -> bool:
    """Whether stored JSON has the outline of a request. What is wrong deeper in it fails its own response."""
    return isinstance(stored, dict) and all(isinstance(stored.get(name), list) for name in ("input", "include"))


def row_or_large(row: Row[Any]) -> ResponseRow | LargeRow:
    """`response_row` of a statement that leaves out the request of a large row."""
    return LargeRow(row.id) if row.request is None else response_row(row)


def parsed_row(row: Row[Any]) -> ResponseRow:
    """`response_row` of a statement that returns the LARGE_COLUMNS as text."""
    fields = {name: row._mapping[name] for name in ResponseRow.__slots__}
    parsed = {name: from_json(fields[name]) for name in LARGE_COLUMNS if fields[name] is not None}
    return _row_of({**fields, **parsed})


LOG_PAGE_BYTES = 256 * 1024
"""The events of one page of a log, unless a single chunk or event has more."""

CHUNKS: Columns[Chunk] = Columns(
    Column("response_id", "text"),
    Column("attempt", "int"),
    Column("first", "int"),
    Column("last", "int"),
    Column("final", "bool"),
    Column("tokens", "bytea", pack_tokens),
    Column("frames", "bytea", pack_events),
    Column("size", "int", len, of="frames"),
    Column("steps", "json", lambda steps: to_json(steps or None)),
    Column("input_tokens", "int"),
    Column("cached_tokens", "int"),
)
"""What the table has of `Chunk`s."""
