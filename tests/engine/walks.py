"""Random answers that a grammar lets pass, as a model without sense would write them, and parsers that read them."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import numpy

from app.protocol.events.deltas import CallArguments, CallStart, Delta, Text
from tests.engine.cases import demo_model
from workers.engine.output_format import OutputSpec
from workers.engine.schemas.tags import held, nodes_in
from workers.formats.answer import AnswerRules, merge_deltas
from workers.formats.calls.router import CallableTools
from workers.formats.chat.parser import ChatParser

Json = dict[str, Any]

_DEEPSEEK = [f"<\uff5ctool\u2581{name}\uff5c>" for name in ("calls\u2581begin", "calls\u2581end")]
_DEEPSEEK += [f"<\uff5ctool\u2581{name}\uff5c>" for name in ("call\u2581begin", "call\u2581end", "sep")]
_ARGUMENTS = ["<tool_calls>", "</tool_calls>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"]
_KIMI = [f"<|tool_{name}|>" for name in ("calls_section_begin", "calls_section_end", "call_begin", "call_end")]
_DSML = ["\uff5cDSML\uff5c"]
_LLAMA = ["<|python_tag|>"]
TOKENS: dict[str, list[str]] = {
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v31": _DEEPSEEK,
    "deepseek_v32": _DSML,
    "deepseek_v4": _DSML,
    "deepseek_v41": _DSML,
    "hy_v3": [*_ARGUMENTS, "<tool_sep>"],
    "hy_v4": _ARGUMENTS,
    "jamba": ["<tool_calls>", "</tool_calls>"],
    "kimi_k2": [*_KIMI, "<|tool_call_argument_begin|>"],
    "lfm2": ["<|tool_call_start|>", "<|tool_call_end|>"],
    "llama3_json": _LLAMA,
    "llama4_json": _LLAMA,
    "minicpm5": ["<function", "</function>"],
    "minimax_m2": ["<minimax:tool_call>", "</minimax:tool_call>"],
    "mistral": ["[TOOL_CALLS]", "[ARGS]"],
}
"""Marks that a parser wants as tokens, besides those that the demo model has."""
SPECIAL = {*_LLAMA, *TOKENS["mistral"]}
FOREIGN = ["<parameter=w>", "</parameter>", "</arg_value>", "<arg_value>"]
FOREIGN += ["</\uff5cDSML\uff5cparameter>", "</\uff5cDSML\uff5c parameter>", "</tool_call>"]
"""Marks that a walk tries wherever it is."""
MAX_TOKENS = 900


def tokenizer_of(parser: str) -> Any:
    """The demo model's tokenizer with the parser's marks."""
    from transformers import AutoTokenizer

    made = AutoTokenizer.from_pretrained(demo_model().path)
    for mark in TOKENS.get(parser, ()):
        made.add_tokens([mark], special_tokens=mark in SPECIAL)
    return made


class Walker:
    """Walks through structural tags with one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        import xgrammar

        self._xgrammar, self._tokenizer, self._end = xgrammar, tokenizer, tokenizer.eos_token_id
        size = len(tokenizer)
        info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=size, stop_token_ids=[self._end])
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1)
        self._texts = [tokenizer.decode([token]) for token in range(size)]
        self._added = tokenizer.get_added_vocab()
        self._weights = numpy.array([_weight(text) for text in self._texts])
        self._plain = numpy.array([not text.startswith("<") for text in self._texts])
        self._weights[self._end] = 300.0
        self._mask = xgrammar.allocate_token_bitmask(1, size)

    def _printed(self, format_: Json) -> str:
        return str(self._xgrammar.Grammar.from_structural_tag({"type": "structural_tag", "format": format_}))

    def walk(self, tag: str, seed: int) -> list[int] | None:
        """The tokens of an answer with its end token; None if it has not ended after MAX_TOKENS."""
        held_tag = json.dumps(held(json.loads(tag), self._printed))  # as the engine gets it
        matcher = self._xgrammar.GrammarMatcher(self._compiler.compile_structural_tag(held_tag))
        draw = random.Random(seed)
        starts, marks = _marks(tag)
        ids = {self._added[mark] for mark in marks if mark in self._added}
        tokens: list[int] = []
        while len(tokens) < MAX_TOKENS:
            if draw.random() < (0.15 if tokens else 0.8) and self._plant(matcher, draw.choice(starts + marks), tokens):
                continue
            token = self._next(matcher, draw, ids, tokens)
            assert matcher.accept_token(token)
            tokens.append(token)
            if token == self._end:
                return tokens
        return None

    def _plant(self, matcher: Any, text: str, tokens: list[int]) -> bool:
        """Whether the text may stand here; then it does."""
        planted = self._tokenizer.encode(text, add_special_tokens=False)
        fork = matcher.fork()
        if not all(fork.accept_token(token) for token in planted):
            return False
        tokens += [token for token in planted if matcher.accept_token(token)]
        return True

    def _next(self, matcher: Any, draw: random.Random, marks: set[int], tokens: list[int]) -> int:
        """A token that the grammar allows. A mark is written as its token, as models do."""
        try:
            forced = matcher.find_jump_forward_string()
        except UnicodeDecodeError:
            forced = ""
        if forced:
            return int(self._tokenizer.encode(forced, add_special_tokens=False)[0])
        matcher.fill_next_token_bitmask(self._mask)
        allowed = numpy.unpackbits(self._mask.numpy().view(numpy.uint8), bitorder="little")[: len(self._texts)]
        if len(tokens) > 40 and allowed[self._end] and draw.random() < 0.5:
            return int(self._end)
        found = [token for token in sorted(marks) if allowed[token]]
        after_mark = bool(tokens) and tokens[-1] in marks
        if found and draw.random() < (0.85 if len(tokens) < 200 or after_mark else 0.1):
            return draw.choice(found)
        weights = self._weights * allowed
        if found:
            weights = weights * self._plain
        sums = weights.cumsum()
        if not sums[-1]:
            return draw.choice(found)
        return int(numpy.searchsorted(sums, draw.random() * sums[-1], side="right"))


