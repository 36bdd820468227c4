"""Proves how messages have to be shaped for a chat template: by what it shows, not by whether it raises.

Templates are programs. Some raise an error for an order that they do not expect; others leave a message out, show it
twice, in another place, or as the data that it is made of. Here each writes the conversations of marked words
(`conversations.py`). The first shaping is taken in which each word is there once, in its place, as text; an order for
which none is found is refused, with what the template made of it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import combinations
from typing import Any, Protocol

from config.shaping.conversations import (
    CONVERSATIONS,
    NAMES,
    OFFERS,
    PICTURES,
    PLAIN,
    TOOL_WORDS,
    TOOLS,
    TOOLS_SHOWN,
    Conversation,
    Word,
    said_of,
    traits_of,
)
from config.shaping.shape import AS_SENT, Message, Shaping, shaped

BUDGET_SECONDS = 1.5
"""CPU time for the proof of a template. What it has not shown by then counts as refused."""


class Render(Protocol):
    """Renders messages, which are shaped so, to the text of a prompt; raises what the template raises."""

    def __call__(self, messages: Sequence[Message], tools: Sequence[Any], shaping: Shaping, /) -> str: ...


@dataclass(frozen=True, slots=True)
class Refusal:
    """An order of messages that the model cannot be shown."""

    reason: str
    traits: frozenset[str]

    @property
    def order(self) -> str:
        return said_of(self.traits)

    @property
    def of_tools(self) -> bool:
        return TOOLS_SHOWN in self.traits

    @property
    def of_head(self) -> bool:
        """Whether it is about the instructions at the head."""
        return any(trait.startswith("^s") for trait in self.traits)


@dataclass(frozen=True, slots=True)
class Proof:
    shaping: Shaping = AS_SENT
    refusals: tuple[Refusal, ...] = ()
    no_tools: str | None = None
    """Why the model cannot be shown tools, or what they returned."""
    broken: str | None = None
    """Why it cannot be shown any message."""
    unread: str | None = None
    """What the parsers that the models file sets do not read of the template's calls. They are used all the same."""

    def refusal(self, messages: Sequence[Message], *, has_tools: bool) -> Refusal | None:
        """Why these messages, as they were sent, are refused."""
        if not self.refusals:
            return None
        traits = traits_of(messages, has_tools=has_tools)
        return next((refusal for refusal in self.refusals if refusal.traits <= traits), None)

    @property
    def refused(self) -> Mapping[str, str]:
        """The refused kinds of requests, and why, for operators and clients."""
        if self.broken is not None:
            return {"every message": self.broken}
        tools = {TOOLS_SHOWN: self.no_tools} if self.no_tools is not None else {}
        others = (refusal for refusal in self.refusals if not (tools and refusal.of_tools))
        return {**tools, **{refusal.order: refusal.reason for refusal in others}}

    def lines(self) -> Iterator[str]:
        """Notes for operators."""
        yield from (f"refuses {what}: {why}" for what, why in self.refused.items())
        if self.unread is not None:
            yield self.unread


AS_IT_IS = Proof()
"""The proof of an engine that shows whatever it is sent."""


def proven(render: Render, start: Shaping = AS_SENT, *, images: bool = False, budget: float = BUDGET_SECONDS) -> Proof:
    """`start`: the shaping that is tried first. `images`: whether the model sees; then its contents are lists of parts,
    if the template takes them."""
    return _Search(render, replace(start, parts=images), images, budget).proof()


