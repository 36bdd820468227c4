"""Why a response does not run, where it runs, or how it ended: pure, from what the rows say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC
from enum import StrEnum

from app.operations.turn import behind, when
from app.operations.words import count_of, ordinal, some_of, span
from app.operations.workers import LIVING, WorkerState, state_of
from app.scheduling.line import Place
from app.store.queue.pace import of_queues
from app.store.queue.response_facts import ResponseFacts, Surroundings
from app.store.queue.worker_rows import WorkerRow


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
    """Why, in words, and the numbers in them."""

    reason: Reason
    text: str
    advice: str | None = None
    """What an operator can do; None: nothing needs to be done."""
    place: Place | None = None
    expected_seconds: float | None = None
    """Until it is sent, at the pace of late; None: nobody knows."""


@dataclass(frozen=True, slots=True)
class _Case:
    """A response that has not ended, and what it stands among."""

    response: ResponseFacts
    around: Surroundings

    @property
    def able(self) -> Sequence[WorkerRow]:
        """The living workers of its queue that know its layout."""
        living = (each for each in self.around.workers if state_of(each) in LIVING)
        return [each for each in living if each.layout >= self.response.layout]

    @property
    def ready(self) -> Sequence[WorkerRow]:
        """Those of them that take responses."""
        return [each for each in self.able if state_of(each) is WorkerState.READY]

    def worker(self, name: str | None) -> WorkerRow | None:
        """The worker of that id or name."""
        return next((each for each in self.around.workers if name in (each.id, each.name)), None)

    @property
    def attempt(self) -> str:
        """In words: which attempt, and why it is not the first."""
        number, yields, crashes = self.response.attempt, self.response.yields, self.response.crashes
        if number <= 1:
            return "attempt 1"
        parts = [f"yielded {count_of(yields, 'time')}"] if yields else []
        parts += [f"crashed {count_of(crashes, 'time')}"] if crashes else []
        return f"attempt {number}" + (f" ({', '.join(parts)})" if parts else "")


_Rule = Callable[[_Case], Explanation | None]


def explain(response: ResponseFacts, around: Surroundings | None) -> Explanation:
    """`around` is None if the response has ended."""
    if around is None:
        return _ended(response)
    case = _Case(response, around)
    if response.worker is not None:
        rules = _RUNNING
    elif response.waits:
        rules = _WAITING
    else:
        rules = _RELEASED if response.sent_seconds is None else _SENT
    return next(found for rule in rules if (found := rule(case)) is not None)


def _paused(case: _Case) -> Explanation | None:
    project = case.response.project
    found = next((each for each in case.around.pauses if each.project in (None, project)), None)
    if found is None:
        return None
    what = found.model if found.project is None else f"project {project} in {found.model}"
    why = f": {found.reason}" if found.reason else ""
    text = f"It waits because {what} is paused since {found.since.astimezone(UTC):%Y-%m-%d %H:%M} UTC{why}."
    option = "" if found.project is None else f" --project {project}"
    return Explanation(Reason.PAUSED, text, f"`longhaul resume {found.model}{option}` lets it go on.")


def _no_worker(case: _Case) -> Explanation | None:
    model, layout = case.response.model, case.response.layout
    if case.able:
        return None
    if any(each.layout < layout and each.lease_seconds > 0 for each in case.around.workers):
        text = f"It waits for a worker of a newer version: the living workers of {model} cannot read what it needs."
        return Explanation(
            Reason.OLDER_WORKERS, text, f"Upgrade the workers of {model}, or start one of the newer version."
        )
    text = f"It waits for a worker: no worker of {model} lives."
    return Explanation(Reason.NO_WORKER, text, f"Start a worker of {model}; `longhaul workers` shows which live.")


def _draining(case: _Case) -> Explanation | None:
    if case.ready:
        return None
    names = some_of([each.name for each in case.able], 5)
    text = f"It waits for a worker: all of {case.response.model} take no responses now ({names})."
    drained = [each for each in case.able if each.draining_since is not None]
    if drained:
        return Explanation(Reason.DRAINING, text, f"`longhaul undrain {drained[0].name}` lets it take responses again.")
    advice = "They stop, or have no connection to Redis: see their logs, or start another one."
    return Explanation(Reason.DRAINING, text, advice)


def _in_line(case: _Case) -> Explanation | None:
    place, room = case.around.place, case.around.state.room()
    if place is None:
        return Explanation(Reason.DUE, "It is being sent to a worker at this moment.")
    pace = of_queues(case.around.paces).get(case.response.queue)
    expected = None if pace is None else (place.number + 1) / pace.ended_per_second
    has_yielded = case.response.status == "in_progress"
    yielded = "It has yielded its slot to a foreground response, and waits for its turn again. " if has_yielded else ""
    if place.number == 0:
        is_foreground = case.response.service_class[1] == "foreground"
        if room.open or (room.foreground and is_foreground):
            advice = (
                "If that lasts for seconds, nobody dispatches: see that maintenance, workers and API reach Postgres."
            )
            text = "It is the next one, and a slot is free: the next dispatch sends it."
            return Explanation(Reason.DUE, yielded + text, advice, place, 0.0)
        text = f"It is the next one, and waits for a slot: all {_slots(case)} of {case.response.model} are taken."
        return Explanation(Reason.NO_SLOT, yielded + text + when(expected), None, place, expected)
    others = behind(place, case.response.project, case.response.priority)
    text = f"It waits for its turn behind {others}, for {_slots(case)} of {case.response.model}."
    advice = "`longhaul queue --by project` shows whose they are; weights and service tiers decide the shares."
    return Explanation(Reason.BEHIND_OTHERS, yielded + text + when(expected), advice, place, expected)


def _slots(case: _Case) -> str:
    slots = sum(each.slots for each in case.ready)
    return f"{count_of(slots, 'slot')} of {count_of(len(case.ready), 'worker')}"


def _count(case: _Case) -> Explanation | None:
    response = case.response
    if response.sent_to is not None or response.sent_seconds is None:
        return None
    ago = span(response.sent_seconds)
    text = f"It is a count of tokens, and was sent {ago} ago to the workers of {response.model}: any of them takes it."
    return Explanation(Reason.SENT, text, "A worker runs few counts at once. One that nobody takes is sent again.")


def _sent(case: _Case) -> Explanation:
    response = case.response
    assert response.sent_seconds is not None
    worker, ago = case.worker(response.sent_to), span(response.sent_seconds)
    again = "" if response.sends <= 1 else f", for the {ordinal(response.sends)} time"
    if worker is None or state_of(worker) not in LIVING:
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


_MAINTENANCE = "Maintenance sends it to another worker within seconds. If it does not, maintenance does not run."


def _released(case: _Case) -> Explanation:
    response = case.response
    if response.crashes:
        text = (
            f"Its worker died {count_of(response.crashes, 'time')} since it made progress, so it is a suspect: "
            "it waits for a worker without others' work, at most 30 seconds."
        )
        return Explanation(
            Reason.SUSPECT, text, "If it crashes workers again and again, cancel it, and see their logs."
        )
    text = f"Its worker ({response.sent_to}) died or handed it over after {case.attempt}; no other has it yet."
    return Explanation(Reason.RELEASED, text, _MAINTENANCE)


def _lost_owner(case: _Case) -> Explanation | None:
    response = case.response
    worker = case.worker(response.worker)
    if worker is not None and state_of(worker) in LIVING:
        return None
    gone = "is not registered any more" if worker is None else "shows no sign of life"
    text = f"Worker {response.worker} had it in {case.attempt}, and {gone}."
    return Explanation(Reason.LOST_WORKER, text, _MAINTENANCE)


def _in_tools(case: _Case) -> Explanation | None:
    if not case.around.open_calls:
        return None
    names = ", ".join(case.around.open_calls)
    text = f"It runs on worker {_name(case)}, {_since(case)}, and waits for its tools: {names}."
    return Explanation(Reason.IN_TOOLS, text, "A tool server that hangs holds it until the tool's time limit.")


def _running(case: _Case) -> Explanation:
    return Explanation(Reason.RUNNING, f"It runs on worker {_name(case)}, {_since(case)}.")


def _name(case: _Case) -> str:
    worker = case.worker(case.response.worker)
    return str(case.response.worker) if worker is None else f"{worker.name} ({worker.host}, process {worker.pid})"


def _since(case: _Case) -> str:
    response = case.response
    assert response.started_seconds is not None and response.sent_seconds is not None
    if response.attempt <= 1:
        return f"begun {span(response.started_seconds)} ago, attempt 1"
    sent, begun = span(response.sent_seconds), span(response.started_seconds)
    return f"sent there {sent} ago, {case.attempt}, first begun {begun} ago"


def _ended(response: ResponseFacts) -> Explanation:
    assert response.finished_seconds is not None
    ago = f"{span(response.finished_seconds)} ago"
    ran = (
        "before it began"
        if response.started_seconds is None
        else (f"after {span(response.started_seconds - response.finished_seconds)}, in attempt {response.attempt}")
    )
    text = f"It ended as {response.status} {ago}, {ran}"
    match response.status:
        case "failed":
            error = response.error or {}
            return Explanation(Reason.FAILED, f"{text}: {error.get('code')}: {error.get('message')}")
        case "incomplete":
            return Explanation(Reason.INCOMPLETE, f"{text}: {(response.incomplete_details or {}).get('reason')}.")
        case "cancelled":
            return Explanation(Reason.CANCELLED, f"{text}.")
    return Explanation(Reason.COMPLETED, f"{text}, with {count_of(response.output_tokens or 0, 'output token')}.")


_WAITING: Sequence[_Rule] = (_paused, _no_worker, _draining, _in_line)
_SENT: Sequence[_Rule] = (_count, _sent)
_RELEASED: Sequence[_Rule] = (_no_worker, _draining, _released)
_RUNNING: Sequence[_Rule] = (_lost_owner, _in_tools, _running)
