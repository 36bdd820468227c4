"""Chat completions and messages beside those of `vllm serve`: the same tiny models, the same requests, field by field.

The demo model calls tools in the form of hermes and reasons; the tiny gpt-oss speaks harmony. The two servers run one
after the other, and a test compares what they answered. What may differ is in `docs/chat.md` and `docs/messages.md`.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from config.models import ServedModel
from tests.bench.contenders.models import NAME, Served
from tests.bench.contenders.peer import Peer
from tests.e2e import message_peer
from tests.engine.cases import demo_model
from tests.models.gpt_oss_folder import gpt_oss_model
from tests.support.longhaul import Longhaul
from tests.support.services import open_folder
from tests.support.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.vllm, pytest.mark.long]

Json = dict[str, Any]

WEATHER: Json = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
THINKING = {"chat_template_kwargs": {"enable_thinking": True}}


def user(text: str) -> Json:
    return {"role": "user", "content": text}


CASES: dict[str, Json] = {
    "plain": {"messages": [user("Hello!")]},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "What is 17 times 23?"}]}]},
    "scripts": {"messages": [user("Say hello in Chinese, Greek and emoji.")]},
    "cut": {"messages": [user("Count from 1 to 60.")], "max_tokens": 20},
    "stop": {"messages": [user("List three colours.")], "stop": ["\n3"]},
    "turns": {
        "messages": [
            user("My name is Ada."),
            {"role": "assistant", "content": "Nice to meet you, Ada!"},
            user("What is my name?"),
        ]
    },
    "call": {"messages": [user("What is the weather in Paris?")], "tools": [WEATHER]},
    "calls": {"messages": [user("Compare the weather in Paris and Rome.")], "tools": [WEATHER]},
    "result": {
        "messages": [
            user("What is the weather in Paris?"),
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": "18 degrees and sunny"},
        ],
        "tools": [WEATHER],
    },
    "no tools": {"messages": [user("Hello!")], "tools": [WEATHER], "tool_choice": "none"},
}
DEMO_CASES: dict[str, Json] = {
    **CASES,
    "logprobs": {"messages": [user("Hello!")], "logprobs": True, "top_logprobs": 3},
    "reasoning": {"messages": [user("What is 17 times 23?")], **THINKING},
    "reasoned call": {"messages": [user("What is the weather in Paris?")], "tools": [WEATHER], **THINKING},
    "cut reasoning": {"messages": [user("What is 17 times 23?")], "max_tokens": 8, **THINKING},
    "object": {
        "messages": [user("Give me a JSON object that describes Paris.")],
        "response_format": {"type": "json_object"},
    },
    "bias": {"messages": [user("Hello!")], "seed": 3, "presence_penalty": 0.5, "frequency_penalty": 0.5},
}
GPT_OSS_CASES: dict[str, Json] = {
    **CASES,
    "preamble": {"messages": [user("Tell me what you are going to do, then say hello.")]},
    "effort": {"messages": [user("Hello!")], "reasoning_effort": "low"},
}


DIFFERENT = {
    "demo": {("no tools", "usage")},
    "gpt-oss": {("no tools", "usage"), ("stop", "content"), ("preamble, streamed", "content")},
}
"""What differs, by case and field: the page says why."""

Answers = dict[tuple[str, bool], Json]
"""What a server answered, by case and by whether it was streamed."""


class ChatPeer(Peer):
    """`vllm serve` with its parsers."""

    def __init__(self, folder: Path, model: ServedModel, **parsers: Any) -> None:
        super().__init__("vllm", folder, Served())
        args = {**model.engine_args, "enable_auto_tool_choice": True, **parsers}
        self._model = replace(model, engine_args=args)


def ask_all(url: str, model: str, cases: dict[str, Json]) -> Answers:
    """Asks one after the other: nothing is batched, so numbers do not depend on what else runs."""
    found: Answers = {}
    with httpx.Client(base_url=url, timeout=PATIENCE_SECONDS) as client:
        for name, case in cases.items():
            for stream in (False, True):
                body = {"model": model, "max_tokens": 200, "temperature": 0, **case}
                if stream:
                    body |= {"stream": True, "stream_options": {"include_usage": True}}
                answer = client.post("/v1/chat/completions", json=body)
                assert answer.status_code == 200, (url, name, answer.text)
                found[name, stream] = normalised(accumulated(lines_of(answer.text)) if stream else answer.json())
    return found


def lines_of(text: str) -> list[Json]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def accumulated(chunks: list[Json]) -> Json:
    """The completion that a client puts together."""
    message: Json = {"content": ""}
    tokens: list[Json] = []
    reason = usage = None
    for chunk in chunks:
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            reason = choice.get("finish_reason") or reason
            tokens += (choice.get("logprobs") or {}).get("content") or []
            for name, value in choice["delta"].items():
                if name == "tool_calls":
                    for piece in value or ():
                        _add_call(message.setdefault("tool_calls", []), piece)
                elif name != "role" and value:
                    message[name] = message.get(name, "") + value
    logprobs = {"content": tokens} if tokens else None
    return {"choices": [{"message": message, "finish_reason": reason, "logprobs": logprobs}], "usage": usage}


def _add_call(calls: list[Json], piece: Json) -> None:
    if piece["index"] == len(calls):
        calls.append({"function": {"name": "", "arguments": ""}})
    for name, value in piece["function"].items():
        calls[piece["index"]]["function"][name] += value or ""


def normalised(answer: Json) -> Json:
    """What must be equal. Ids and times are each server's own; the rest that is made alike here is on the page."""
    (choice,) = answer["choices"]
    message, usage = choice["message"], answer["usage"]
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    tokens = (choice.get("logprobs") or {}).get("content") or []
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return {
        "content": (message.get("content") or "").strip() or None,
        "reasoning": reasoning and reasoning.strip(),
        "calls": [(call["name"], json.loads(call["arguments"])) for call in calls],
        "finish_reason": choice["finish_reason"],
        "logprobs": [(token["token"], token["logprob"], _top(token)) for token in tokens if token["token"] not in ENDS],
        "usage": [usage[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")],
    }


ENDS = ("<|im_end|>",)


def _top(token: Json) -> list[tuple[float, str]]:
    """A token that is a part of a character is a mark of a replaced one, or nothing."""
    return sorted((each["logprob"], each["token"].strip("\ufffd")) for each in token["top_logprobs"])


async def vllm_answers(
    peer: ChatPeer, cases: dict[str, Json], messages: dict[str, Json]
) -> tuple[Answers, message_peer.Told]:
    try:
        await peer.start()
        return ask_all(peer.url, NAME, cases), message_peer.ask_all(peer.url, NAME, messages)
    finally:
        await peer.stop()


@dataclass(frozen=True)
class Both:
    """What both servers answered."""

    model: str
    longhaul: Answers
    vllm: Answers
    messages: tuple[message_peer.Told, message_peer.Told]
    """Of Longhaul, and of vLLM."""


@pytest.fixture(scope="module", params=["demo", "gpt-oss"])
def both(request: pytest.FixtureRequest) -> Both:
    is_demo = request.param == "demo"
    model = demo_model() if is_demo else gpt_oss_model()
    parsers = {"tool_call_parser": "hermes", "reasoning_parser": "qwen3"} if is_demo else {"tool_call_parser": "openai"}
    cases = DEMO_CASES if is_demo else GPT_OSS_CASES
    asked = message_peer.CASES if is_demo else message_peer.HARMONY_CASES
    with open_folder() as folder:
        theirs, told = asyncio.run(vllm_answers(ChatPeer(folder, model, **parsers), cases, asked))
    longhaul: Longhaul = request.getfixturevalue("longhaul" if is_demo else "gpt_oss")
    messages = message_peer.ask_all(longhaul.url, model.name, asked)
    return Both(request.param, ask_all(longhaul.url, model.name, cases), theirs, (messages, told))


def test_every_answer_is_vllms(both: Both) -> None:
    found: dict[tuple[str, str], Any] = {}
    for (name, stream), ours in both.longhaul.items():
        theirs = both.vllm[name, stream]
        for field in (field for field in ours if not alike(ours[field], theirs[field])):
            case = name if (name, field) in DIFFERENT[both.model] else f"{name}, {'' if stream else 'not '}streamed"
            found[case, field] = (ours[field], theirs[field])
    assert found.keys() == DIFFERENT[both.model], found


FORCED = {(case, field) for case in ("any", "named") for field in ("usage", "text", "ends", "calls")}
MESSAGES_DIFFERENT = {
    "demo": {*FORCED, ("none", "usage"), ("failed result", "usage"), ("failed result", "text")},
    "gpt-oss": {
        *((case, "thinking") for case in message_peer.HARMONY_CASES),
        *(("stop", "text"), ("none", "usage"), ("failed result", "usage")),
    },
}
"""The page says why."""


def test_every_message_is_vllms(both: Both) -> None:
    ours, theirs = both.messages
    found: dict[tuple[str, str], Any] = {}
    for (name, stream), answer in ours.answers.items():
        other = theirs.answers[name, stream]
        for field in answer.keys() | other.keys():
            if (value := answer.get(field)) != other.get(field):
                found[name, field] = (stream, value, other.get(field))
    assert found.keys() == MESSAGES_DIFFERENT[both.model], found
    faults = {name: (status, theirs.faults[name]) for name, status in ours.faults.items()}
    different = {name: statuses for name, statuses in faults.items() if statuses[0] != statuses[1]}
    assert different == ({"no messages": (400, 200)} if both.model == "gpt-oss" else {})


def alike(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, float):
        return bool(ours == pytest.approx(theirs, abs=1e-3))
    if isinstance(ours, list | tuple):
        return len(ours) == len(theirs) and all(map(alike, ours, theirs))
    return bool(ours == theirs)
