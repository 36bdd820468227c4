"""Random legal deltas (hypothesis), and the events that a machine makes of them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from app.protocol.deltas import CallArguments, CallStart, Delta, Finish, FinishReason, Reasoning, Text, Usage
from app.protocol.response import error_object, response_object
from app.protocol.stream import ResponseStream
from tests.support.requests import stored_request

pieces = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5)


@st.composite
def deltas(draw: st.DrawFn) -> list[Delta]:
    """What a model may say: runs of text, reasoning, and calls with their arguments."""
    said: list[Delta] = []
    for number in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from(["text", "reasoning", "call"]))
        run = draw(st.lists(pieces, min_size=1, max_size=4))
        if kind == "call":
            said.append(CallStart(draw(st.sampled_from(["f", "g"])), f"call_{number}"))
            said.extend(map(CallArguments, run))
        else:
            said.extend(map(Text if kind == "text" else Reasoning, run))
    return said


endings = st.sampled_from(["stop", "length", "fail", "cancel"])


def new_stream(response_id: str = "resp_0a1b") -> ResponseStream:
    return ResponseStream(response_object(stored_request(), response_id=response_id, created_at=1_700_000_000))


def end(stream: ResponseStream, how: str) -> list[dict[str, Any]]:
    if how == "fail":
        return stream.fail(error_object("server_error", "it broke"))
    if how == "cancel":
        return stream.cancel()
    return stream.finish(Finish(FinishReason(how), Usage(3, 0, 5)), 1_700_000_009)


def play(said: list[Delta], ending: str) -> tuple[ResponseStream, list[dict[str, Any]]]:
    """The machine after `said` and its ending, and all its events."""
    stream = new_stream()
    events = stream.open() + stream.begin()
    for delta in said:
        events += stream.feed(delta)
    return stream, events + end(stream, ending)
