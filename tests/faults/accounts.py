"""What Postgres recorded about waiting, limits and usage, and what must follow from it.

Triggers note when a response begins to wait, is sent for the first time, leaves the queue and ends. They run right
before the commit (`DEFERRED`), so an entry that another transaction could see has the smaller id. All sums are formed
here from the entries, not by the product.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

from sqlalchemy import text

from app.protocol.limits import LimitKind, LimitState
from app.protocol.status import Status
from app.protocol.types import Json
from app.store.database import Database
from tests.faults.audit import Write

PASSED_SECONDS = 3.0
"""A response may pass an older one of its flow that began to wait, or was sent, within so many seconds: a transaction
that a fault holds up shows later what it inserted, and a dispatch leaves out rows that are locked."""
TOKEN_BYTES = 4
"""Of one token in a log."""

_COLUMNS = """
    response text NOT NULL, project text NOT NULL, key_id text, queue text NOT NULL, priority int NOT NULL,
    created_at timestamptz NOT NULL, before text, after text NOT NULL, is_sent boolean NOT NULL,
    reserved_bytes bigint, reserved_input bigint, usage jsonb, at timestamptz NOT NULL
"""
_VALUES = """
    NEW.id, NEW.project, NEW.key_id, NEW.queue, NEW.priority, NEW.created_at,
    CASE TG_OP WHEN 'UPDATE' THEN OLD.status END, NEW.status, NEW.sent_at IS NOT NULL,
    NEW.reserved_bytes, NEW.reserved_input, NEW.usage, clock_timestamp()
"""
_TRIGGER = "ON responses DEFERRABLE INITIALLY DEFERRED FOR EACH ROW {} EXECUTE FUNCTION fault_account()"
_INSTALL = (
    f"CREATE TABLE fault_accounts (id bigserial PRIMARY KEY, {_COLUMNS})",
    f"""
    CREATE FUNCTION fault_account() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO fault_accounts SELECT nextval('fault_accounts_id_seq'), {_VALUES};
        RETURN NULL;
    END $$
    """,
    f"CREATE CONSTRAINT TRIGGER fault_account_new AFTER INSERT {_TRIGGER.format('')}",
    "CREATE CONSTRAINT TRIGGER fault_account AFTER UPDATE "
    + _TRIGGER.format("WHEN (OLD.status <> NEW.status OR OLD.sent_at IS NULL AND NEW.sent_at IS NOT NULL)"),
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One change of a response that concerns its place in the queue, its reservation or its usage."""

    response_id: str
    project: str
    key_id: str
    flow: tuple[str, str, int]
    """Queue, project and priority."""
    created_at: float
    before: Status | None
    """None for an insertion."""
    after: Status
    is_sent: bool
    """Whether it has, or had, a message in Redis."""
    reserved_bytes: int
    reserved_input: int
    usage: Json | None
    at: float
    """Seconds since the epoch, right before the commit."""

    @property
    def begins(self) -> bool:
        return self.before is None

    @property
    def leaves_queue(self) -> bool:
        return self.before is Status.QUEUED and self.after is not Status.QUEUED

    @property
    def ends(self) -> bool:
        return self.before is not None and not self.before.final and self.after.final


