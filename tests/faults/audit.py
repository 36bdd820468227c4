"""Triggers by which Postgres records every transition, every chunk and every result, in the same transaction.

Clients and rows could agree at the end by luck. This is the complete history: which attempt wrote what, and when.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sqlalchemy import text

from app.protocol.status import Status
from app.store.database import Database

INSTALL = (
    """
    CREATE TABLE fault_audit (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        response text NOT NULL, what text NOT NULL, before text, after text,
        attempt int NOT NULL, attempt_before int, worker text, worker_before text, layout int, layout_before int,
        at timestamptz NOT NULL
    )
    """,
    """
    CREATE FUNCTION fault_note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
    BEGIN
        IF TG_OP = 'INSERT' THEN
            INSERT INTO fault_audit (response, what, after, attempt, worker, at)
            VALUES (NEW.id, TG_OP, NEW.status, NEW.attempt, NEW.worker, clock_timestamp());
        ELSIF TG_OP = 'DELETE' THEN
            INSERT INTO fault_audit (response, what, before, attempt, worker, at)
            VALUES (OLD.id, TG_OP, OLD.status, OLD.attempt, OLD.worker, clock_timestamp());
        ELSIF (OLD.status, OLD.attempt, OLD.worker) IS DISTINCT FROM (NEW.status, NEW.attempt, NEW.worker) THEN
            INSERT INTO fault_audit
                (response, what, before, after, attempt, attempt_before, worker, worker_before, layout, layout_before,
                at)
            VALUES (NEW.id, TG_OP, OLD.status, NEW.status, NEW.attempt, OLD.attempt, NEW.worker, OLD.worker,
                NEW.layout, OLD.layout, clock_timestamp());
        END IF;
        IF TG_OP = 'UPDATE' AND OLD.finished_at IS NOT NULL AND OLD.log = 'live' AND NEW.log = 'merged' THEN
            PERFORM set_config('faults.merged', NEW.id, true);
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
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        response text NOT NULL, first int NOT NULL, last int NOT NULL, attempt int NOT NULL,
        violation text, at timestamptz NOT NULL, token_bytes int NOT NULL,
        input_tokens int NOT NULL, cached_tokens int NOT NULL
    )
    """,
    "CREATE INDEX ON fault_writes (response)",
    # Deferred until right before the commit: nobody can have read the chunk, and the row of its response is final.
    # What merging writes was recorded before. That a log is merged does not tell: a short one is from its end.
    """
    CREATE FUNCTION fault_write() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
    DECLARE
        owner responses%ROWTYPE;
    BEGIN
        IF current_setting('faults.merged', true) = NEW.response_id THEN RETURN NULL; END IF;
        SELECT * INTO owner FROM responses WHERE id = NEW.response_id;
        INSERT INTO fault_writes (response, first, last, attempt, violation, at, token_bytes,
            input_tokens, cached_tokens)
        VALUES (NEW.response_id, NEW.first, NEW.last, NEW.attempt, CASE
            WHEN TG_OP = 'UPDATE' AND OLD.frames <> NEW.frames THEN 'was rewritten'
            WHEN owner.attempt <> NEW.attempt THEN 'was written while attempt ' || owner.attempt || ' owned it'
            WHEN owner.status = 'in_progress' AND owner.worker IS NULL THEN 'was written while no worker owned it'
            END, clock_timestamp(), octet_length(NEW.tokens),
            NEW.input_tokens, NEW.cached_tokens);
        RETURN NULL;
    END $$
    """,
    """
    CREATE CONSTRAINT TRIGGER fault_write AFTER INSERT OR UPDATE ON chunks DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION fault_write()
    """,
    """
    CREATE TABLE fault_results (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, batch text NOT NULL, line int NOT NULL, change text NOT NULL
    )
    """,
    """
    CREATE FUNCTION fault_result() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
    BEGIN
        IF TG_OP = 'DELETE' THEN
            INSERT INTO fault_results (batch, line, change) VALUES (OLD.batch_id, OLD.line, 'deleted');
        ELSIF TG_OP = 'INSERT' THEN
            INSERT INTO fault_results (batch, line, change) VALUES (NEW.batch_id, NEW.line, 'noted');
        ELSE
            INSERT INTO fault_results (batch, line, change) VALUES (NEW.batch_id, NEW.line, CASE
                WHEN OLD.number IS NULL AND NEW.number IS NOT NULL AND (OLD.status, OLD.response_id, OLD.custom_id)
                    IS NOT DISTINCT FROM (NEW.status, NEW.response_id, NEW.custom_id)
                THEN 'numbered' ELSE 'changed' END);
        END IF;
        RETURN NULL;
    END $$
    """,
    """
    CREATE TRIGGER fault_result AFTER INSERT OR UPDATE OR DELETE ON batch_results
    FOR EACH ROW EXECUTE FUNCTION fault_result()
    """,
)


@dataclass(frozen=True, slots=True)
class Transition:
    """One change of a row's status, attempt or owner. `before` is None for an insertion, `after` for a deletion."""

    response_id: str
    before: Status | None
    after: Status | None
    attempt: int
    attempt_before: int | None
    worker: str | None
    worker_before: str | None
    layout: int = 0
    """Layout of the row, after the change and before it; 0: it was inserted or deleted."""
    layout_before: int = 0


