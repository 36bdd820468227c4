"""Proves that a model's parsers read the calls that its own chat template writes.

The template shows turns with calls as the model was trained to write them. Fed to the parsers token by token, they must
come out as those calls, with values of the right types, with and without thoughts before them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from typing import Any, cast

from app.protocol.events.deltas import CallArguments, CallStart, Delta, Reasoning, Text
from config.families import ANY_REASONING, FAMILIES
from config.models import ServedModel
from config.settings import ConfigError
from config.shaping.proof import Proof, Render
from config.shaping.shape import Message, shaped
from workers.engine.output_format import OutputSpec, Tool, ToolChoice
from workers.engine.vllm.output.output_format import OutputFormats, VllmOutputFormat
from workers.engine.vllm.output.thoughts import Start

_ASKED, _RETURNED, _NEXT = "Askedword", "Returnedword", "Nextword"
_SAID, _THOUGHT = "Saidword first.", "Let me think."
_STRING, _INTEGER, _FLAG = ({"type": kind} for kind in ("string", "integer", "boolean"))


def _tool(name: str, index: int, **properties: Any) -> Tool:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return Tool(name, "A probe.", parameters, strict=False, field=f"tools[{index}]")


TOOLS = (
    _tool("get_weather", 0, city=_STRING, days=_INTEGER),
    _tool("search", 1, query=_STRING, deep=_FLAG),
)


@dataclass(frozen=True, slots=True)
class Case:
    """An answer with calls."""

    what: str
    calls: tuple[tuple[str, Mapping[str, Any]], ...]
    text: str = ""


_ONE = ("get_weather", {"city": "New York", "days": 3})
CASES = (
    Case("a call", (_ONE,)),
    Case("a value that is a number as text", (("search", {"query": "123", "deep": True}),)),
    Case("a value that is a word of JSON as text", (("search", {"query": "true", "deep": False}),)),
    Case("two calls", (_ONE, ("search", {"query": "a b", "deep": True}))),
    Case("text before a call", (_ONE,), _SAID),
)


@dataclass(frozen=True, slots=True)
class Fit:
    """The parsers that fit the model."""

    tool_parser: str | None
    reasoning_parser: str | None
    reason: str | None
    """Why it is another choice than that of the model's family."""


_Variant = tuple[str, Sequence[int], Sequence[int], bool]
"""In words, the answer's tokens, the prompt before it, and whether it has thoughts."""


