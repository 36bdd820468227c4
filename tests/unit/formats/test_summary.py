"""The turn of a compaction: its request, its prompt and its parser, for chat and harmony models."""

from __future__ import annotations

from typing import Any

import pytest

from app.protocol.events.deltas import Compacting
from tests.support.requests import call, message, output, reasoning, stored_request
from tests.unit.formats.harmony.cases import tokens_of
from workers.formats.answer import AnswerRules
from workers.formats.harmony.parser import HarmonyParser
from workers.formats.summary import SummaryParser, newest_items, summary_request


def test_a_summary_keeps_how_the_model_is_asked_and_nothing_about_the_answer() -> None:
    asked: dict[str, Any] = {
        "temperature": 0.5,
        "tools": [{"type": "function", "name": "f"}],
        "tool_choice": "required",
        "max_output_tokens": 5,
        "text": {"format": {"type": "json_object"}},
        "extra": {"seed": 7, "stop": ["a"], "min_tokens": 3},
    }
    request = summary_request(stored_request(**asked), 4000)
    assert (request["temperature"], request["extra"]) == (0.5, {"seed": 7})
    assert (request["tools"], request["tool_choice"], request["text"]) == ([], "none", {"format": {"type": "text"}})
    assert request["max_output_tokens"] == 1000


def test_a_harmony_summary_is_the_final_message_alone() -> None:
    parser = SummaryParser(HarmonyParser(AnswerRules()))
    tokens = tokens_of(
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>Now.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>They met."
    )
    fed = [parser.feed([token]) for token in tokens]
    assert {delta for parsed in fed for delta in parsed.deltas} == {Compacting()}
    assert [token for parsed in (*fed, parser.flush()) for token in parsed.tokens] == tokens
    assert parser.summary == "They met."
    assert parser.reasoning_tokens > 0


THOUGHT, CALL, OUTPUT = reasoning(), call(), output()
APPROVAL = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
REQUEST = {"type": "mcp_approval_request", "id": "mcpr_1"}
HI, YES = message("Hi"), message("Yes.", "assistant")


@pytest.mark.parametrize(
    ("items", "newest"),
    [
        ([], 0),
        ([HI], 1),
        ([HI, YES, HI], 1),
        ([HI, YES, HI, HI], 2),
        ([HI, YES], 0),
        ([HI, THOUGHT, CALL, OUTPUT], 3),
        ([HI, THOUGHT, CALL, CALL, OUTPUT, OUTPUT, HI], 6),
        ([HI, CALL, OUTPUT, CALL, OUTPUT], 2),
        ([HI, THOUGHT, REQUEST, APPROVAL], 3),
    ],
)
def test_the_newest_items_are_those_that_have_no_answer(items: list[Any], newest: int) -> None:
    assert newest_items(items) == items[len(items) - newest :]
