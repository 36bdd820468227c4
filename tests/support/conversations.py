"""Conversations of marked words that no proof has seen, and an oracle of its own: each word once, in its place."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from random import Random

from config.shaping.conversations import TOOLS, Conversation
from config.shaping.proof import Proof, Render
from config.shaping.shape import shaped

_LETTERS = "SSUUUAAHCCXPDMNahuc"
_ANSWERS, _CALLS = frozenset("AHah"), frozenset("CXPDMc")


def random_conversations(draw: Random, count: int) -> Iterator[Conversation]:
    """As `messages_of` builds them: what the model said in a row is one message."""
    while count:
        letters = "".join(draw.choice(_LETTERS) for _ in range(draw.randint(3, 8)))
        pairs = set(pairwise(letters))
        if not any(a in _ANSWERS | {"N"} and b in _ANSWERS | _CALLS | {"N"} for a, b in pairs):
            count -= 1
            yield Conversation(letters)


def misplaced(render: Render, conversation: Conversation, proof: Proof) -> str | None:
    """What is wrong with the prompt; None: nothing, or the proof refuses the conversation."""
    tools = TOOLS if conversation.has_tools else ()
    if proof.refusal(conversation.messages, has_tools=bool(tools)) is not None:
        return None
    try:
        prompt = render(shaped(conversation.messages, proof.shaping, has_tools=bool(tools)), tools, proof.shaping)
    except Exception as error:
        return f"{conversation.letters}: raises {error}"
    words = conversation.words
    if proof.shaping.single:
        words = sorted(words, key=lambda word: word.call)
    at = 0
    for word in words:
        mark = word.text.partition(" ")[0]
        if prompt.count(mark) > 1 or (word.needed and mark not in prompt):
            return f"{conversation.letters}: {mark} of {word.role} is there {prompt.count(mark)} times"
        if mark in prompt:
            if prompt.index(mark) < at:
                return f"{conversation.letters}: {mark} of {word.role} is misplaced"
            at = prompt.index(mark)
    return None
