"""Compaction: a turn in which the model summarises its context, for a model that will see the summary alone.

The summary is a turn like any other. Its request is the response's, without what is asked of the answer; its prompt
ends with `INSTRUCTION`; and its parser shows nothing of what it reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.protocol.events.deltas import Compacting, Text
from app.protocol.item_types import ADDITIONAL_TOOLS, APPROVAL_RESPONSE, CLIENT_OUTPUTS, MESSAGE, SERVER
from app.protocol.requests.bodies.vllm_params import ENGINE_PARAMS
from app.protocol.types import Json
from workers.formats.calls.hosted import HostedCall
from workers.formats.turn import Parsed, TurnParser

INSTRUCTION = (
    "Write a summary of the conversation so far, for a model that will go on with it and will see nothing else of it. "
    "Keep every fact, name, number, decision, open question and wish of the user, and what tools returned. "
    "Write only the summary."
)
"""The last message of the prompt: the model answers it with a summary."""

_ANSWERS = CLIENT_OUTPUTS | {APPROVAL_RESPONSE}
_ABOUT_THE_ANSWER: Mapping[str, Any] = {
    "tools": [],
    "tool_choice": "none",
    "text": {"format": {"type": "text"}},
    "top_logprobs": 0,
    "include": [],
    "enable_response_messages": False,
}
_PARAMS_OF_THE_ANSWER = frozenset(name for name, param in ENGINE_PARAMS.items() if param.about_the_answer)


def newest_items(items: Sequence[Json]) -> list[Json]:
    """The items that the model answers now: the inputs since it wrote something, and what they are outputs of.

    With outputs of calls, or with approvals, the model's last turn belongs to them.
    """
    start = _start_of(items, len(items), written=False)
    if any(item["type"] in _ANSWERS for item in items[start:]):
        start = _start_of(items, start, written=True)
    return list(items[start:])


def _start_of(items: Sequence[Json], stop: int, *, written: bool) -> int:
    """The index of the first of the items before `stop` that the model wrote, or that it did not write."""
    while stop and _is_written(items[stop - 1]) is written:
        stop -= 1
    return stop


def _is_written(item: Json) -> bool:
    if item["type"] == MESSAGE:
        return bool(item["role"] == "assistant")
    return item["type"] not in _ANSWERS | {ADDITIONAL_TOOLS} or item.get("execution") == SERVER


def summary_request(request: Mapping[str, Any], context_length: int) -> Json:
    """The stored request of the summary. It takes up to a quarter of the context, whatever the answer may take, and in
    a project with limits no more than was reserved for it."""
    tokens = min(max(context_length // 4, 1), request.get("summary_tokens") or context_length)
    extra = {name: value for name, value in request["extra"].items() if name not in _PARAMS_OF_THE_ANSWER}
    return {**request, **_ABOUT_THE_ANSWER, "extra": extra, "max_output_tokens": tokens}


def summary_items(items: Sequence[Json]) -> list[Json]:
    """The items of the summary's prompt: the context, then the instruction."""
    part = {"type": "input_text", "text": INSTRUCTION}
    return [*items, {"type": "message", "id": "msg_summarise", "role": "user", "content": [part]}]


class SummaryParser:
    """Reads a turn as a summary. See `workers.formats.turn.TurnParser`; `parser` reads the tokens."""

    calls: Sequence[HostedCall] = ()
    searched = False

    def __init__(self, parser: TurnParser) -> None:
        self._parser = parser
        self._texts: list[str] = []

    @property
    def ended(self) -> bool:
        return self._parser.ended

    @property
    def tokens(self) -> int:
        return self._parser.tokens

    @property
    def reasoning_tokens(self) -> int:
        return self._parser.reasoning_tokens

    @property
    def summary(self) -> str:
        """The text so far, without reasoning and preambles."""
        return "".join(self._texts).strip()

    def feed(self, token_ids: Sequence[int], logprobs: Sequence[Json] = ()) -> Parsed:
        return self._read(self._parser.feed(token_ids, logprobs))

    def flush(self, *, cut: bool = False) -> Parsed:
        return self._read(self._parser.flush(cut=cut))

    def _read(self, parsed: Parsed) -> Parsed:
        deltas = parsed.deltas
        self._texts += [delta.text for delta in deltas if isinstance(delta, Text) and delta.phase != "commentary"]
        return Parsed((Compacting(),) if deltas else (), parsed.tokens)
