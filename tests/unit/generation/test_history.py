"""The history of turns and calls that a response's log holds."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from app.protocol.events.chunk import Chunk
from app.protocol.usage import Usage
from workers.formats.calls.hosted import HostedCall
from workers.generation.history import EndedCompaction, EndedTurn, History

ONE = HostedCall("s__t", '{"a": 1}', "mcp", "s", "t")
TWO = HostedCall("python", "{}", "python", None, "python")
TURN = EndedTurn((1, 2, 3), 1, 4, Usage(10, 2, 3, 1, 0), {1: ONE, 3: TWO})


def chunk(number: int, *tokens: int, steps: tuple[Any, ...] = ()) -> Chunk:
    return Chunk("resp_1", number, number, 1, tokens, b"", steps=json.loads(json.dumps(steps)))


def test_tokens_belong_to_the_first_turn_without_an_end_before_them() -> None:
    ended = chunk(2, 3, steps=({"end": TURN.as_step()["end"]},))
    history = History.of([chunk(0), chunk(1, 1, 2), ended, chunk(3), chunk(4, 4, 5)])
    assert history.turns == [TURN]
    assert (history.tokens, history.spent) == ((4, 5), 3)


def test_calls_without_a_result_are_unanswered_and_the_others_are_tool_results() -> None:
    history = History()
    assert history.unanswered == {}
    history.end_turn(TURN)
    step = history.add_result(3, TWO, "output", {"0": {"url": "u"}})
    assert history.unanswered == {1: ONE}
    restored = History.of([chunk(1, 1, 2, 3, steps=(TURN.as_step(),)), chunk(2, steps=(step,))])
    assert (restored.turns, restored.results, restored.unanswered) == ([TURN], history.results, {1: ONE})
    call = {"name": "python", "arguments": "{}", "kind": "python", "server_label": None, "tool": "python"}
    assert restored.tool_results == {"3": {**call, "turn": 1, "result": "output", "sources": {"0": {"url": "u"}}}}


def test_each_prompt_is_counted_once_whichever_attempt_generates() -> None:
    history = History()
    assert (history.count(10, 0), history.count(10, 4)) == ((10, 0), (0, 4))
    history = History.of([replace(chunk(0), input_tokens=10), replace(chunk(1, 1), cached_tokens=2)])
    assert history.count(10, 10) == (0, 8), "the next attempt finds more of it in its cache"
    history.end_turn(TURN)
    assert history.count(30, 12) == (30, 4), "the ended turn had 2 cached ones"
    assert history.count(30, 40) == (0, 18), "what is cached beyond the prompt is committed output"


def test_past_turns_hold_their_items_with_the_results() -> None:
    history = History([TURN], results={1: {"result": "x"}})
    output = [
        {"type": "mcp_list_tools"},
        {"type": "mcp_call"},
        {"type": "message"},
        {"type": "mcp_call"},
        {"type": "x"},
    ]
    [past] = history.past(output)
    assert past.tokens == (1, 2, 3)
    assert past.items == ({"type": "mcp_call", "call": {"result": "x"}}, {"type": "message"}, {"type": "mcp_call"})


def test_tokens_behind_a_compaction_are_the_first_turns() -> None:
    ended = EndedCompaction(1, Usage(9, 0, 2))
    history = History.of([chunk(1, 1), chunk(2, 2, steps=(ended.as_step(),)), chunk(3, 3)])
    assert (history.compaction, history.tokens, history.turns) == (ended, (3,), [])
    assert (history.usage, history.generations, history.spent) == ([ended.usage], 1, 0)
