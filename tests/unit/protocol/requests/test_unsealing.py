"""Sealed text: when the machine seals it, and what a model reads of it."""

from __future__ import annotations

from typing import Any

import pytest

from app.protocol.events.deltas import Finish, FinishReason, Reasoning, Text
from app.protocol.events.fold import fold
from app.protocol.events.machine import ResponseStream
from app.protocol.unsealing import SUMMARY_HEAD, since_compaction, unsealed
from tests.support.deltas import new_stream
from tests.support.requests import message

Json = dict[str, Any]


def seal(text: str) -> str:
    return f"<{text}>"


def sealing() -> ResponseStream:
    stream = new_stream()
    stream.seal_reasoning(seal)
    return stream


def test_reasoning_is_sealed_when_it_ends() -> None:
    stream = sealing()
    events = [*stream.accept(), *stream.begin(), *stream.feed(Reasoning("Hm")), *stream.feed(Reasoning("."))]
    events += [*stream.feed(Text("Hi")), *stream.finish(Finish(FinishReason.STOP), 1)]
    items = [event["item"] for event in events if event["type"].startswith("response.output_item")]
    assert [item.get("encrypted_content") for item in items] == [None, "<Hm.>", None, None]
    assert fold(events).response["output"][0]["encrypted_content"] == "<Hm.>"


def test_a_restored_machine_seals_the_whole_reasoning() -> None:
    stream = sealing()
    events = [*stream.accept(), *stream.begin(), *stream.feed(Reasoning("Hm"))]
    other = ResponseStream.restore(events)
    other.seal_reasoning(seal)
    assert other.feed(Reasoning("."))
    (done,) = (event for event in other.feed(Text("Hi")) if event["type"] == "response.output_item.done")
    assert done["item"]["encrypted_content"] == "<Hm.>"


def unseal(*items: Json) -> list[Json]:
    return unsealed(items, lambda token: f"thought {token}", lambda token: f"summary {token}")


def test_sealed_reasoning_gets_its_text_if_it_has_none() -> None:
    sealed = {"type": "reasoning", "content": [], "summary": [], "encrypted_content": "x"}
    readable = {**sealed, "content": [{"type": "reasoning_text", "text": "said"}]}
    assert [item["content"][0]["text"] for item in unseal(sealed, readable)] == ["thought x", "said"]


def test_sealed_reasoning_with_a_summary_gets_its_own_text() -> None:
    """Clients that keep nothing of `content` send both back."""
    shown = [{"type": "summary_text", "text": "in short"}]
    (item,) = unseal({"type": "reasoning", "content": [], "summary": shown, "encrypted_content": "x"})
    assert item["content"][0]["text"] == "thought x"


def test_a_compaction_becomes_a_user_message() -> None:
    (item,) = unseal({"type": "compaction", "id": "cmp_1", "encrypted_content": "x"})
    assert (item["type"], item["role"]) == ("message", "user")
    assert item["content"] == [{"type": "input_text", "text": f"{SUMMARY_HEAD}summary x"}]


def test_other_items_stay_as_they_are() -> None:
    items = [{"type": "message", "role": "user", "content": []}, {"type": "reasoning", "content": []}]
    assert unseal(*items) == items


COMPACTION = {"type": "compaction", "id": "cmp_1", "encrypted_content": "x"}
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
