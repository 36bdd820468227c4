"""Ownership of responses: claims, and the release of responses whose worker stops."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import column, text

from app.metrics.instruments import UNREAD, WorkerMetrics
from app.protocol.status import TRANSITIONS
from app.store.database import Database
from app.store.guards import MAX_CLAIMS, RELEASED, HandOver, sources
from app.store.layout import LAYOUT
from app.store.rows import ROW_COLUMNS, SMALL_ROW, LargeRow, ResponseRow, row_or_large

# Like the journal's statement: it locks rows in the order of their ids, and finds them by key alone. The conditions
# are on the locked rows, because those of the statement's snapshot may be older.
#
# The commit does not wait for the disk: whatever the claim leads to is a later commit in the same log, which flushes
# it too. If Postgres crashes before that, the claim was never made: the worker is refused at its first chunk, and
# maintenance sends the response again (docs/internals/performance.md).
#
# The log is from now on that of this version: older workers leave it alone.
#
# Only a living worker claims: what another one claimed would be taken from it as from a dead one, and counted as a
# crash. The lock makes a removal of the worker (workers.py) come before the claim or after it, never in between; it
# is taken before those of the rows, as a removal takes them.
_CLAIM = text(
    f"""
    WITH batch AS (
        SELECT * FROM unnest((SELECT CAST(:ids AS text[])), CAST(:workers AS text[])) AS b(id, worker)
    ), living AS MATERIALIZED (
        SELECT w.id, w.node FROM workers w WHERE w.id IN (SELECT worker FROM batch) AND w.lease_until > now()
        FOR KEY SHARE OF w
    ), locked AS MATERIALIZED (
        SELECT r.id, r.status, r.worker, r.attempt, r.yields, r.yielded, r.layout, b.worker AS claimant, w.node,
            least(r.queue_deadline, r.due_at) AS deadline
        FROM batch b JOIN living w ON w.id = b.worker JOIN responses r ON r.id = b.id
        ORDER BY r.id FOR NO KEY UPDATE OF r
    ), unflushed AS MATERIALIZED (
        SELECT set_config('synchronous_commit', 'off', true) AS setting
    )
    UPDATE responses r SET
        status = '{TRANSITIONS["claim"].target.value}', attempt = r.attempt + 1, worker = l.claimant, layout = {LAYOUT},
        yielded = false, sent_at = coalesce(r.sent_at, now()), sent_to = l.node,
        started_at = coalesce(r.started_at, now()), claimed_at = now(),
        run_deadline = coalesce(r.run_deadline, now() + make_interval(secs => r.run_seconds))
    FROM locked l, unflushed
    WHERE unflushed.setting = 'off' AND r.id = l.id AND l.layout <= {LAYOUT} AND (
        l.status IN ({sources("claim")}) AND coalesce(l.deadline > now(), true)
        OR l.status IN ({sources("take_over")}) AND l.worker IS NULL AND (l.attempt - l.yields < :max_claims
            OR l.attempt = (SELECT p.attempt FROM progress p WHERE p.response_id = l.id))
    )
    RETURNING {SMALL_ROW}, l.yielded AS had_yielded
    """
).columns(*ROW_COLUMNS, column("had_yielded"))


async def claim_all(
    db: Database,
    wanted: Sequence[tuple[str, str]],
    max_claims: int = MAX_CLAIMS,
    metrics: WorkerMetrics = UNREAD,
) -> list[ResponseRow | LargeRow | None]:
    """Claims each (response id, worker) of `wanted` under a new attempt; returns the rows in the same order.

    A response can be claimed `max_claims` times, once more for each yield, and whenever its last attempt made progress:
    while it is queued, or in progress without an owner, and only if this version knows its layout. None: another worker
    has it, or a newer one must, or it is final or deleted; or the claimant is not alive (`workers.is_alive`). Then the
    message was a duplicate or late, or maintenance sends another. A row that is too large for a batch is claimed, but
    not read. If an id comes twice, the first worker gets it. All claims are committed together. Raises
    StoreUnavailable: then all of them may have been committed, or none.
    """
    claimants = dict(reversed(wanted))  # of an id that comes twice, the first
    parameters = {"ids": list(claimants), "workers": list(claimants.values()), "max_claims": max_claims}
    rows: dict[str, ResponseRow | LargeRow] = {}
    for row in await db.execute(_CLAIM, parameters):
        metrics.claimed(row.attempt, has_yielded=row.had_yielded)
        rows[row.id] = row_or_large(row)
    return [rows.pop(response_id, None) for response_id, _ in wanted]


_RELEASE = text(
    f"""
    UPDATE responses r SET {RELEASED}, crashes = coalesce(:crashes, r.crashes)
    WHERE r.id = :id AND r.status = 'in_progress' AND r.attempt = :attempt AND r.worker = :worker
    RETURNING r.id
    """
)
_YIELD = text(
    """
    UPDATE responses r SET worker = NULL, sent_at = NULL, sends = 0, yielded = true, yields = r.yields + 1,
        run_seconds = extract(epoch FROM r.run_deadline - now()), run_deadline = NULL, history = handed_over(r, :how)
    WHERE r.id = :id AND r.status = 'in_progress' AND r.attempt = :attempt AND r.worker = :worker
    RETURNING r.id
    """
)


async def release(
    db: Database,
    response_id: str,
    attempt: int,
    worker: str,
    crashes: int | None = None,
    how: HandOver = HandOver.DRAINED,
) -> bool:
    """Releases a response, if this worker still owns it under this attempt; returns whether it did.

    Maintenance sends it to another worker (redelivery.py). `how` is for its history. `crashes`: how many
    it has now; None: as many as before. Reads nothing large: a worker that stops releases many at once.
    """
    values = {"id": response_id, "attempt": attempt, "worker": worker, "how": how.value, "crashes": crashes}
    return bool(await db.execute(_RELEASE, values))


async def yield_(db: Database, response_id: str, attempt: int, worker: str) -> bool:
    """Puts a response back in line, if this worker still owns it under this attempt; returns whether it did.

    It waits in its flow's place for a dispatch. Its run timeout stands still meanwhile: the next claim goes on with
    what is left of it.
    """
    values = {"id": response_id, "attempt": attempt, "worker": worker, "how": HandOver.YIELDED.value}
    return bool(await db.execute(_YIELD, values))
