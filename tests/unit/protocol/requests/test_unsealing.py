"""Sealed text: when the machine seals it, and what a model reads of it."""

from __future__ import annotations

from typing import Any

import pytest

from app.protocol.events.deltas import Finish, FinishReason, Reasoning, Text
from app.protocol.events.fold import fold
from app.protocol.events.machine import ResponseStream
from app.protocol.unsealing import SUMMARY_HEAD, since_compaction, unsealed
from tests.support.deltas import fed, new_stream
from tests.support.requests import message

Json = dict[str, Any]


def seal(text: str) -> str:
    return f"<{text}>"


def sealing() -> ResponseStream:
    stream = new_stream()
    stream.seal_reasoning(seal)
    return stream


def test_reasoning_is_sealed_when_it_ends() -> None:
    stream, events = fed(Reasoning("Hm"), Reasoning("."), Text("Hi"), stream=sealing())
    events += stream.finish(Finish(FinishReason.STOP), 1)
    items = [event["item"] for event in events if event["type"].startswith("response.output_item")]
    assert [item.get("encrypted_content") for item in items] == [None, "<Hm.>", None, None]
    assert fold(events).response["output"][0]["encrypted_content"] == "<Hm.>"


def test_a_restored_machine_seals_the_whole_reasoning() -> None:
    _, events = fed(Reasoning("Hm"), stream=sealing())
    other = ResponseStream.restore(events)
    other.seal_reasoning(seal)
    assert other.feed(Reasoning("."))
    (done,) = (event for event in other.feed(Text("Hi")) if event["type"] == "response.output_item.done")
    assert done["item"]["encrypted_content"] == "<Hm.>"


SEALED: Json = {"type": "reasoning", "content": [], "summary": [], "encrypted_content": "x"}
READABLE: Json = {**SEALED, "content": [{"type": "reasoning_text", "text": "said"}]}
SHOWN = {"summary": [{"type": "summary_text", "text": "in short"}]}
TEXT = {"content": [{"type": "reasoning_text", "text": "thought x"}]}
COMPACTION = {"type": "compaction", "id": "cmp_1", "encrypted_content": "x"}
SUMMARY = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": f"{SUMMARY_HEAD}summary x"}]}


@pytest.mark.parametrize(
    ("item", "becomes"),
    [
        (SEALED, TEXT),
        ({**SEALED, **SHOWN}, TEXT),  # Clients that keep nothing of `content` send both back.
        (READABLE, READABLE),
        (COMPACTION, SUMMARY),
        (message(""), message("")),
        ({"type": "reasoning", "content": []}, {"type": "reasoning", "content": []}),
    ],
)
def test_sealed_items_get_their_text_if_they_have_none(item: Json, becomes: Json) -> None:
    (found,) = unsealed([item], lambda token: f"thought {token}", lambda token: f"summary {token}")
    assert found | becomes == found


RULE, HI, YES = message("Be kind.", "system"), message("Hi"), message("Yes.", "assistant")
LIST = {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "docs", "tools": []}
TOOLS = {"type": "additional_tools", "id": "at_1", "role": "developer", "tools": []}
LATER = [COMPACTION, YES, HI]
SINCE: dict[str, tuple[list[Json], list[Json], list[Json]]] = {
    "it stands for what was before it": ([RULE, HI, YES, LIST, *LATER], [], [RULE, LIST, *LATER]),
    "of the context": ([HI, *LATER], [], LATER),
    "of the input": ([], [HI, YES, *LATER], LATER),
    "the context ends before it": ([HI, YES], [COMPACTION, HI], [COMPACTION, HI]),
    "the newest of several": ([HI, COMPACTION, YES], [HI, COMPACTION, HI], [COMPACTION, HI]),
    "tools that items brought stay": ([TOOLS, HI, YES, COMPACTION], [], [TOOLS, COMPACTION]),
    "tools that a client kept stay": ([], [TOOLS, HI, COMPACTION, HI], [TOOLS, HI, COMPACTION, HI]),
    "messages that a client kept stay": ([], [RULE, HI, COMPACTION, HI], [RULE, HI, COMPACTION, HI]),
    "none": ([HI, YES], [HI], [HI, YES, HI]),
    "nothing": ([], [], []),
}


@pytest.mark.parametrize(("context", "sent", "left"), SINCE.values(), ids=SINCE)
def test_what_is_left_since_the_newest_compaction(context: list[Json], sent: list[Json], left: list[Json]) -> None:
    assert since_compaction(context, sent) == left
