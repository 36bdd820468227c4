"""Postgres writes down every transition and every chunk of each response, in the same transaction, by our triggers.

What clients and rows say at the end could agree by luck; this is the row's whole life, and who wrote what, when.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from sqlalchemy import TextClause, text

from app.protocol.status import Status
from app.store.database import Database

_INSTALL = (
    """
    CREATE TABLE fault_audit (
        id bigserial PRIMARY KEY, response text NOT NULL, what text NOT NULL, before text, after text,
        attempt int NOT NULL, attempt_before int, worker text, worker_before text, at timestamptz NOT NULL
    )
    """,
    """
    CREATE FUNCTION fault_note() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF TG_OP = 'INSERT' THEN
            INSERT INTO fault_audit (response, what, after, attempt, worker, at)
            VALUES (NEW.id, TG_OP, NEW.status, NEW.attempt, NEW.worker, clock_timestamp());
        ELSIF TG_OP = 'DELETE' THEN
            INSERT INTO fault_audit (response, what, before, attempt, worker, at)
            VALUES (OLD.id, TG_OP, OLD.status, OLD.attempt, OLD.worker, clock_timestamp());
        ELSIF (OLD.status, OLD.attempt, OLD.worker) IS DISTINCT FROM (NEW.status, NEW.attempt, NEW.worker) THEN
            INSERT INTO fault_audit
                (response, what, before, after, attempt, attempt_before, worker, worker_before, at)
            VALUES (NEW.id, TG_OP, OLD.status, NEW.status, NEW.attempt, OLD.attempt, NEW.worker, OLD.worker,
                clock_timestamp());
        END IF;
        RETURN NULL;
    END $$
    """,
    """
    CREATE TRIGGER fault_note AFTER INSERT OR UPDATE OR DELETE ON responses
    FOR EACH ROW EXECUTE FUNCTION fault_note()
    """,
    """
    CREATE TABLE fault_writes (
        id bigserial PRIMARY KEY, response text NOT NULL, first int NOT NULL, last int NOT NULL, attempt int NOT NULL,
        wrong text, at timestamptz NOT NULL
    )
    """,
    # Deferred: right before the commit, when nobody can have read the chunk, and its row is what it will be.
    # Merged logs are no news.
    """
    CREATE FUNCTION fault_write() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        owner responses%ROWTYPE;
    BEGIN
        SELECT * INTO owner FROM responses WHERE id = NEW.response_id;
        INSERT INTO fault_writes (response, first, last, attempt, wrong, at)
        VALUES (NEW.response_id, NEW.first, NEW.last, NEW.attempt, CASE
            WHEN TG_OP = 'UPDATE' AND OLD.frames <> NEW.frames THEN 'was rewritten'
            WHEN owner.attempt <> NEW.attempt THEN 'was written when attempt ' || owner.attempt || ' had it'
            WHEN owner.status = 'in_progress' AND owner.worker IS NULL THEN 'was written when nobody had it'
            END, clock_timestamp());
        RETURN NULL;
    END $$
    """,
    """
    CREATE CONSTRAINT TRIGGER fault_write AFTER INSERT OR UPDATE ON chunks DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NOT NEW.compressed) EXECUTE FUNCTION fault_write()
    """,
)


@dataclass(frozen=True, slots=True)
class Step:
    """One transition; `before` is None for an insertion, `after` for a deletion."""

    response_id: str
    before: Status | None
    after: Status | None
    attempt: int
    attempt_before: int | None
    worker: str | None
    worker_before: str | None


@dataclass(frozen=True, slots=True)
class Write:
    """One chunk as it was written: events `first` to `last`."""

    first: int
    last: int
    attempt: int
    wrong: str | None
    """What about it breaks the third law."""
    at: float
    """Seconds since the epoch, by the clock of this machine: the chunk was committed after this, never before."""


async def install(db: Database) -> None:
    """On a schema that was just made."""
    async with db.begin() as connection:
        for statement in _INSTALL:
            await connection.execute(text(statement))


async def lives(db: Database, ids: Sequence[str] | None = None) -> dict[str, list[Step]]:
    """Every response that ever was (or these), with its transitions in order."""
    columns = "response, before, after, attempt, attempt_before, worker, worker_before"
    found: dict[str, list[Step]] = {}
    async with db.autocommit() as connection:
        for row in await connection.execute(_asked(f"SELECT {columns} FROM fault_audit", ids)):
            before, after = (None if status is None else Status(status) for status in (row.before, row.after))
            step = Step(row.response, before, after, row.attempt, row.attempt_before, row.worker, row.worker_before)
            found.setdefault(row.response, []).append(step)
    return found


async def writes(db: Database, ids: Sequence[str] | None = None) -> dict[str, list[Write]]:
    """Every chunk of every response that ever was (or of these), in the order in which they were written."""
    found: dict[str, list[Write]] = {}
    async with db.autocommit() as connection:
        for row in await connection.execute(_asked("SELECT * FROM fault_writes", ids)):
            write = Write(row.first, row.last, row.attempt, row.wrong, row.at.timestamp())
            found.setdefault(row.response, []).append(write)
    return found


def _asked(statement: str, ids: Sequence[str] | None) -> TextClause:
    if ids is None:
        return text(f"{statement} ORDER BY id")
    return text(f"{statement} WHERE response = ANY(:ids) ORDER BY id").bindparams(ids=list(ids))


def wrong(steps: list[Step]) -> list[str]:
    """What in one response's life breaks a law."""
    found = []
    if steps[0].before is not None or steps[0].after is not Status.QUEUED:
        found.append(f"born {steps[0].after}")
    for earlier, step in pairwise(steps):
        if earlier.after is not step.before:
            found.append(f"{step.before} follows {earlier.after}")
        if step.before is not None and step.before.final and step.after is not None:
            found.append(f"left {step.before.value} for {step.after.value}")
        if step.after is Status.QUEUED:
            found.append("went back to queued")
        if step.after is None and step.before is not None and not step.before.final:
            found.append(f"deleted while {step.before.value}")
        claimed = step.attempt_before is not None and step.attempt != step.attempt_before
        if claimed and step.attempt != (step.attempt_before or 0) + 1:
            found.append(f"attempt {step.attempt_before} became {step.attempt}")
        if claimed and step.worker_before is not None:
            found.append(f"attempt {step.attempt} was claimed from {step.worker_before}, its owner")
        if not claimed and step.worker not in (None, step.worker_before):
            found.append("another owner without another attempt")
    return found
