"""The event state machine: what a model says in, numbered events out.

Theory. `states.TABLE` is the machine; an illegal input raises and changes nothing. Steps (`steps.py`, `hosted.py`)
write events; each event gets the next sequence number at the one place where events are made (`writer.py`). The
machine has no clock, no ids of its own and no I/O: ids come from the response's id and the item's index, so that the
same deltas always give the same events, and `restore(events)` puts a machine where another one stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from app.protocol.events.deltas import Delta, Finish, FinishReason, Text
from app.protocol.events.fold import Snapshot, fold
from app.protocol.events.frames import Event
from app.protocol.events.table import INPUT_OF, TABLE, Input, State
from app.protocol.events.writer import IllegalInput, Writer
from app.protocol.status import Status
from app.protocol.types import Json

__all__ = ["IllegalInput", "ResponseStream"]


class ResponseStream:
    """One response's events. `response` is its response object with no output, as it was created."""

    def __init__(self, response: Mapping[str, Any]) -> None:
        self._writer = Writer(response)
        self._state = State.NEW

    @classmethod
    def restore(cls, events: Iterable[Event]) -> ResponseStream:
        """A machine that goes on after `events`, which begin with `response.created`."""
        snapshot = fold(events)
        stream = cls({**snapshot.response, "usage": None})
        writer = stream._writer
        writer.output[:] = snapshot.response["output"]
        writer.following = snapshot.next_sequence
        writer.pending = [index for index in snapshot.unfinished if index != snapshot.open]
        stream._state = _state_of(snapshot)
        _take_up(writer, stream._state)
        return stream

    @property
    def next_sequence(self) -> int:
        """The number of the next event."""
        return self._writer.following

    @property
    def state(self) -> State:
        return self._state

    @property
    def response(self) -> Json:
        """The response object as it stands; the terminal event carried just this once the machine has ended."""
        return self._writer.response

    @property
    def pending(self) -> tuple[int, ...]:
        """The places in the output of items that wait for the server: calls with no result, lists with no answer."""
        return tuple(self._writer.pending)

    @property
    def seal(self) -> Callable[[str], str] | None:
        """Makes the `encrypted_content` of reasoning items that end, from their text; None: they have none."""
        return self._writer.seal

    @seal.setter
    def seal(self, seal: Callable[[str], str] | None) -> None:
        self._writer.seal = seal

    def open(self) -> list[Event]:
        """The events of a response that was accepted."""
        return self._process(Input.OPEN, None)

    def begin(self) -> list[Event]:
        """The event of a response that a worker started."""
        return self._process(Input.BEGIN, None)

    def feed(self, delta: Delta) -> list[Event]:
        """The events of what the model said, and of what became of the calls that the server runs for it."""
        return self._process(self._input_of(delta), delta)

    def _input_of(self, delta: Delta) -> Input:
        phase = self._writer.item.get("phase") if self._state is State.MESSAGE else None
        return Input.OTHER_TEXT if isinstance(delta, Text) and delta.phase != phase else INPUT_OF[type(delta)]

    def finish(self, finish: Finish, finished_at: int) -> list[Event]:
        """The model is done: `response.completed`, or `response.incomplete` where it was cut."""
        return self._process(Input.FINISH, (finish, finished_at), cut=finish.reason is FinishReason.LENGTH)

    def fail(self, error: Json) -> list[Event]:
        """It went wrong: a flat `error` event, then `response.failed`."""
        return self._process(Input.FAIL, error, cut=True)

    def cancel(self) -> list[Event]:
        """`response.cancelled`, with the output so far."""
        return self._process(Input.CANCEL, None, cut=True)

    def _process(self, event: Input, argument: Any, *, cut: bool = False) -> list[Event]:
        """The one door: legality first, then the steps."""
        cell = TABLE[self._state].get(event)
        if cell is None:
            raise IllegalInput(f"{event.value!r} is not allowed in state {self._state.value!r}")
        actions, next_state = cell
        self._writer.events = []
        self._writer.cut = cut
        for act in actions:
            act(self._writer, argument)
        self._state = next_state
        return self._writer.events


def _state_of(snapshot: Snapshot) -> State:
    """The state of a machine that wrote the events behind `snapshot`."""
    status = Status(snapshot.response["status"])
    if status is Status.QUEUED:
        return State.QUEUED
    if status.final:
        return State.ENDED
    if snapshot.open is None:
        return State.IDLE
    item = snapshot.response["output"][snapshot.open]
    if item["type"] == "message" and "refusal" in item["content"][-1]:
        return State.REFUSAL
    return State(item["type"])


_TEXT = {State.CALL: "arguments", State.CUSTOM: "input", State.CODE: "code", State.MCP: "arguments"}
_PART_TEXT = {State.MESSAGE: "text", State.REASONING: "text", State.REFUSAL: "refusal"}


def _take_up(writer: Writer, state: State) -> None:
    """The open item's text, to go on with."""
    if state in _TEXT:
        writer.pieces = [writer.item[_TEXT[state]]]
    elif state in _PART_TEXT:
        writer.pieces = [writer.part[_PART_TEXT[state]]]
        writer.logprobs = list(writer.part.get("logprobs", ()))