@dataclass
class _Search:
    render: Render
    start: Shaping
    images: bool
    budget: float
    _seen: dict[str, str | Exception] = field(default_factory=dict)
    """The prompt of each conversation and shaping, or the error."""
    _began: float = field(default_factory=lambda: time.thread_time())

    def proof(self) -> Proof:
        shaping = self.start
        if self._fault(PLAIN, shaping) is not None:
            shaping = next((each for each in _others(shaping) if self._fault(PLAIN, each) is None), shaping)
            if (broken := self._fault(PLAIN, shaping)) is not None:
                return Proof(shaping, broken=broken)
        passed, refused = [PLAIN], dict[Conversation, str]()
        for conversation in (*OFFERS, *CONVERSATIONS, *(PICTURES if self.images else ())):
            if OFFERS[0] in refused and OFFERS[1] in refused and conversation.has_tools:
                refused[conversation] = refused[OFFERS[0]]
            elif self._fault(conversation, shaping) is None:
                passed.append(conversation)
            elif any(each.traits <= conversation.traits for each in refused):
                refused[conversation] = ""
            elif (other := self._found(conversation, shaping, passed)) is not None:
                shaping = other
                passed.append(conversation)
            else:
                refused[conversation] = self._fault(conversation, shaping) or ""
        return self._verdict(shaping, passed, list(refused))

    def _found(self, conversation: Conversation, shaping: Shaping, passed: Sequence[Conversation]) -> Shaping | None:
        """The first other shaping in which the conversation is shown whole, and each that was so far."""
        for other in _others(shaping):
            if self._is_over:
                return None
            if self._fault(conversation, other) is None and not any(self._fault(each, other) for each in passed):
                return other
        return None

    def _verdict(self, shaping: Shaping, passed: Sequence[Conversation], refused: Sequence[Conversation]) -> Proof:
        """A later shaping may have mended what was refused. Messages without a text do not show where they stand."""
        no_tools = self._fault(OFFERS[0], shaping) or self._fault(_CALL, shaping)
        refusals = [Refusal(no_tools, frozenset({TOOLS_SHOWN}))] if no_tools else []
        left = [each for each in (*passed, *refused) if not (no_tools and each.has_tools)]
        faults = {conversation: self._fault(conversation, shaping) for conversation in left}
        shown = [each.traits for each, fault in faults.items() if fault is None and each.letters.isupper()]
        for conversation, fault in faults.items():
            if fault and not any(refusal.traits <= conversation.traits for refusal in refusals):
                refusals.append(Refusal(fault, _core(conversation.traits, shown)))
        return Proof(shaping, tuple(refusals), no_tools)

    @property
    def _is_over(self) -> bool:
        return time.thread_time() - self._began > self.budget

    def _fault(self, conversation: Conversation, shaping: Shaping) -> str | None:
        """The fault of the conversation's prompt; None: it has none."""
        tools = TOOLS if conversation.has_tools else ()
        messages = shaped(conversation.messages, shaping, has_tools=bool(tools))
        prompt = self._prompt(messages, tools, shaping)
        if isinstance(prompt, Exception):
            return f"its chat template refuses it ({_line(prompt)})"
        if tools and not all(word in prompt for word in TOOL_WORDS):
            return "its chat template shows no tools"
        words = conversation.words
        if shaping.single:
            words = sorted(words, key=lambda word: word.call)
        return _misplaced(prompt, words) or self._as_own_words(messages, tools, shaping, prompt)

    def _as_own_words(
        self, messages: Sequence[Message], tools: Sequence[Any], shaping: Shaping, prompt: str
    ) -> str | None:
        """Whether an instruction or an output looks as if the model had said it."""
        if len(messages) > _SMALL:
            return None
        for index, message in enumerate(messages):
            if message["role"] in ("system", "tool") and index:
                said = {"role": "assistant", "content": message["content"]}
                if self._prompt([*messages[:index], said, *messages[index + 1 :]], tools, shaping) == prompt:
                    return f"its chat template shows {NAMES[message['role'][0]]} as the model's own words"
        return None

    def _prompt(self, messages: Sequence[Message], tools: Sequence[Any], shaping: Shaping) -> str | Exception:
        key = repr((messages, bool(tools), shaping.parts))
        if (found := self._seen.get(key)) is not None:
            return found
        if self._is_over:
            return TimeoutError("its proof took too long")
        try:
            made: str | Exception = self.render(messages, tools, shaping)
        except Exception as error:  # a template is a program
            made = error
        self._seen[key] = made
        return made


_CALL = Conversation("UC")
_SMALL = 4
"""Messages, of conversations that are looked at for who says what."""


def _misplaced(prompt: str, words: Sequence[Word]) -> str | None:
    end = 0
    for word in words:
        what = NAMES[word.role]
        found = [(prompt.find(form), form) for form in dict.fromkeys(word.forms()) if form in prompt]
        label = word.text.partition(" ")[0]
        if not found:
            if label in prompt and word.role not in "ct":
                return f"its chat template shows {what} as data, not as text"
            if not word.needed and label not in prompt:
                continue
            return f"its chat template leaves out {what}"
        if prompt.count(label) > 1:
            return f"its chat template shows {what} twice"
        if found[0][0] < end:
            return f"its chat template shows {what} in another place"
        end = found[0][0] + len(found[0][1])
    return None


def _core(traits: frozenset[str], shown: Sequence[frozenset[str]]) -> frozenset[str]:
    """The fewest of these traits that no conversation has which is shown."""
    ends = sorted(traits, key=lambda trait: (trait != TOOLS_SHOWN, "^" in trait or "$" in trait, trait))
    for many in range(1, 4):
        for chosen in map(frozenset, combinations(ends, many)):
            if not any(chosen <= each for each in shown):
                return chosen
    return traits


def _others(shaping: Shaping) -> Iterator[Shaping]:
    """Shapings that differ in one thing, then in two."""
    names = [each.name for each in fields(shaping)]
    for many in (1, 2):
        for chosen in combinations(names, many):
            changes: Mapping[str, Any] = {name: not getattr(shaping, name) for name in chosen}
            yield replace(shaping, **changes)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
