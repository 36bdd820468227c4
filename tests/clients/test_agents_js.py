"""@openai/agents: whole runs, over HTTP and over its WebSocket transport."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients.target import PARIS, REPORT, Target
from tests.support.node_clients import NodeClient, node_client
from tests.support.tool_servers import call, turns

pytestmark = pytest.mark.long

TOOL_LOOP = ["tool_call_item", "tool_call_output_item", "message_output_item"]


@pytest.fixture(scope="module")
def process() -> Iterator[NodeClient]:
    with node_client("agents.mjs") as opened:
        yield opened


@pytest.fixture(params=["http", "websocket"])
def agents(request: pytest.FixtureRequest, process: NodeClient) -> Any:
    def run(function: str, target: Target, /, **args: Any) -> Any:
        return process(function, target, websocket=request.param == "websocket", **args)

    return run


def test_run(agents: Any, target: Target) -> None:
    answer = agents("run", target, input=target.script.hello)
    assert answer["text"] == target.script.hello_answer
    assert answer["tokens"] > 0


def test_run_streamed(agents: Any, target: Target) -> None:
    answer = agents("stream", target, input=target.script.long)
    assert answer == {"text": target.script.long_answer, "final": target.script.long_answer}


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_is_called_in_a_loop(agents: Any, target: Target, stream: bool) -> None:
    answer = agents("callTool", target, input=target.script.weather, report=REPORT, stream=stream)
    assert answer == {"text": target.script.weather_answer, "kinds": TOOL_LOOP}


def test_an_output_type_is_a_structured_output(agents: Any, target: Target) -> None:
    assert agents("structured", target, input=target.script.paris) == PARIS.model_dump()


def test_history_is_carried_by_id_by_conversation_and_by_session(agents: Any, target: Target) -> None:
    texts = agents("talk", target, name=target.script.name, asked=target.script.asked)
    assert texts == [target.script.name_answer, target.script.asked_answer] * 3


def test_a_run_is_handed_off(agents: Any, scripted_target: Target) -> None:
    answer = agents("handOff", scripted_target, input=turns(call("transfer_to_Spanish"), "Hola"))
    assert (answer["text"], answer["last"]) == ("Hola", "Spanish")


def test_a_summary_of_the_reasoning_is_shown(agents: Any, target: Target) -> None:
    answer = agents("reason", target, input=target.script.hello)
    assert answer["text"] == target.script.hello_answer
    assert "".join(answer["summaries"]).strip()


def test_a_tool_of_a_namespace_is_called(agents: Any, scripted_target: Target) -> None:
    answer = agents(
        "callInNamespace", scripted_target, input=turns(call("crm__get_weather", city="Paris"), "Sunny"), report=REPORT
    )
    assert answer == {"text": "Sunny", "name": "get_weather", "namespace": "crm"}


def test_a_deferred_tool_is_found_by_tool_search(agents: Any, scripted_target: Target) -> None:
    script = turns(call("tool_search", query="weather"), call("get_weather", city="Paris"), "Sunny")
    answer = agents("searchTools", scripted_target, input=script, report=REPORT)
    assert answer["text"] == "Sunny"
    assert answer["kinds"] == ["tool_search_call_item", "tool_search_output_item", *TOOL_LOOP]
