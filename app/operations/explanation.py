"""Why a response does not run, where it runs, or how it ended: pure, from its row and a snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC
from enum import StrEnum

from app.operations.models import about_ahead
from app.operations.words import count_of, ordinal, resume_command, some_of, span
from app.queue.message import class_of
from app.store.operations.known import KnownResponse
from app.store.operations.snapshot import Snapshot, Worker


class Reason(StrEnum):
    """Why, in a word that programs may rely on."""

    PAUSED = "paused"
    NO_WORKER = "no_worker"
    OLDER_WORKERS = "older_workers"
    DRAINING = "draining"
    BEHIND_OTHERS = "behind_others"
    NO_SLOT = "no_slot"
    DUE = "due"
    SENT = "sent"
    SENT_TO_LOST_WORKER = "sent_to_lost_worker"
    RELEASED = "released"
    SUSPECT = "suspect"
    RUNNING = "running"
    IN_TOOLS = "in_tools"
    LOST_WORKER = "lost_worker"
    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why, in words."""

    reason: Reason
    text: str
    advice: str | None = None
    """What an operator can do; None: nothing needs to be done."""
    behind: int | None = None
    """About so many are sent before it; None: it does not wait for its turn."""


_MAINTENANCE = "Maintenance sends it to another worker within seconds. If it does not, maintenance does not run."


def explain(response: KnownResponse, snapshot: Snapshot, open_calls: Sequence[str] = ()) -> Explanation:
    """`open_calls` are the tools of its last turn that have not answered."""
    if response.finished_at is not None:
        return _ended(response)
    workers = snapshot.workers_of(response.queue)
    if response.worker is not None:
        return _running(response, workers, open_calls)
    if response.sent_at is not None:
        return _sent(response, workers)
    if response.waits and (paused := _paused(response, snapshot)) is not None:
        return paused
    able = [each for each in workers if each.is_living and each.layout >= response.layout]
    if not any(each.is_ready for each in able):
        return _without_worker(response, workers, able)
    if not response.waits:
        return _released(response)
    return _in_line(response, snapshot, [each for each in able if each.is_ready])


def _paused(response: KnownResponse, snapshot: Snapshot) -> Explanation | None:
    of_queue = [each for each in snapshot.pauses if each.queue == response.queue]
    found = next((each for each in of_queue if each.project in (None, response.project)), None)
    if found is None:
        return None
    what = found.model if found.project is None else f"project {found.project} in {found.model}"
    why = f": {found.reason}" if found.reason else ""
    text = f"It waits because {what} is paused since {found.since.astimezone(UTC):%Y-%m-%d %H:%M} UTC{why}."
    return Explanation(Reason.PAUSED, text, f"`{resume_command(found.model, found.project)}` lets it go on.")


def _without_worker(response: KnownResponse, workers: Sequence[Worker], able: Sequence[Worker]) -> Explanation:
    model = response.model
    if able:
        names = some_of([each.name for each in able], 5)
        text = f"It waits for a worker: all of {model} take no responses now ({names})."
        drained = [each for each in able if each.draining_since is not None]
        advice = "They stop, or have no connection to Redis: see their logs, or start another one."
        if drained:
            advice = f"`longhaul undrain {drained[0].name}` lets it take responses again."
        return Explanation(Reason.DRAINING, text, advice)
    if any(each.layout < response.layout and each.lease_seconds > 0 for each in workers):
        text = f"It waits for a worker of a newer version: the living workers of {model} cannot read what it needs."
        return Explanation(
            Reason.OLDER_WORKERS, text, f"Upgrade the workers of {model}, or start one of the newer version."
        )
    text = f"It waits for a worker: no worker of {model} lives."
    return Explanation(Reason.NO_WORKER, text, f"Start a worker of {model}; `longhaul workers` shows which live.")


def _in_line(response: KnownResponse, snapshot: Snapshot, ready: Sequence[Worker]) -> Explanation:
    foreground = class_of(response.priority)[1] == "foreground"
    waiting = [
        each
        for each in snapshot.counts
        if each.queue == response.queue and each.state == "waiting" and not snapshot.is_paused(each.queue, each.project)
    ]
    behind = about_ahead(waiting, response.project, response.priority, response.before, foreground=foreground)
    yielded = "It has yielded its slot to a foreground response, and waits for its turn again. "
    said = yielded if response.status == "in_progress" else ""
    slots = f"{count_of(sum(each.slots for each in ready), 'slot')} of {count_of(len(ready), 'worker')}"
    loads = [each.load for each in ready if each.load is not None]
    room = sum(max(each.open_room, each.most_room if foreground else 0, 0) for each in loads)
    if room > behind:
        text = "A slot is free for it: the next dispatch sends it."
        advice = "If that lasts for seconds, nobody dispatches: see that maintenance, workers and API reach Postgres."
        return Explanation(Reason.DUE, said + text, advice, behind)
    if behind:
        text = f"It waits behind about {count_of(behind, 'response')} in this queue, for {slots} of {response.model}."
        advice = "`longhaul queue --by project` shows whose they are; weights and service tiers decide the shares."
        return Explanation(Reason.BEHIND_OTHERS, said + text, advice, behind)
    text = f"It is the next one, and waits for a slot: all {slots} of {response.model} are taken."
    return Explanation(Reason.NO_SLOT, said + text, None, 0)