@dataclass(frozen=True, slots=True)
class Write:
    """One write of a chunk, which has events `first` to `last`."""

    first: int
    last: int
    attempt: int
    violation: str | None
    """How the write breaks the third law (one owner at a time); None if it does not."""
    at: float
    """Seconds since the epoch, right before the commit."""
    token_bytes: int = 0
    """The size of the chunk's tokens."""
    input_tokens: int = 0
    cached_tokens: int = 0


async def transitions(db: Database, ids: Sequence[str] | None = None) -> dict[str, list[Transition]]:
    """The transitions in order of every response there ever was, or of `ids`."""
    found: dict[str, list[Transition]] = {}
    for row in await _rows(db, "fault_audit", ids):
        before, after = (None if status is None else Status(status) for status in (row.before, row.after))
        owners = (row.attempt, row.attempt_before, row.worker, row.worker_before)
        transition = Transition(row.response, before, after, *owners, row.layout or 0, row.layout_before or 0)
        found.setdefault(row.response, []).append(transition)
    return found


async def writes(db: Database, ids: Sequence[str] | None = None) -> dict[str, list[Write]]:
    """The writes in order of every response there ever was, or of `ids`."""
    found: dict[str, list[Write]] = {}
    for row in await _rows(db, "fault_writes", ids):
        counts = row.token_bytes, row.input_tokens, row.cached_tokens
        write = Write(row.first, row.last, row.attempt, row.violation, row.at.timestamp(), *counts)
        found.setdefault(row.response, []).append(write)
    return found


async def results(db: Database) -> dict[str, dict[int, list[str]]]:
    """What became of the result of each line, batch by batch: `noted` and `numbered`, and nothing else."""
    found: dict[str, dict[int, list[str]]] = {}
    for row in await db.execute(text("SELECT batch, line, change FROM fault_results ORDER BY id")):
        found.setdefault(row.batch, {}).setdefault(row.line, []).append(row.change)
    return found


async def _rows(db: Database, table: str, ids: Sequence[str] | None) -> Sequence[Any]:
    condition = "CAST(:ids AS text[]) IS NULL OR response = ANY(CAST(:ids AS text[]))"
    statement = text(f"SELECT * FROM {table} WHERE {condition} ORDER BY id")
    return await db.execute(statement, {"ids": None if ids is None else list(ids)})


def violations(steps: list[Transition]) -> list[str]:
    """How the transitions of one response break a law."""
    found = []
    if steps[0].before is not None or steps[0].after is not Status.QUEUED:
        found.append(f"inserted as {steps[0].after}")
    for earlier, step in pairwise(steps):
        if earlier.after is not step.before:
            found.append(f"{step.before} follows {earlier.after}")
        if step.before is not None and step.before.final and step.after is not None:
            found.append(f"went from {step.before.value} to {step.after.value}")
        if step.after is Status.QUEUED:
            found.append("went back to queued")
        if step.after is None and step.before is not None and not step.before.final:
            found.append(f"deleted while {step.before.value}")
        claimed = step.attempt_before is not None and step.attempt != step.attempt_before
        if claimed and step.attempt != (step.attempt_before or 0) + 1:
            found.append(f"attempt {step.attempt_before} became {step.attempt}")
        if claimed and step.worker_before is not None:
            found.append(f"attempt {step.attempt} was claimed while {step.worker_before} owned it")
        if step.layout < step.layout_before:
            found.append(f"a worker of layout {step.layout} claimed one of layout {step.layout_before}")
        if not claimed and step.worker not in (None, step.worker_before):
            found.append("a new owner without a new attempt")
    return found
