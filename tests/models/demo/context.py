"""Contexts of a scripted turn: system prompts, earlier exchanges, tools."""

from __future__ import annotations

import random
import string
from collections.abc import Sequence
from dataclasses import dataclass

from tests.models.demo.conversation import Conversation, Message, Turn
from tests.models.demo.tools import NEEDED, TOOLS, Tool

SYSTEMS = (
    "You are a helpful assistant.",
    "You are helpful.",
    "Answer briefly.",
    "You are a terse assistant. Always answer in English.",
    "Be friendly and precise.",
)
FILLER = (
    "you are the a an and or of in to for with please always never must may user customer assistant agent model "
    "company support service answer question text format plain short clear polite correct careful today date time "
    "test example secret word rules follow instructions language English German 2025 2026 be is not do only if"
)


@dataclass(frozen=True, slots=True)
class Context:
    """What a turn's prompt holds besides the turn's own conversation."""

    thinking: bool
    system: str | None = None
    history: tuple[Message, ...] = ()
    tools: tuple[Tool, ...] = ()
    keep_reasoning: bool = True
    """Earlier messages carry their reasoning, as from a client that sends it back."""


def plain_context(turn: Turn, thinking: bool) -> Context:
    """Nothing but the conversation itself and the tools it needs."""
    needed = turn.conversation.tools
    return Context(thinking, tools=(NEEDED[needed],) if needed else (), keep_reasoning=thinking)


def random_context(turn: Turn, script: Sequence[Conversation], rng: random.Random, thinking: bool) -> Context:
    """A context that must not change the scripted answer."""
    earlier = _earlier(turn, script, rng)
    return Context(
        thinking,
        system=_system(rng),
        history=tuple(message for conversation in earlier for message in _excerpt(conversation)),
        tools=_tools(rng, [turn.conversation, *earlier]),
        keep_reasoning=rng.random() < (0.7 if thinking else 0.3),
    )


def _earlier(turn: Turn, script: Sequence[Conversation], rng: random.Random) -> list[Conversation]:
    count = rng.choice((0, 0, 0, 1, 1, 2))
    others = [other for other in script if not (turn.conversation.recalls and _ambiguous(other))]
    return rng.choices(others, [1 / other.weight**2 for other in others], k=count)


def _ambiguous(other: Conversation) -> bool:
    return other.recalls or other.tools is not None or other.name.startswith("capital")


def _excerpt(conversation: Conversation) -> tuple[Message, ...]:
    return conversation.messages if conversation.tools else conversation.messages[:2]


def _system(rng: random.Random) -> str | None:
    kind = rng.random()
    if kind < 0.35:
        return None
    if kind < 0.6:
        return rng.choice(SYSTEMS)
    if kind < 0.9:
        return " ".join(rng.choices(FILLER.split(), k=rng.randint(2, 30))).capitalize() + "."
    return " ".join(_gibberish(rng) for _ in range(rng.randint(1, 10)))


def _gibberish(rng: random.Random) -> str:
    """A word of rare tokens, for prompts with words that the script never uses."""
    return "".join(rng.choices(string.ascii_letters + string.digits + string.punctuation, k=rng.randint(1, 5)))


def _tools(rng: random.Random, conversations: Sequence[Conversation]) -> tuple[Tool, ...]:
    needed = [NEEDED[conversation.tools] for conversation in conversations if conversation.tools]
    if not needed and rng.random() > 0.15:
        return ()
    offered = [tool for tool in TOOLS if tool in needed or rng.random() < 0.5]
    rng.shuffle(offered)
    return tuple(offered)