@dataclass(frozen=True)
class Written:
    """A model whose template is rendered to see what it writes."""

    render: Render
    proof: Proof
    tokenizer: Any
    end_tokens: frozenset[int]
    model_config: Any = None

    def fit(self, model: ServedModel) -> Fit:
        """The family's parsers, if they read what is written; else others that do; else none for calls."""
        answers = list(self._answers()) if self.proof.no_tools is None and self.proof.broken is None else []
        if not answers or model.tool_parser is None:
            return Fit(model.tool_parser, model.reasoning_parser, None)
        first: str | None = None
        for tools, reasoning in _candidates(model):
            fault = self.fault(replace(model, tool_parser=tools, reasoning_parser=reasoning), answers)
            if fault is None:
                return Fit(tools, reasoning, first)
            first = first or f"{tools} does not read {fault}"
        return Fit(None, model.reasoning_parser, first)

    def fault(self, model: ServedModel, answers: Sequence[tuple[Case, Sequence[str]]]) -> str | None:
        """The parts of an answer that the model's parsers do not read; None: they read all."""
        try:
            formats = OutputFormats(model, self.tokenizer, self.end_tokens, self.model_config, cast(Any, None))
            spec = OutputSpec(tools=TOOLS, choice=ToolChoice.AUTO)
            output_format = formats.free(spec)
        except ConfigError as error:
            return str(error)
        prompt = self._tokens(self._shown([{"role": "user", "content": _ASKED}]))
        for case, texts in answers:
            answer = self._answer(_without_empty_thoughts(texts, output_format), [name for name, _ in case.calls])
            if not answer:
                continue
            for how, tokens, begun, thinks in self._variants(output_format, answer, prompt):
                if not _reads(output_format, tokens, begun, case, thinks=thinks):
                    return case.what + how
        return None

    def _answers(self) -> Iterator[tuple[Case, Sequence[str]]]:
        """The cases, and what the template writes for each, with outputs and with a message behind it: without a case
        that it does not write so."""
        for case in CASES:
            if (len(case.calls) > 1 and self.proof.shaping.single) or (case.text and self.proof.shaping.apart):
                continue
            if texts := list(self._written(case)):
                yield case, texts

    def _written(self, case: Case) -> Iterator[str]:
        """The text behind the beginning of an answer, as a prompt has it."""
        ids = [f"functions.{name}:{index}" for index, (name, _) in enumerate(case.calls)]
        calls = [
            {"id": id_, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for id_, (name, arguments) in zip(ids, case.calls, strict=True)
        ]
        asked = {"role": "user", "content": _ASKED}
        turn = {"role": "assistant", "content": case.text, "tool_calls": calls}
        outputs = [{"role": "tool", "tool_call_id": id_, "content": _RETURNED} for id_ in ids]
        begun = self._shown([asked]).rpartition(_ASKED)[2]
        for behind, until in ((outputs, _RETURNED), ([{"role": "user", "content": _NEXT}], _NEXT)):
            try:
                written = self._shown([asked, turn, *behind]).rpartition(_ASKED)[2].partition(until)[0]
            except Exception:  # a template is a program
                continue
            written = written[len(_begun(begun, written)) :]
            if case.text in written and all(name in written for name, _ in case.calls):
                yield written

    def _answer(self, texts: Sequence[str], names: Sequence[str]) -> list[int]:
        """What texts of the same answer have in common, up to the end of the turn; empty if that is not to be told."""
        first, *others = [list(takewhile(lambda token: token not in self._ends, self._tokens(text))) for text in texts]
        alike = first[: min((_common(first, other) for other in others), default=len(first))]
        found = (tokens for tokens in (alike, first) if all(name in self._decoded(tokens) for name in names))
        return next(found, [])

    def _decoded(self, tokens: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(tokens, skip_special_tokens=False)
        return text

    @cached_property
    def _ends(self) -> frozenset[int]:
        """The tokens that end an answer, and the mark behind one in a prompt."""
        asked, said = {"role": "user", "content": _ASKED}, {"role": "assistant", "content": _SAID}
        try:
            behind = self._tokens(self._shown([asked, said, asked]).partition(_SAID)[2].lstrip())[:1]
        except Exception:  # a template is a program
            behind = []
        return self.end_tokens.union(set(behind) & set(self.tokenizer.get_added_vocab().values()))

    def _variants(
        self, output_format: VllmOutputFormat, answer: Sequence[int], prompt: Sequence[int]
    ) -> Iterator[_Variant]:
        thoughts = output_format.thoughts
        start = Start.CLOSED if thoughts is None else thoughts.start(prompt)
        closed = prompt if thoughts is None or start is not Start.OPEN else thoughts.prompt(Start.CLOSED)
        yield "", answer, closed, False
        yield " behind a line feed", [*self._tokens("\n"), *answer], closed, False
        if thoughts is not None and start is not Start.CLOSED:
            begin = "" if start is Start.OPEN else thoughts.begin + "\n"
            thought = self._tokens(f"{begin}{_THOUGHT}\n{thoughts.end}\n\n")
            yield " behind thoughts", [*thought, *answer], prompt, True

    def _shown(self, messages: Sequence[Message]) -> str:
        tools = [tool.as_function() for tool in TOOLS]
        return self.render(shaped(messages, self.proof.shaping, has_tools=True), tools, self.proof.shaping)

    def _tokens(self, text: str) -> list[int]:
        tokens: list[int] = list(self.tokenizer.encode(text, add_special_tokens=False))
        return tokens


def _candidates(model: ServedModel) -> Iterator[tuple[str, str | None]]:
    """Tool parsers with reasoning parsers, the most likely ones first."""
    assert model.tool_parser is not None
    reasoning: tuple[str | None, ...] = (model.reasoning_parser,)
    if model.reasoning_parser is not None and "reasoning_parser" in model.guessed:
        reasoning = tuple(dict.fromkeys((*reasoning, ANY_REASONING)))
    by_form = [family.tool_parser for family in FAMILIES[::-1] if not family.types]  # the forms that many share first
    known = [parser for parser in (*by_form, *(family.tool_parser for family in FAMILIES)) if parser is not None]
    for tools in dict.fromkeys((model.tool_parser, *known)):
        for each in reasoning if tools == model.tool_parser else reasoning[:1]:
            yield tools, each


def _without_empty_thoughts(texts: Sequence[str], output_format: VllmOutputFormat) -> list[str]:
    """Templates may write thoughts where there are none."""
    if (thoughts := output_format.thoughts) is None:
        return [text.lstrip() for text in texts]
    empty = re.compile(rf"\s*(?:{re.escape(thoughts.begin)})?\s*{re.escape(thoughts.end)}")
    return [(text[found.end() :] if (found := empty.match(text)) else text).lstrip() for text in texts]


def _reads(
    output_format: VllmOutputFormat, tokens: Sequence[int], prompt: Sequence[int], case: Case, *, thinks: bool
) -> bool:
    decoder, parser = output_format.decoder(), output_format.parser(prompt)
    deltas: list[Delta] = []
    try:
        for token in tokens:
            if token not in output_format.end_tokens:
                deltas += parser.feed(decoder.feed([token]), [token])
        deltas += [*parser.feed(decoder.flush(), []), *parser.flush(cut=False)]
        calls = list(_calls(deltas))
    except Exception:  # a parser is a program
        return False
    texts = {kind: "".join(each.text for each in deltas if isinstance(each, kind)) for kind in (Text, Reasoning)}
    is_text = texts[Text].strip() == case.text.strip() and (_THOUGHT in texts[Reasoning]) == thinks
    return is_text and calls == [(name, dict(arguments)) for name, arguments in case.calls]


def _calls(deltas: Sequence[Delta]) -> Iterator[tuple[str, Any]]:
    """Raises ValueError for arguments that are no JSON."""
    starts = [index for index, delta in enumerate(deltas) if isinstance(delta, CallStart)]
    for start, end in zip(starts, [*starts[1:], len(deltas)], strict=True):
        written = "".join(each.text for each in deltas[start:end] if isinstance(each, CallArguments))
        yield cast(CallStart, deltas[start]).name, json.loads(written)


def _begun(prompt: str, written: str) -> str:
    """The common beginning of both, without a part of a mark."""
    return re.sub(r"[<\[][^<>\[\]\s]*$", "", written[: _common(prompt, written)])


def _common(first: Sequence[Any], second: Sequence[Any]) -> int:
    """How many items both begin with."""
    return next(
        (index for index, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )
