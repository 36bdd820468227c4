"""What one client for Node alone does."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from app.messages.request import HINTS, REFUSED, CountMessageTokens, CreateMessage
from tests.clients.adapters import opened
from tests.clients.target import REPORT, Target
from tests.support.node_clients import NodeClient, program
from tests.support.tool_servers import call, turns

Node = Callable[..., Any]


@pytest.fixture
def of(scripted_target: Target, node: Callable[[str], NodeClient]) -> Node:
    """Returns the adapter of a client and a way to use it."""
    return lambda client, way="responses": opened(client, way, scripted_target, node)


@pytest.mark.parametrize("store", [True, False])
def test_the_ai_sdk_sends_reasoning_back_with_the_results_of_tools(of: Node, store: bool) -> None:
    """By reference if the response was stored, and as encrypted content if not."""
    asked = turns(f"<think>Hm.</think>{call('get_weather', city='Paris')}", "Said: {results}")
    answer = of("ai_sdk").reasonThenCallTool(asked, store)
    assert (answer["text"], answer["reasoned"].strip()) == (f"Said: {REPORT}", "Hm.")


def test_the_ai_sdk_carries_the_history_by_id(of: Node, scripted_target: Target) -> None:
    script = scripted_target.script
    assert of("ai_sdk").historyById(script.name, script.asked) == script.asked_answer


def test_openai_resumes_and_cancels_in_the_background(of: Node, scripted_target: Target) -> None:
    answer = of("openai_js").resume(scripted_target.script.long)
    assert answer["text"] == answer["final"] == scripted_target.script.long_answer
    assert answer["last"] == "response.completed"
    assert of("openai_js").cancel() == {"status": "cancelled"}


def test_openai_has_conversations_lists_and_a_websocket(of: Node, scripted_target: Target) -> None:
    script, openai = scripted_target.script, of("openai_js")
    answer = openai.converse(script.name, script.asked)
    assert answer["texts"] == openai.websocket(script.name, script.asked) == [script.name_answer, script.asked_answer]
    assert answer["items"] == ["user", "assistant", "user", "assistant"]
    listed = openai.lists(script.hello)
    assert (listed["items"], listed["tokens"] > 0) == ([script.hello], True)
    assert scripted_target.model in listed["models"]


@pytest.mark.long
@pytest.mark.parametrize("way", ["http", "websocket"])
def test_agents_remember_hand_off_and_find_their_tools(of: Node, scripted_target: Target, way: str) -> None:
    script, agents = scripted_target.script, of("agents_js", way)
    assert agents.remember(script.name, script.asked) == [script.asked_answer] * 2
    assert agents.handOff(turns(call("transfer_to_Spanish"), "Hola")) == {"text": "Hola", "last": "Spanish"}
    named = {"text": "Sunny", "name": "get_weather", "namespace": "crm"}
    assert agents.callInNamespace(turns(call("crm__get_weather", city="Paris"), "Sunny")) == named
    found = agents.searchTools(turns(call("tool_search", query="weather"), call("get_weather", city="Paris"), "Sunny"))
    assert found["text"] == "Sunny"
    assert found["kinds"][:3] == ["tool_search_call_item", "tool_search_output_item", "tool_call_item"]


def test_anthropic_lists_the_models(of: Node, scripted_target: Target) -> None:
    assert scripted_target.model in of("anthropic_js", "messages").models()


@pytest.mark.parametrize("place", ["messages", "beta/messages"])
def test_every_field_of_anthropic_s_requests_is_known(place: str) -> None:
    """tests/unit/messages does the same with the Python package."""
    types = program(f"@anthropic-ai/sdk/resources/{place}/messages.d.ts").read_text(encoding="utf-8")
    for name, model in (("MessageCreateParamsBase", CreateMessage), ("MessageCountTokensParams", CountMessageTokens)):
        _, _, rest = types.partition(f"\nexport interface {name} {{\n")
        fields = re.findall(r"^    (\w+)\??:", rest.partition("\n}\n")[0], re.MULTILINE)
        assert len(fields) > 5
        assert set(fields) <= {*model.model_fields, *HINTS, *REFUSED}, name
