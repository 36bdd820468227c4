"""The event state machine: the model's deltas in, numbered events out.

`TABLE` (table.py) is the machine; an illegal input raises and changes nothing. Its actions write events, and each
event gets the next sequence number in one place (writer.py). The machine has no clock, no I/O and no random ids: ids
are made of the response's id and the item's index. So the same deltas always give the same events, and
`restore(events)` makes a machine that continues where another one stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from app.protocol.events.deltas import Delta, Finish, FinishReason, Reasoning, Text
from app.protocol.events.fold import FoldedResponse, fold
from app.protocol.events.frames import Event
from app.protocol.events.table import TABLE, Input, Key, State
from app.protocol.events.writer import IllegalInput, Writer
from app.protocol.hosted_kinds import HOSTED_KINDS
from app.protocol.item_types import BEFORE_ANSWER, CLIENT_CALLS, HOSTED_CALLS, REASONING, SERVER
from app.protocol.local_kinds import LOCAL_CALLS
from app.protocol.status import Status
from app.protocol.types import Json

__all__ = ["DamagedLog", "IllegalInput", "ResponseStream"]


MAX_TOKENS = "max_output_tokens"
MALFORMED_CALL = "malformed_call"
UNFINISHED_REASONING = "unfinished_reasoning"
"""The reasons of `incomplete_details`: the last two are none of OpenAI's."""


class DamagedLog(Exception):
    """Stored events are not what was committed: the one with this number is missing."""


class ResponseStream:
    """The events of one response. `response` is its response object as it was created, without output."""

    def __init__(self, response: Mapping[str, Any]) -> None:
        self._writer = Writer(response)
        self._state = State.NEW

    @classmethod
    def restore(cls, events: Iterable[Event], next_sequence: int | None = None) -> ResponseStream:
        """Returns a machine that continues after `events`, which begin with `response.created`.

        Raises DamagedLog if an event is missing; `next_sequence`, if it is given, must be the next one's number.
        """
        snapshot = fold(_without_gaps(events))
        if next_sequence not in (None, snapshot.next_sequence):
            raise DamagedLog(snapshot.next_sequence)
        stream = cls({**snapshot.response, "usage": None})
        writer = stream._writer
        writer.output[:] = snapshot.response["output"]
        writer.next_sequence = snapshot.next_sequence
        writer.pending = [index for index in snapshot.unfinished if index != snapshot.open]
        stream._state = _state_of(snapshot)
        _restore_text(writer, stream._state)
        return stream

    @classmethod
    def without_log(cls, response: Mapping[str, Any], next_sequence: int) -> ResponseStream:
        """Returns a machine that can end a response whose events cannot be read: its output is lost."""
        stream = cls({**response, "usage": None})
        stream._writer.next_sequence = next_sequence
        stream._state = State.IDLE
        return stream

    @classmethod
    def waiting(cls, response: Mapping[str, Any], next_sequence: int) -> ResponseStream:
        """Returns the machine of a response that no worker has claimed, as `restore` of its events does."""
        stream = cls(response)
        stream._writer.next_sequence = next_sequence
        stream._state = State.QUEUED
        return stream

    @property
    def next_sequence(self) -> int:
        """The sequence number of the next event."""
        return self._writer.next_sequence

    @property
    def state(self) -> State:
        return self._state

    @property
    def response(self) -> Json:
        """The response object as it is now; the terminal event of a cancelled one has an `error` besides."""
        return self._writer.response

    @property
    def pending(self) -> tuple[int, ...]:
        """Indexes of output items that wait for the server: calls without a result, lists without an answer."""
        return tuple(self._writer.pending)

    def seal_reasoning(self, seal: Callable[[str], str]) -> None:
        """From now on `seal` makes the `encrypted_content` of each reasoning item from its text."""
        self._writer.seal = seal

    def accept(self) -> list[Event]:
        """The API has accepted the response: `response.created` and `response.queued`."""
        return self._process(Input.ACCEPT, None)

    def begin(self) -> list[Event]:
        """A worker has claimed the response: `response.in_progress`."""
        return self._process(Input.BEGIN, None)

    def feed(self, delta: Delta) -> list[Event]:
        """The model wrote something, or a hosted tool began or ended."""
        return self._process(self._input_of(delta), delta)

    def _input_of(self, delta: Delta) -> Key:
        if isinstance(delta, Reasoning) and self._writer.summarizes:
            return Input.SUMMARIZED
        phase = self._writer.item.get("phase") if self._state is State.MESSAGE else None
        return Input.OTHER_TEXT if isinstance(delta, Text) and delta.phase != phase else type(delta)

    def finish(self, finish: Finish, finished_at: int) -> list[Event]:
        """The model is done: `response.completed`, or `response.incomplete` if it was cut."""
        finish = replace(finish, incomplete=self._incomplete(finish))
        cut = finish.incomplete in (MAX_TOKENS, UNFINISHED_REASONING)
        silent = not finish.counted and self._is_silent(cut)
        return self._process(Input.SILENT_FINISH if silent else Input.FINISH, (finish, finished_at), cut=cut)

    def _incomplete(self, finish: Finish) -> str | None:
        """Why the response is not completed."""
        if finish.reason is FinishReason.LENGTH:
            return MAX_TOKENS
        output = self._writer.output
        if any(_is_cut(item) for item in output):
            return MALFORMED_CALL
        ends_thinking = bool(output) and output[-1]["type"] == REASONING
        return UNFINISHED_REASONING if ends_thinking and self._owes_form() else None

    def _owes_form(self) -> bool:
        """Whether the request asks for a call or a form of text that the output has not."""
        response, calls = self._writer.response, CLIENT_CALLS | HOSTED_CALLS
        if (response.get("text") or {}).get("format", {}).get("type", "text") != "text":
            return True
        choice = response.get("tool_choice", "auto")
        mode = choice if isinstance(choice, str) else choice.get("mode", "required")
        return mode == "required" and not any(item["type"] in calls for item in self._writer.output)

    def _is_silent(self, cut: bool) -> bool:
        """Whether the output has neither a message nor anything that the client must answer.

        An answer that was cut may end in its reasoning or calls: it is silent only if there is no output at all.
        """
        types = {item["type"] for item in self._writer.output if item.get("execution") != SERVER}
        return not types or (not cut and types <= BEFORE_ANSWER)

    def fail(self, error: Json) -> list[Event]:
        """The response failed: a flat `error` event, then `response.failed`."""
        return self._process(Input.FAIL, error, cut=True)

    def cancel(self) -> list[Event]:
        """The response was cancelled: `response.failed`, with the output so far and the status `cancelled`."""
        return self._process(Input.CANCEL, None, cut=True)

    def _process(self, given: Key, argument: Any, *, cut: bool = False) -> list[Event]:
        """The only way in: looks the input up before anything changes, then takes its actions."""
        cell = TABLE[self._state].get(given)
        if cell is None:
            name = given.value if isinstance(given, Input) else given.__name__
            raise IllegalInput(f"{name!r} is not allowed in state {self._state.value!r}")
        actions, next_state = cell
        self._writer.events = []
        self._writer.cut = cut
        for action in actions:
            action(self._writer, argument)
        self._state = next_state
        return self._writer.events


