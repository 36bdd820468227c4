"""What a client must be able to do, and one module for each client that does it.

The modules import their clients, which takes seconds: `opened` imports one when a test needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Self

from tests.clients.target import PARIS, REPORT, City, Script, Target
from tests.support.node_clients import NodeClient


@dataclass(frozen=True, slots=True)
class Ability:
    asked: Callable[[Script], tuple[str, ...]]
    """The arguments of the adapter's function."""
    due: Callable[[Script], Any]
    """What the function returns."""


ABILITIES = {
    "text": Ability(lambda script: (script.hello,), lambda script: script.hello_answer),
    "stream": Ability(lambda script: (script.long,), lambda script: script.long_answer),
    "tool_loop": Ability(lambda script: (script.weather,), lambda script: script.weather_answer),
    "streamed_tool_loop": Ability(lambda script: (script.weather,), lambda script: script.weather_answer),
    "structured": Ability(lambda script: (script.paris,), lambda script: PARIS),
    "history": Ability(
        lambda script: (script.name, script.asked), lambda script: [script.name_answer, script.asked_answer]
    ),
    "reasoning": Ability(lambda script: (script.hello,), lambda script: (script.hello_thought, script.hello_answer)),
    "error": Ability(lambda script: (), lambda script: 400),
}
"""By the name of the adapter's function. A stream returns its pieces. `error` raises what the client makes of a 400
for its `temperature` of 9. The tool is `get_weather`, which the client runs."""


class Adapter:
    """One way to use a client. It has a function for each ability, which may be asynchronous."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.model = target.model

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the client's connections."""


class NodeAdapter(Adapter):
    """A client for Node: `tests/clients/node` has a module for each, with a function for each ability."""

    def __init__(self, target: Target, process: NodeClient, way: str) -> None:
        super().__init__(target)
        self._process = process
        self._way = way

    def __getattr__(self, function: str) -> Callable[..., Any]:
        def call(*asked: Any) -> Any:
            to = {"way": self._way, "report": REPORT}
            found = self._process(function, self.target, to=to, asked=asked)
            return {"structured": lambda: City(**found), "reasoning": lambda: tuple(found)}.get(
                function, lambda: found
            )()

        return call


NODE = ("ai_sdk", "anthropic_js", "openai_js", "agents_js", "langchain_js")


def opened(client: str, way: str, target: Target, node: Callable[[str], NodeClient]) -> Any:
    """Imports the client, and returns its adapter for a way of using it. `node` starts a client for Node, once."""
    if client in NODE:
        return NodeAdapter(target, node(client), way)
    return getattr(import_module(f"tests.clients.adapters.{client}"), way)(target)
