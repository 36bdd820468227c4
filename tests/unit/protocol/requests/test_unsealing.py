"""Sealed text: when the machine seals it, and what a model reads of it."""

from __future__ import annotations

from typing import Any

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


def test_a_compaction_stands_for_what_was_before_it() -> None:
    later = [COMPACTION, YES, HI]
    assert since_compaction([RULE, HI, YES, LIST, *later]) == [RULE, LIST, *later]
    assert since_compaction([HI, *later]) == later
    assert since_compaction([], [HI, YES, *later]) == later
    assert since_compaction([HI, YES], [COMPACTION, HI]) == [COMPACTION, HI]


def test_the_newest_of_several_compactions_counts() -> None:
    assert since_compaction([HI, COMPACTION, YES], [HI, COMPACTION, HI]) == [COMPACTION, HI]


def test_tools_that_items_brought_stay() -> None:
    tools = {"type": "additional_tools", "id": "at_1", "role": "developer", "tools": []}
    assert since_compaction([tools, HI, YES, COMPACTION]) == [tools, COMPACTION]
    sent = [tools, HI, COMPACTION, HI]
    assert since_compaction([], sent) == sent


def test_messages_that_a_client_kept_before_a_compaction_stay() -> None:
    sent = [RULE, HI, COMPACTION, HI]
    assert since_compaction([], sent) == sent


def test_without_a_compaction_everything_stays() -> None:
    assert since_compaction([HI, YES], [HI]) == [HI, YES, HI]
    assert since_compaction([], []) == []