def _is_cut(item: Json) -> bool:
    """Whether this is a call of the client's that is not whole."""
    kind = LOCAL_CALLS.get(item["type"])
    status = "incomplete" if kind is None else kind.cut_status
    return item["type"] in CLIENT_CALLS and item.get("status") == status


def _without_gaps(events: Iterable[Event]) -> Iterator[Event]:
    for number, event in enumerate(events):
        if event["sequence_number"] != number:
            raise DamagedLog(number)
        yield event


def _state_of(snapshot: FoldedResponse) -> State:
    """The state of the machine that wrote these events."""
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
    if item["type"] == "reasoning" and item["summary"]:
        return State.SUMMARIZED
    return State(item["type"])


_CALL_TEXT = {State.CALL: "arguments", State.CUSTOM: "input"} | {
    State(kind.call_type): kind.text_field for kind in HOSTED_KINDS if kind.text_field is not None
}
_PART_TEXT = {State.MESSAGE: "text", State.REASONING: "text", State.SUMMARIZED: "text", State.REFUSAL: "refusal"}


def _restore_text(writer: Writer, state: State) -> None:
    """Gives the writer the text of the open part or call, to which the next delta adds."""
    if state in _CALL_TEXT:
        writer.pieces = [writer.item[_CALL_TEXT[state]]]
    elif state in _PART_TEXT:
        writer.pieces = [writer.part[_PART_TEXT[state]]]
        writer.logprobs = list(writer.part.get("logprobs", ()))
