"""Every client, in every way to use it, does what a client must do. `adapters` has the abilities and the clients."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from tests.clients.adapters import ABILITIES, opened
from tests.clients.target import Target
from tests.support.node_clients import NodeClient

AGENTIC = "stream tool_loop streamed_tool_loop history"
CLIENTS: dict[str, dict[str, str]] = {
    "openai": {"Responses": "", "Chat": ""},
    "anthropic": {"Messages": ""},
    "anthropic_js": {"messages": ""},
    "agents": {"Http": "", "WebSocket": "error", "Chat": ""},
    "langchain": {"Responses": "", "Chat": "reasoning"},
    "pydantic_ai": {"Responses": "", "WebSocket": "", "Chat": ""},
    "ai_sdk": {"responses": "", "chat": "reasoning", "compatible": ""},
    "openai_js": {"responses": "streamed_tool_loop", "chat": ""},
    "agents_js": {"http": "", "websocket": "error"},
    "langchain_js": {"responses": "streamed_tool_loop", "chat": "streamed_tool_loop reasoning"},
    "litellm": dict.fromkeys(("Responses", "Chat", "ChatOverResponses"), "streamed_tool_loop"),
    "llama_index": dict.fromkeys(("Responses", "Chat"), "streamed_tool_loop"),
    "instructor": dict.fromkeys(
        ("Responses", "Chat"), "text stream tool_loop streamed_tool_loop history reasoning error"
    ),
    "dspy": {"Responses": f"{AGENTIC} error", "Chat": f"{AGENTIC} error reasoning"},
    "llm": {"Responses": "stream streamed_tool_loop error", "Chat": "stream streamed_tool_loop error reasoning"},
}
"""The ways to use each client, and what the client lacks in each, or what its adapter does not try."""
LONG = ("agents_js", "langchain_js", "litellm", "llama_index", "instructor", "dspy", "llm")
ON_VLLM = {
    ("openai", "Responses"): set(ABILITIES),
    ("openai", "Chat"): set(ABILITIES),
    ("agents", "Http"): {"tool_loop", "structured"},
    ("anthropic", "Messages"): set(ABILITIES),
    ("ai_sdk", "responses"): {"tool_loop", "structured", "reasoning"},
}
"""What the engine itself takes from a request: grammars of schemas and tools, sampling, reasoning. What the other
clients send is of the same kinds, and how they read an answer is tested with the scripted engine alone."""


def _rows() -> list[Any]:
    rows = []
    for client, ways in CLIENTS.items():
        for way, lacks in ways.items():
            for ability in (each for each in ABILITIES if each not in lacks.split()):
                name, marks = f"{client}-{way}-{ability}", [pytest.mark.long] if client in LONG else []
                rows.append(pytest.param(client, way, ability, "scripted", id=name, marks=marks))
                if ability in ON_VLLM.get((client, way), ()):
                    rows.append(pytest.param(client, way, ability, "demo", id=f"{name}-demo", marks=pytest.mark.vllm))
    return rows


# openai 3.57.0 writes a parsed model back, and litellm 1.109.1 has outdated types: pydantic warns of both.
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")
@pytest.mark.filterwarnings(r"ignore:Items? .* using the `ReadOnly` qualifier:UserWarning")
@pytest.mark.filterwarnings("ignore:Accessing the 'model_(computed_)?fields':pydantic.PydanticDeprecatedSince211")
@pytest.mark.parametrize(("client", "way", "ability", "target"), _rows(), indirect=["target"], scope="session")
def test_a_client(client: str, way: str, ability: str, target: Target, node: Callable[[str], NodeClient]) -> None:
    due = ABILITIES[ability].due(target.script)
    with opened(client, way, target, node) as adapter:

        def found() -> Any:
            value = getattr(adapter, ability)(*ABILITIES[ability].asked(target.script))
            return asyncio.run(value) if inspect.iscoroutine(value) else value

        if ability == "error":
            with pytest.raises(Exception, match="temperature") as raised:
                found()
            assert due in (getattr(raised.value, "status_code", None), getattr(raised.value, "status", None))
        elif ability == "stream":
            pieces = found()
            assert ("".join(pieces), len(pieces) > 1) == (due, True)
        else:
            assert found() == due