def _weight(text: str) -> float:
    if any(mark in text for mark in '"}]<[{'):
        return 4.0 if len(text) < 3 else 8.0
    return 1.0 if len(text) < 2 else 0.2


def _marks(tag: str) -> tuple[list[str], list[str]]:
    """How its tags begin, and all marks in it."""
    from workers.engine.vllm.grammars.calls import texts_of

    texts = sorted({text for node in nodes_in(json.loads(tag)) for text in texts_of(node)})
    starts = sorted({node["begin"] for node in nodes_in(json.loads(tag)) if isinstance(node.get("begin"), str)})
    return starts, sorted({mark for text in texts for mark in re.findall(r"</?[^<>\s]+>", text)}) + FOREIGN


def read(output_format: Any, tokenizer: Any, spec: OutputSpec, tokens: list[int]) -> tuple[Delta, ...]:
    """The deltas of an answer with these tokens."""
    names = frozenset(tool.name for tool in spec.tools)
    rules = AnswerRules(tools=CallableTools(functions=names, single=spec.single))
    prompt = tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False)
    parser = ChatParser(output_format, prompt, rules)
    return merge_deltas((parser.feed(tokens) + parser.flush()).deltas)


def calls_of(deltas: tuple[Delta, ...]) -> list[tuple[str, str]]:
    """The names of the calls, with their arguments."""
    calls: list[tuple[str, str]] = []
    for delta in deltas:
        if isinstance(delta, CallStart):
            calls.append((delta.name, ""))
        elif isinstance(delta, CallArguments):
            calls[-1] = (calls[-1][0], calls[-1][1] + delta.text)
    return calls


def text_of(deltas: tuple[Delta, ...]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, Text))
