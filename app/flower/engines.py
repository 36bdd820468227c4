"""The table of engines, as HTML: pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from tornado.escape import xhtml_escape

from app.operations.workers import SeenWorker, WorkerState
from app.store.queue.pauses import PauseRow

COLUMNS = ("Worker", "Model", "State", "Slots", "Ahead", "Sent", "Tokens/s", "Device", "Unit")
AWAY = f'<tr><td colspan="{len(COLUMNS)}">Postgres is away.</td></tr>'
_BADGES = {WorkerState.READY: "bg-success", WorkerState.LOST: "bg-danger", WorkerState.ABSENT: "bg-danger"}


def table(workers: Sequence[SeenWorker], pauses: Sequence[PauseRow], only: str | None = None) -> str:
    """Head and body. `only`: of this worker alone, on its own page."""
    head = "".join(f"<th>{name}</th>" for name in COLUMNS)
    shown = (each for each in workers if only in (None, each.row.name))
    rows = "".join(_row(each, pauses, is_linked=only is None) for each in shown)
    return f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody>"


def _row(seen: SeenWorker, pauses: Sequence[PauseRow], *, is_linked: bool) -> str:
    worker, name = seen.row, xhtml_escape(seen.row.name)
    states = _badge(str(seen.state), _BADGES.get(seen.state, "bg-warning"))
    if worker.draining_since is not None:
        states += _note("by an operator", worker.draining_since, worker.drain_reason)
    for pause in (each for each in pauses if each.queue == worker.queue):
        states += "<br>" + _badge("paused", "bg-warning")
        states += _note(f"for {pause.project}" if pause.project else "", pause.since, pause.reason)
    rest = (
        f"{worker.in_slots}/{worker.slots}",
        worker.ahead,
        worker.sent,
        seen.tokens_per_second,
        worker.device or "",
        worker.unit or worker.pid,
    )
    link = f'<a href="worker/{name}">{name}</a>' if is_linked else name
    cells = (link, xhtml_escape(worker.model), states, *(xhtml_escape(str(each)) for each in rest))
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _badge(text: str, look: str) -> str:
    return f'<span class="badge {look}">{text}</span>'


def _note(what: str, since: datetime, reason: str | None) -> str:
    """Since when a state lasts, and why."""
    text = f"{what} since {since.astimezone(UTC):%Y-%m-%d %H:%M} UTC".strip() + (f": {reason}" if reason else "")
    return f" <small>{xhtml_escape(text)}</small>"
