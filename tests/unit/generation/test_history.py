"""The history of turns and calls that a response's log holds."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from app.protocol.events.chunk import Chunk
from app.protocol.usage import Usage
from workers.formats.calls.hosted import HostedCall
from workers.generation.history import EndedTurn, History

ONE = HostedCall("s__t", '{"a": 1}', "mcp", "s", "t")
TWO = HostedCall("python", "{}", "python", None, "python")
TURN = EndedTurn((1, 2, 3), 1, 4, Usage(10, 2, 3, 1, 0), {1: ONE, 3: TWO})


def chunk(number: int, *tokens: int, steps: tuple[Any, ...] = ()) -> Chunk:
    return Chunk("resp_1", number, number, 1, tokens, b"", steps=json.loads(json.dumps(steps)))


def test_each_prompt_is_counted_once_whichever_attempt_generates() -> None:
    history = History()
    assert (history.count(10, 0), history.count(10, 4)) == ((10, 0), (0, 4))
    history = History.of([replace(chunk(0), input_tokens=10), replace(chunk(1, 1), cached_tokens=2)])
    assert history.count(10, 10) == (0, 8), "the next attempt finds more of it in its cache"
    history.end_turn(TURN)
    assert history.count(30, 12) == (30, 4), "the ended turn had 2 cached ones"
    assert history.count(30, 40) == (0, 18), "what is cached beyond the prompt is committed output"