@dataclass(frozen=True, slots=True)
class Usage:
    """What the responses of one key used together."""

    requests: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int

    def __add__(self, other: Usage) -> Usage:
        return Usage(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    @classmethod
    def of(cls, usage: Json) -> Usage:
        cached = usage["input_tokens_details"]["cached_tokens"]
        reasoning = usage["output_tokens_details"]["reasoning_tokens"]
        return cls(1, usage["input_tokens"], cached, usage["output_tokens"], reasoning)


Ledger = dict[tuple[str, str], Usage]
"""By project and id of the key."""


async def install(db: Database) -> None:
    """Adds the table and triggers to a new schema."""
    async with db.begin() as connection:
        for statement in _INSTALL:
            await connection.execute(text(statement))


async def entries(db: Database) -> list[Entry]:
    """All entries, in the order of their commits as far as they depend on each other."""
    async with db.autocommit() as connection:
        return [
            Entry(
                row.response,
                row.project,
                row.key_id or "",
                (row.queue, row.project, row.priority),
                row.created_at.timestamp(),
                None if row.before is None else Status(row.before),
                Status(row.after),
                row.is_sent,
                row.reserved_bytes or 0,
                row.reserved_input or 0,
                row.usage,
                row.at.timestamp(),
            )
            for row in await connection.execute(text("SELECT * FROM fault_accounts ORDER BY id"))
        ]


# -- usage ---------------------------------------------------------------------------------------------------


def used(accounts: Sequence[Entry]) -> Ledger:
    """The sum of the `usage` of all responses that have ended, deleted ones included."""
    found: Ledger = {}
    for entry in accounts:
        if entry.ends and entry.usage is not None:
            key, usage = (entry.project, entry.key_id), Usage.of(entry.usage)
            found[key] = found[key] + usage if key in found else usage
    return found


def charged(accounts: Sequence[Entry], writes: Mapping[str, Sequence[Write]]) -> Counter[str]:
    """Project -> the tokens that its limits are charged with in the end (docs/tenants.md)."""
    found: Counter[str] = Counter()
    for entry in accounts:
        if not entry.ends or entry.before is Status.QUEUED:
            continue
        if entry.usage is not None:
            found[entry.project] += entry.usage["input_tokens"] + entry.usage["output_tokens"]
        else:
            log = {write.first: write.token_bytes for write in writes.get(entry.response_id, ())}
            found[entry.project] += entry.reserved_input + sum(log.values()) // TOKEN_BYTES
    return found


# -- limits --------------------------------------------------------------------------------------------------


def most(accounts: Sequence[Entry]) -> dict[tuple[str, LimitKind], int]:
    """The most that each project ever had of what its limits count: in the queue, their bytes, and not ended."""
    now: Counter[tuple[str, LimitKind]] = Counter()
    found: dict[tuple[str, LimitKind], int] = {}
    for entry in accounts:
        in_queue = int(entry.begins) - int(entry.leaves_queue)
        changes = {
            LimitKind.QUEUED_RESPONSES: in_queue,
            LimitKind.QUEUED_BYTES: in_queue * entry.reserved_bytes,
            LimitKind.UNFINISHED_RESPONSES: int(entry.begins) - int(entry.ends),
        }
        for kind, change in changes.items():
            key = (entry.project, kind)
            now[key] += change
            found[key] = max(found.get(key, 0), now[key])
    return found


def exceeded(accounts: Sequence[Entry], limits: Sequence[LimitState]) -> Iterator[tuple[str, str]]:
    """Limits of which more was taken than they allow."""
    peaks = most(accounts)
    for limit in limits:
        peak = peaks.get((limit.project, limit.kind), 0)
        if peak > limit.value:
            yield limit.project, f"had {peak} of {limit.value} {limit.kind.value}"


# -- order ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Waiting:
    """A response from its insertion to its first message."""

    response_id: str
    created_at: float
    since: float
    until: float | None = None
    """When it was sent or left the queue."""
    sent_at: float | None = None


def passed(accounts: Sequence[Entry]) -> Iterator[tuple[str, str]]:
    """Responses that were sent although an older one of their flow waited, and went on waiting."""
    for flow in _flows(accounts).values():
        by_age = sorted(flow, key=lambda each: each.created_at)
        for number, older in enumerate(by_age):
            for younger in by_age[number + 1 :]:
                if _has_passed(younger, older):
                    yield younger.response_id, f"was sent while {older.response_id}, which is older, waited"


def _has_passed(younger: _Waiting, older: _Waiting) -> bool:
    if (sent := younger.sent_at) is None or sent < older.since + PASSED_SECONDS:
        return False
    return older.until is None or older.until > sent + PASSED_SECONDS


def _flows(accounts: Sequence[Entry]) -> dict[tuple[str, str, int], list[_Waiting]]:
    found: dict[tuple[str, str, int], list[_Waiting]] = defaultdict(list)
    waiting: dict[str, _Waiting] = {}
    for entry in accounts:
        if entry.begins:
            waiting[entry.response_id] = each = _Waiting(entry.response_id, entry.created_at, entry.at)
            found[entry.flow].append(each)
        each = waiting[entry.response_id]
        if each.until is None and (entry.is_sent or entry.leaves_queue):
            each.until = entry.at
            each.sent_at = entry.at if entry.is_sent else None
    return found
