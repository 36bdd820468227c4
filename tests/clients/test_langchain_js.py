"""LangChain for JavaScript, with the Responses API and with chat completions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clients.target import PARIS, REPORT, Target
from tests.support.node_clients import NodeClient, node_client

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def chat() -> Iterator[NodeClient]:
    with node_client("langchain.mjs") as opened:
        yield opened


def test_invoke(chat: NodeClient, target: Target) -> None:
    answer = chat("invoke", target, input=target.script.hello)
    assert answer["text"] == target.script.hello_answer
    assert answer["usage"]["total_tokens"] == answer["usage"]["input_tokens"] + answer["usage"]["output_tokens"]


def test_stream(chat: NodeClient, target: Target) -> None:
    assert chat("stream", target, input=target.script.long) == {"text": target.script.long_answer}


def test_bind_tools_makes_a_loop(chat: NodeClient, target: Target) -> None:
    answer = chat("callTool", target, input=target.script.weather, report=REPORT)
    assert answer["call"]["args"] == {"city": "Paris"}
    assert answer["text"] == target.script.weather_answer


def test_with_structured_output(chat: NodeClient, target: Target) -> None:
    assert chat("structured", target, input=target.script.paris) == PARIS.model_dump()


def test_reasoning_is_shown(chat: NodeClient, target: Target) -> None:
    answer = chat("reason", target, input=target.script.hello)
    assert answer["text"] == target.script.hello_answer
    assert answer["thought"].strip()
    assert answer["streamed"].strip()


def test_completions_invoke_and_stream(chat: NodeClient, target: Target) -> None:
    answer = chat("completions", target, name="invoke", args={"input": target.script.hello})
    assert answer["text"] == target.script.hello_answer
    assert answer["usage"]["total_tokens"] == answer["usage"]["input_tokens"] + answer["usage"]["output_tokens"]
    streamed = chat("completions", target, name="stream", args={"input": target.script.long})
    assert streamed == {"text": target.script.long_answer}


def test_completions_with_tools_make_a_loop(chat: NodeClient, target: Target) -> None:
    asked = {"input": target.script.weather, "report": REPORT}
    answer = chat("completions", target, name="callTool", args=asked)
    assert answer["call"]["args"] == {"city": "Paris"}
    assert answer["text"] == target.script.weather_answer


def test_completions_with_structured_output(chat: NodeClient, target: Target) -> None:
    answer = chat("completions", target, name="structured", args={"input": target.script.paris})
    assert answer == PARIS.model_dump()