def _sent(response: KnownResponse, workers: Sequence[Worker]) -> Explanation:
    ago = span(response.seconds_since(response.sent_at) or 0.0)
    worker = _worker(workers, response.sent_to)
    again = "" if response.sends <= 1 else f", for the {ordinal(response.sends)} time"
    if worker is None or not worker.is_living:
        text = f"It was sent to worker {response.sent_to} {ago} ago{again}, which does not live any more."
        return Explanation(Reason.SENT_TO_LOST_WORKER, text, _MAINTENANCE)
    text = (
        f"It was sent to worker {worker.name} {ago} ago{again}, and is not claimed yet: "
        f"it runs {worker.in_slots} of {count_of(worker.slots, 'slot')}."
    )
    advice = (
        "A message that leads to no claim within seconds is sent again. If that happens again, see the worker's log."
    )
    return Explanation(Reason.SENT, text, advice)


def _released(response: KnownResponse) -> Explanation:
    if response.crashes:
        text = (
            f"Its worker died {count_of(response.crashes, 'time')} since it made progress, so it is a suspect: "
            "it waits for a worker without others' work, at most 30 seconds."
        )
        advice = "If it crashes workers again and again, cancel it, and see their logs."
        return Explanation(Reason.SUSPECT, text, advice)
    text = f"Its worker ({response.sent_to}) died or handed it over after {_attempt(response)}; no other has it yet."
    return Explanation(Reason.RELEASED, text, _MAINTENANCE)


def _running(response: KnownResponse, workers: Sequence[Worker], open_calls: Sequence[str]) -> Explanation:
    worker = _worker(workers, response.worker)
    if worker is None or not worker.is_living:
        gone = "is not registered any more" if worker is None else "shows no sign of life"
        text = f"Worker {response.worker} had it in {_attempt(response)}, and {gone}."
        return Explanation(Reason.LOST_WORKER, text, _MAINTENANCE)
    begun = span(response.seconds_since(response.started_at) or 0.0)
    since = f"begun {begun} ago, attempt 1"
    if response.attempt > 1:
        sent = span(response.seconds_since(response.sent_at) or 0.0)
        since = f"sent there {sent} ago, {_attempt(response)}, first begun {begun} ago"
    text = f"It runs on worker {worker.name} ({worker.host}, process {worker.pid}), {since}"
    if open_calls:
        text += f", and waits for its tools: {', '.join(open_calls)}."
        return Explanation(Reason.IN_TOOLS, text, "A tool server that hangs holds it until the tool's time limit.")
    return Explanation(Reason.RUNNING, f"{text}.")


def _worker(workers: Sequence[Worker], name: str | None) -> Worker | None:
    """The worker of that id or name."""
    return next((each for each in workers if name in (each.id, each.name)), None)


def _attempt(response: KnownResponse) -> str:
    """Says which attempt it is, and why it is not the first."""
    if response.attempt <= 1:
        return "attempt 1"
    parts = [f"yielded {count_of(response.yields, 'time')}"] if response.yields else []
    parts += [f"crashed {count_of(response.crashes, 'time')}"] if response.crashes else []
    return f"attempt {response.attempt}" + (f" ({', '.join(parts)})" if parts else "")


def _ended(response: KnownResponse) -> Explanation:
    assert response.finished_at is not None
    ran = "before it began"
    if response.started_at is not None:
        ran = (
            f"after {span((response.finished_at - response.started_at).total_seconds())}, in attempt {response.attempt}"
        )
    text = f"It ended as {response.status} {span(response.seconds_since(response.finished_at) or 0.0)} ago, {ran}"
    match response.status:
        case "failed":
            error = response.error or {}
            return Explanation(Reason.FAILED, f"{text}: {error.get('code')}: {error.get('message')}")
        case "incomplete":
            return Explanation(Reason.INCOMPLETE, f"{text}: {(response.incomplete_details or {}).get('reason')}.")
        case "cancelled":
            return Explanation(Reason.CANCELLED, f"{text}.")
    tokens = (response.usage or {}).get("output_tokens", 0)
    return Explanation(Reason.COMPLETED, f"{text}, with {count_of(tokens, 'output token')}.")
