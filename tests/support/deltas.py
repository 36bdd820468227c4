"""Random legal deltas (hypothesis), and the events that a machine makes of them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from app.protocol.deltas import (
    Annotation,
    CallArguments,
    CallStart,
    CustomInput,
    CustomStart,
    Delta,
    Finish,
    FinishReason,
    Reasoning,
    Refusal,
    Text,
    Usage,
)
from app.protocol.response import error_object, response_object
from app.protocol.stream import ResponseStream
from tests.support.requests import stored_request

pieces = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5)


@st.composite
def deltas(draw: st.DrawFn) -> list[Delta]:
    """What a model may say: runs of text, refusals, reasoning, and calls with their arguments or input."""
    said: list[Delta] = []
    for _ in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from([Text, Reasoning, Refusal, CallArguments, CustomInput]))
        run = draw(st.lists(pieces, min_size=1, max_size=4))
        if kind in STARTS:
            said.append(STARTS[kind](draw(st.sampled_from(["f", "g"]))))
        said.extend(map(kind, run))
        if kind is Text and draw(st.booleans()):
            said.append(
                Annotation({"type": "url_citation", "url": "http://x", "title": "x", "start_index": 0, "end_index": 1})
            )
    return said


STARTS: dict[type, type] = {CallArguments: CallStart, CustomInput: CustomStart}


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
