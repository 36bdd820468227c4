"""Chat completions and messages beside those of `vllm serve`: the same tiny models, the same requests, field by field.

The demo model calls tools in the form of hermes and reasons; the tiny gpt-oss speaks harmony. The two servers run one
after the other, and a test compares what they answered. What may differ is in `docs/chat.md` and `docs/messages.md`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from config.models import ServedModel
from tests.bench.contenders.models import NAME, Served
from tests.bench.contenders.peer import Peer
from tests.e2e import message_peer
from tests.e2e.gpt_oss import toml
from tests.engine.cases import demo_model
from tests.models.gpt_oss_folder import gpt_oss_model
from tests.support.collector import Collector, collecting
from tests.support.installations import running
from tests.support.longhaul import Longhaul
from tests.support.services import open_folder
from tests.support.waiting import PATIENCE_SECONDS, until_sync

pytestmark = [pytest.mark.vllm, pytest.mark.long]

Json = dict[str, Any]

READY_SECONDS = 400.0
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
                body = {"model": model, "temperature": 0, **case}
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


@contextmanager
def vllm_answers(peer: ChatPeer, cases: dict[str, Json]) -> Iterator[tuple[Answers, message_peer.Told]]:
    with asyncio.Runner() as runner:
        try:
            runner.run(peer.start())
            yield ask_all(peer.url, NAME, cases), message_peer.ask_all(peer.url, NAME)
        finally:
            runner.run(peer.stop())


DEMO = """
[[models]]
name = "demo"
path = {path}
context_length = 4096
engine_args = {args}
chat_template_args = {{ enable_thinking = false }}
"""
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@dataclass(frozen=True)
class Both:
    """What both servers answered."""

    model: str
    longhaul: Answers
    vllm: Answers
    messages: tuple[message_peer.Told, message_peer.Told]
    """Of Longhaul, and of vLLM."""


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as opened:
        yield opened


@pytest.fixture(scope="module")
def demo(collector: Collector) -> Iterator[Longhaul]:
    """With the engine arguments of the peer. vLLM sends its spans."""
    with open_folder() as folder:
        model, models = demo_model(), folder / "models.toml"
        args = toml({**model.engine_args, "otlp_traces_endpoint": collector.url})
        models.write_text(DEMO.format(path=json.dumps(model.path), args=args))
        said = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf", "LONGHAUL_LOG_FORMAT": "json"}
        installation = Longhaul(folder / "home", models, VLLM_LOGGING_LEVEL="INFO", **said)
        installation.ready_seconds = READY_SECONDS
        with running(installation):
            yield installation


@pytest.fixture(scope="module", params=["demo", "gpt-oss"])
def both(request: pytest.FixtureRequest) -> Both:
    is_demo = request.param == "demo"
    model = demo_model() if is_demo else gpt_oss_model()
    parsers = {"tool_call_parser": "hermes", "reasoning_parser": "qwen3"} if is_demo else {"tool_call_parser": "openai"}
    cases = DEMO_CASES if is_demo else GPT_OSS_CASES
    with open_folder() as folder, vllm_answers(ChatPeer(folder, model, **parsers), cases) as (theirs, told):
        pass
    longhaul: Longhaul = request.getfixturevalue("demo" if is_demo else "gpt_oss")
    name = "demo" if is_demo else "tiny-gpt-oss"
    messages = message_peer.ask_all(longhaul.url, name)
    return Both(request.param, ask_all(longhaul.url, name, cases), theirs, (messages, told))


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
        *((case, "thinking") for case in message_peer.CASES),
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


def test_the_spans_of_a_response_are_of_its_trace_and_the_engine_s_log_names_the_worker(
    demo: Longhaul, collector: Collector
) -> None:
    """tests/integration/generation/test_trace.py has later attempts, which get the same trace."""
    with demo.http() as http:
        trace = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
        answer = http.post("/v1/responses", json={"model": "demo", "input": "Hello!"}, headers=trace)
    response_id = answer.raise_for_status().json()["id"]
    (span,) = until_sync(lambda: collector.of(TRACE), what="its span")
    assert (span.name, span.parent_span_id.hex()) == ("llm_request", SPAN)
    ids = {each.key: each.value.string_value for each in span.attributes}
    assert ids["gen_ai.request.id"].startswith(f"{response_id}-1-")
    lines = [json.loads(line) for line in demo.log.read_text().splitlines()]
    engines = {(line["process"], line["worker"]) for line in lines if line["logger"].startswith("vllm.v1.engine.core")}
    (claimed,) = [each for each in lines if each.get("response_id") == response_id and each["message"] == "claimed"]
    assert engines == {("EngineCore", claimed["worker"])}
