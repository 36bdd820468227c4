"""Random legal deltas (hypothesis), and the events that a machine makes of them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from app.protocol.events.deltas import (
    Annotation,
    Approval,
    CallArguments,
    CallStart,
    CodeStart,
    CodeText,
    Compacted,
    Compacting,
    CompactionStart,
    CustomInput,
    CustomStart,
    Delta,
    Finish,
    FinishReason,
    Listed,
    Listing,
    LocalCall,
    McpArguments,
    McpStart,
    Reasoning,
    Refusal,
    Text,
    ToolEnded,
    ToolSearch,
    TurnEnd,
    WholeCall,
)
from app.protocol.events.machine import ResponseStream
from app.protocol.hosted_kinds import WEB_SEARCH
from app.protocol.local_kinds import APPLY_PATCH, LOCAL_SHELL, SHELL
from app.protocol.response import error_object, response_object
from app.protocol.usage import Usage
from tests.support.requests import stored_request

pieces = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5)
names = st.sampled_from(["f", "g"])
namespaces = st.sampled_from([None, "n"])
labels = st.sampled_from(["python", "docs"])

STARTS: dict[type, type] = {CallArguments: CallStart, CustomInput: CustomStart, CodeText: CodeStart}
HOSTED = (CodeText, McpArguments, WholeCall)
CITED = {"type": "url_citation", "url": "http://x", "title": "x", "start_index": 0, "end_index": 1}
ACTIONS: list[dict[str, Any]] = [
    {"type": "search", "query": "x", "queries": ["x"]},
    {"type": "open_page", "url": "http://x"},
    {"type": "find_in_page", "url": "http://x", "pattern": "y"},
]
LOCAL = [
    LocalCall(SHELL, {"action": {"commands": ["ls"], "timeout_ms": None}, "environment": {"type": "local"}}),
    LocalCall(APPLY_PATCH, {"operation": {"type": "create_file", "path": "a", "diff": "+x"}}),
    LocalCall(APPLY_PATCH, {"operation": {"type": "delete_file", "path": "a"}}),
    LocalCall(LOCAL_SHELL, {"action": {"type": "exec", "command": ["ls"], "env": {}}}),
]
WHOLE: dict[type, st.SearchStrategy[Delta]] = {
    WholeCall: st.sampled_from([WholeCall(WEB_SEARCH, "browser.search", "{}", {"action": each}) for each in ACTIONS]),
    ToolSearch: st.builds(ToolSearch, st.fixed_dictionaries({"query": names})),
    LocalCall: st.sampled_from(LOCAL),
    Approval: st.builds(Approval, labels, names, st.just("{}")),
}
"""Items of one delta."""


class Script:
    """Deltas, and the items that the machine must make of them, counted independently of the machine."""

    def __init__(self) -> None:
        self.said: list[Delta] = []
        self.items = 0
        self.pending: list[tuple[int, type]] = []
        self._message = False

    def say(self, kind: type, *deltas: Delta) -> None:
        """Adds deltas of one item. Consecutive texts and refusals share a message."""
        message = kind in (Text, Refusal)
        if not ((message and self._message) or (kind is Reasoning and self._last is Reasoning)):
            self.items += 1
        self._message, self._last = message, kind
        if kind in (*HOSTED, Listing):
            self.pending.append((self.items - 1, kind))
        self.said += deltas

    _last: type | None = None

    def pause(self, *deltas: Delta) -> None:
        """Adds deltas that begin no item and close the open one."""
        self._message, self._last = False, None
        self.said += deltas


@st.composite
def deltas(draw: st.DrawFn) -> list[Delta]:
    """The deltas of a model in one or more turns, and those of the hosted calls between them."""
    script = Script()
    for label in draw(st.lists(labels, max_size=2)):
        script.say(Listing, Listing(label))
    _answer(draw, script, script.pending[:])
    if draw(st.booleans()):
        steps = [Compacting()] * draw(st.integers(0, 2))
        script.say(Compacted, CompactionStart(), *steps, Compacted("lh1_x"))
    _turn(draw, script)
    for _ in range(draw(st.integers(0, 2))):
        script.pause(TurnEnd())
        _answer(draw, script, draw(st.permutations(script.pending)))
        _turn(draw, script)
    if draw(st.booleans()):
        script.pause(TurnEnd())
        some = draw(st.permutations(script.pending))
        _answer(draw, script, some[: draw(st.integers(0, len(some)))])
    return script.said


def _turn(draw: st.DrawFn, script: Script) -> None:
    """Draws text, refusals, reasoning, and calls of every kind with their arguments or input."""
    kinds = [Text, Reasoning, Refusal, *STARTS, McpArguments, *WHOLE]
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(kinds))
        if kind in WHOLE:
            script.say(kind, draw(WHOLE[kind]))
            continue
        run: list[Delta] = [kind(piece) for piece in draw(st.lists(pieces, min_size=1, max_size=4))]
        if kind is McpArguments:
            run = [McpStart(draw(labels), draw(names), draw(st.sampled_from([None, "mcpr_1"]))), *run]
        elif kind in STARTS:
            own = () if kind is CodeText else (draw(namespaces),)
            run = [STARTS[kind](draw(names), *own), *run]
        if kind is Text and draw(st.booleans()):
            run.append(Annotation(dict(CITED)))
        script.say(kind, *run)


def _answer(draw: st.DrawFn, script: Script, answered: list[tuple[int, type]]) -> None:
    for entry in answered:
        index, kind = entry
        ok = draw(st.booleans())
        script.pending.remove(entry)
        if kind is Listing:
            tools = ({"name": "f", "description": None, "input_schema": {"type": "object"}, "annotations": None},)
            script.pause(Listed(index, tools) if ok else Listed(index, (), "no answer"))
        else:
            script.pause(ToolEnded(index, ok, _result(kind, ok)))


def _result(kind: type, ok: bool) -> dict[str, Any]:
    if kind is CodeText:
        return {"outputs": [{"type": "logs", "logs": "4"}]}
    if kind is WholeCall:
        return {"action": {**ACTIONS[0], "sources": [{"type": "url", "url": "http://x"}]}} if ok else {}
    return {"output": "four"} if ok else {"error": {"type": "mcp_tool_execution_error", "content": []}}


endings = st.sampled_from(["stop", "length", "fail", "cancel"])
summaries = st.sampled_from([None, "auto", "concise", "detailed"])


def new_stream(response_id: str = "resp_0a1b", *, summary: str | None = None) -> ResponseStream:
    request = stored_request(reasoning={"effort": None, "summary": summary}, max_output_tokens=5)
    return ResponseStream(response_object(request, response_id=response_id, created_at=1_700_000_000))


def end(stream: ResponseStream, how: str) -> list[dict[str, Any]]:
    if how == "fail":
        return stream.fail(error_object("server_error", "it broke"))
    if how == "cancel":
        return stream.cancel()
    return stream.finish(Finish(FinishReason(how), Usage(3, 0, 5)), 1_700_000_009)


def fed(*said: Delta, stream: ResponseStream | None = None) -> tuple[ResponseStream, list[dict[str, Any]]]:
    """A machine that has begun and was fed with these, and all its events."""
    stream = stream or new_stream()
    events = stream.accept() + stream.begin()
    for delta in said:
        events += stream.feed(delta)
    return stream, events


def play(said: list[Delta], ending: str, *, summary: str | None = None) -> tuple[ResponseStream, list[dict[str, Any]]]:
    """The same, with the ending."""
    stream, events = fed(*said, stream=new_stream(summary=summary))
    return stream, events + end(stream, ending)


RICH: list[Delta] = [
    Listing("docs"),
    Listing("wiki"),
    Listed(1, ({"name": "read", "input_schema": {}},)),
    Listed(0, (), "down"),
    Reasoning("hm"),
    CodeStart("python"),
    CodeText("1 +"),
    CodeText(" 1"),
    McpStart("wiki", "read"),
    McpArguments("{}"),
    WholeCall(WEB_SEARCH, "browser.search", "{}", {"action": {"type": "search", "query": "x"}}),
    Approval("wiki", "write", "{}"),
    CallStart("f"),
    CallArguments("{}"),
    TurnEnd(),
    ToolEnded(5, False, {}),
    ToolEnded(3, True, {"outputs": [{"type": "logs", "logs": "2"}]}),
    ToolEnded(4, True, {"output": "text", "error": None}),
    Text("Two."),
]
