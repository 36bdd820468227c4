"""Texts in harmony as tokens, and what a response's parser makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from app.protocol.types import Json
from config.server_kind import ServerKind
from tests.support.requests import call
from workers.engine import harmony_vocabulary as harmony
from workers.formats.answer import AnswerRules, merge_deltas
from workers.formats.calls.hosted import HostedTool
from workers.formats.calls.router import CallableTools
from workers.formats.harmony.parser import HarmonyParser
from workers.formats.turn import Parsed


def tool(name: str, kind: ServerKind, label: str | None = None, **more: Any) -> HostedTool:
    return HostedTool(name, kind, label, name.split(".")[-1], None, {}, "tools[0]", **more)


HOSTED = {
    "python": tool("python", "python"),
    "browser.search": tool("browser.search", "browser"),
    "browser.open": tool("browser.open", "browser"),
    "library.find": tool("library.find", "mcp", "library"),
    "library.lend": tool("library.lend", "mcp", "library", needs_approval=True),
}
DOTTED = frozenset({"fs.read_file", "functions.f.g", "python.run", "browser.open"})
"""Names that clients may give to functions, although harmony's own names have dots too."""
RULES = AnswerRules(
    tools=CallableTools(functions=frozenset({"f", "g"}) | DOTTED, custom=frozenset({"c", "c.d"}), hosted=HOSTED)
)
SOURCES: dict[str, Any] = {"1": {"url": "https://x.test/a", "title": "A"}}


def tokens_of(text: str) -> list[int]:
    tokens: list[int] = harmony.encoding().encode(text, allowed_special="all")
    return tokens


def parser(rules: AnswerRules = RULES, end_tokens: frozenset[int] = frozenset()) -> HarmonyParser:
    return HarmonyParser(replace(rules, sources=SOURCES), end_tokens)


def parsed(tokens: Sequence[int], rules: AnswerRules = RULES, *, cut: bool = False) -> Parsed:
    made = parser(rules)
    said = made.feed(tokens)
    return whole(said + made.flush(cut=cut))


def whole(said: Parsed) -> Parsed:
    return Parsed(merge_deltas(said.deltas), said.tokens)


DAY = 1754438400  # 2025-08-06
CITY: Json = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def text_of(tokens: Sequence[int]) -> str:
    text: str = harmony.encoding().decode(tokens)
    return text


def called(name: str = "get_weather", arguments: str = '{"city":"Paris"}', call_id: str = "call_1") -> Json:
    return call(name, arguments, call_id)
