"""Questions of the demo model, and the answers of models in their formats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.protocol.events.deltas import CallArguments, Text
from app.protocol.types import Json
from workers.engine.grammar_probe import GrammarProbe, Source, Verdict

WEATHER: Json = {
    "type": "function",
    "name": "get_weather",
    "description": "Current weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": None,
}
PARIS = CallArguments('{"city":"Paris"}')
HERMES = '<tool_call>\n{"name":"get_weather","arguments":{"city":"Paris"}}\n</tool_call>'


class Passing(GrammarProbe):
    """Finds nothing wrong."""

    def __init__(self) -> None:
        super().__init__(lambda: "", 0)

    async def compile(self, sources: Sequence[Source]) -> list[Verdict]:
        return [Verdict() for _ in sources]


def tokens_of(tokenizer: Any, text: str) -> list[int]:
    return [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]


def json_schema(**properties: Json) -> Json:
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {"type": "json_schema", "name": "it", "strict": True, "schema": schema, "description": None}


PERSON = json_schema(name={"type": "string"}, birth_year={"type": "integer"}, city={"type": "string"})
ADA = "Extract the person: Ada Lovelace was born in 1815 in London."
ADA_JSON = Text('{"name":"Ada Lovelace","birth_year":1815,"city":"London"}')
