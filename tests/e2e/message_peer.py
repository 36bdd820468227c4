"""Messages that are asked of two servers: their cases, their faults, and what of an answer must be equal."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import httpx

from tests.support.waiting import PATIENCE_SECONDS

Json = dict[str, Any]

WEATHER: Json = {
    "name": "get_weather",
    "description": "Current weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALL: Json = {"type": "tool_use", "id": "call_1", "name": "get_weather", "input": {"city": "Paris"}}
RESULT: Json = {"type": "tool_result", "tool_use_id": "call_1", "content": "18 degrees and sunny"}
ASKED = "What is the weather in Paris?"


def user(content: Any) -> Json:
    return {"role": "user", "content": content}


def said(content: Any) -> Json:
    return {"role": "assistant", "content": content}


def text(words: str) -> Json:
    return {"type": "text", "text": words}


def answered(**result: Any) -> Json:
    return {"messages": [user(ASKED), said([CALL]), user([{**RESULT, **result}])], "tools": [WEATHER]}


HELLO: Json = {"messages": [user("Hello!")]}
WITH_TOOL: Json = {"messages": [user(ASKED)], "tools": [WEATHER]}
CASES: dict[str, Json] = {
    "plain": HELLO,
    "parts": {"messages": [user([text("What is 17 times 23?")])]},
    "scripts": {"messages": [user("Say hello in Chinese, Greek and emoji.")]},
    "cut": {"messages": [user("Count from 1 to 60.")], "max_tokens": 20},
    "stop": {"messages": [user("List three colours.")], "stop_sequences": ["\n3"]},
    "turns": {"messages": [user("My name is Ada."), said("Nice to meet you, Ada!"), user("What is my name?")]},
    "system": {**HELLO, "system": "Be brief."},
    "system in parts": {**HELLO, "system": [text("Be brief.")]},
    "billing": {**HELLO, "system": [text("x-anthropic-billing-header: cc_version=1;"), text("Be brief.")]},
    "hints": {
        **HELLO,
        "metadata": {"user_id": "u"},
        "system": [{**text("Be."), "cache_control": {"type": "ephemeral"}}],
    },
    "call": WITH_TOOL,
    "calls": {"messages": [user("Compare the weather in Paris and Rome.")], "tools": [WEATHER]},
    "any": {**WITH_TOOL, "tool_choice": {"type": "any"}},
    "named": {**WITH_TOOL, "tool_choice": {"type": "tool", "name": "get_weather"}},
    "none": {**HELLO, "tools": [WEATHER], "tool_choice": {"type": "none"}},
    "result": answered(),
    "result in parts": answered(content=[text("18 degrees and sunny")]),
    "failed result": answered(is_error=True),
    "no thoughts": {"messages": [user("What is 17 times 23?")], "thinking": {"type": "disabled"}},
    "top k": {**HELLO, "top_k": 5, "top_p": 0.9},
}
ALIKE = ("parts", "billing", "hints", "result in parts", "top k")
HARMONY_CASES = {name: case for name, case in CASES.items() if name not in ALIKE}
"""The others differ from these before a format of prompts is chosen."""
FAULTS: dict[str, Json] = {
    "no messages": {"messages": []},
    "no max_tokens": {**HELLO, "max_tokens": None},
    "max_tokens 0": {**HELLO, "max_tokens": 0},
    "a model that is not there": {**HELLO, "model": "none"},
    "a role that is not there": {"messages": [{"role": "nobody", "content": "Hello!"}]},
    "a block that is not there": {"messages": [user([{"type": "nothing"}])]},
    "a number as content": {"messages": [user(1)]},
    "temperature": {**HELLO, "temperature": 9},
    "a tool without a name": {**HELLO, "tools": [{"input_schema": {}}]},
    "a choice that is not there": {**WITH_TOOL, "tool_choice": {"type": "perhaps"}},
    "a choice of no tool": {**WITH_TOOL, "tool_choice": {"type": "tool", "name": "other"}},
    "stops that are no list": {**HELLO, "stop_sequences": "x"},
    "too long": {"messages": [user("word " * 9000)]},
}


@dataclass(frozen=True)
class Told:
    """What a server answered: by case and by whether it was streamed; and the status of each fault."""

    answers: dict[tuple[str, bool], Json]
    faults: dict[str, int]


def ask_all(url: str, model: str, cases: dict[str, Json]) -> Told:
    """Asks one after the other: nothing is batched, so numbers do not depend on what else runs."""
    found: dict[tuple[str, bool], Json] = {}
    refused: dict[str, int] = {}
    with httpx.Client(base_url=url, timeout=PATIENCE_SECONDS) as client:
        for name, case in cases.items():
            for stream in (False, True):
                body = {"model": model, "max_tokens": 200, "temperature": 0, "stream": stream, **case}
                answer = client.post("/v1/messages", json=body)
                whole = _accumulated(answer.text) if stream else answer.json()
                found[name, stream] = _equal(whole) if answer.status_code == 200 else {"refused": answer.text}
        for name, case in FAULTS.items():
            body = {"model": model, "max_tokens": 8, **case}
            answer = client.post("/v1/messages", json={key: each for key, each in body.items() if each is not None})
            refused[name] = answer.status_code
    return Told(found, refused)


def _accumulated(events: str) -> Json:
    """The message that a client puts together."""
    message: Json = {"content": []}
    for line in events.splitlines():
        if not line.startswith("data: {"):
            continue
        event = json.loads(line.removeprefix("data: "))
        if event["type"] == "message_start":
            message = {**event["message"], "content": []}
        elif event["type"] == "content_block_start":
            message["content"].append({**event["content_block"], "json": ""})
        elif event["type"] == "content_block_delta":
            block, delta = message["content"][event["index"]], event["delta"]
            for name, kind in (("text", "text"), ("thinking", "thinking"), ("partial_json", "json")):
                block[kind] = block.get(kind, "") + delta.get(name, "")
        elif event["type"] == "message_delta":
            message |= event["delta"]
            message["usage"] = {**message["usage"], **event["usage"]}
    for block in message["content"]:
        block["input"] = json.loads(block["json"]) if block["json"] else block.get("input")
    return message


def _equal(message: Json) -> Json:
    """What must be equal. Ids and signatures are each server's own."""
    usage, content = message["usage"], message["content"]
    return {
        "text": "".join(block["text"] for block in content if block["type"] == "text").strip(),
        "thinking": "".join(block["thinking"] for block in content if block["type"] == "thinking").strip(),
        "calls": [(block["name"], block["input"]) for block in content if block["type"] == "tool_use"],
        "ends": (message["role"], message["stop_reason"], message.get("stop_sequence")),
        "usage": (usage["input_tokens"] + (usage.get("cache_read_input_tokens") or 0), usage["output_tokens"]),
    }
