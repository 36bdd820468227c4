"""The prompt's end and the answer's first token decide whether it reasons: no switch, no word of anybody else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from app.protocol.events.deltas import CallArguments, CallStart, Delta, Reasoning, Text
from config.settings import ConfigError
from tests.engine.answers import ADA, ADA_JSON, HERMES, PARIS, PERSON, WEATHER, Passing, tokens_of
from tests.engine.cases import GREEDY, Case, demo_model, new_id
from workers.engine import make_engine, resolved
from workers.engine.base import EngineRequest
from workers.engine.output_format import OutputFormat, OutputSpec, Tool, ToolChoice
from workers.formats.answer import AnswerRules, merge_deltas
from workers.formats.calls.router import CallableTools
from workers.formats.chat.parser import ChatParser

pytestmark = pytest.mark.vllm
package = pytest.mark.asyncio(loop_scope="package")

TURN = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
FREE = TURN.format("Hi")
BEHIND = {
    "open": FREE + "<think>\n",
    "open, and begun": FREE + "<think>\nOkay, so",
    "closed": FREE + "<think>\n\n</think>\n\n",
    "free": FREE,
    "free, a caller opens": TURN.format("What is <think>"),
    "free, a caller closes": TURN.format("What is </think>"),
    "free, behind an earlier answer": "<|im_start|>assistant\n<think>\nOh.\n</think>\n\nHi.<|im_end|>\n" + FREE,
}
THOUGHT = (Reasoning("I see."), Text("Hello."))
SAID = [
    ("open", "I see.\n</think>\n\nHello.", THOUGHT),
    ("open", "I see.\n</think>\n\n" + HERMES, (Reasoning("I see."), CallStart("get_weather"), PARIS)),
    ("open, and begun", "I see.\n</think>\n\nHello.", THOUGHT),
    ("closed", "Hello.", (Text("Hello."),)),
    ("closed", HERMES, (CallStart("get_weather"), PARIS)),
    *((start, "<think>\nI see.\n</think>\n\nHello.", THOUGHT) for start in BEHIND if start.startswith("free")),
    *((start, " \n<think>I see.</think>Hello.", THOUGHT) for start in BEHIND if start.startswith("free")),
    *((start, "Hello.", (Text("Hello."),)) for start in BEHIND if start.startswith("free")),
    ("free", "Hello <think>.", (Text("Hello <think>."),)),
    ("free", "<thin", (Text("<thin"),)),
    ("free", "</thin", (Text("</thin"),)),
    ("free", "</think>\n\nHello.", (Text("Hello."),)),
    ("free", "</think>" + HERMES, (CallStart("get_weather"), PARIS)),
    ("free", HERMES, (CallStart("get_weather"), PARIS)),
]
SWITCHES: list[dict[str, Any]] = [{}, {"enable_thinking": True}, {"enable_thinking": False, "thinking": False}]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    make_engine(demo_model())  # imports vLLM in the environment that it needs
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(demo_model().path)


@cache
def format_of(tokenizer: Any, switches: int, reasoning: str | None, guessed: frozenset[str] | None) -> OutputFormat:
    from workers.engine.vllm.grammars.grammar import Parts
    from workers.engine.vllm.output.output_format import OutputFormats

    changes = {} if guessed is None else {"guessed": guessed}
    model = demo_model(tool_parser="hermes", reasoning_parser=reasoning, **changes)
    formats = OutputFormats(model, tokenizer, frozenset({tokenizer.eos_token_id}), None, Passing())
    function = Tool("get_weather", None, WEATHER["parameters"], False, "tools[0]")
    spec = OutputSpec(tools=(function,), choice=ToolChoice.AUTO, template_args=SWITCHES[switches])
    return formats.make(spec, Parts())


def parser_of(
    tokenizer: Any, prompt: str, reasoning: str | None, guessed: frozenset[str] | None = None, switches: int = 0
) -> ChatParser:
    made = format_of(tokenizer, switches, reasoning, guessed)
    rules = AnswerRules(tools=CallableTools(functions=frozenset({"get_weather"})))
    return ChatParser(made, tokenizer.encode(prompt, add_special_tokens=False), rules)


def read(parser: ChatParser, pieces: Sequence[Sequence[int]]) -> tuple[Delta, ...]:
    deltas = [delta for piece in pieces for delta in parser.feed(piece).deltas]
    return merge_deltas((*deltas, *parser.flush().deltas))


@pytest.mark.parametrize("reasoning", ["qwen3", "deepseek_r1", "deepseek_v3", "step3p5"])
@pytest.mark.parametrize(("start", "text", "said"), SAID)
def test_the_prompt_and_the_first_token_decide_whatever_the_switch(
    tokenizer: Any, start: str, text: str, said: tuple[Delta, ...], reasoning: str
) -> None:
    tokens = tokens_of(tokenizer, text)
    for switches in range(len(SWITCHES)):
        for pieces in ([tokens], [[token] for token in tokens]):
            parser = parser_of(tokenizer, BEHIND[start], reasoning, switches=switches)
            assert trimmed(read(parser, pieces)) == said


def trimmed(deltas: tuple[Delta, ...]) -> tuple[Delta, ...]:
    """Parsers of vLLM's differ in the blanks around a call."""
    return tuple(
        delta if isinstance(delta, CallStart | CallArguments) else replace(delta, text=delta.text.strip())
        for delta in deltas
        if isinstance(delta, CallStart | CallArguments) or delta.text.strip()
    )


@pytest.mark.parametrize(("start", "text", "said"), SAID)
def test_a_worker_that_takes_over_in_the_middle_of_thoughts_decides_alike(
    tokenizer: Any, start: str, text: str, said: tuple[Delta, ...]
) -> None:
    tokens = tokens_of(tokenizer, text)
    for cut in range(1, len(tokens)):
        first, second = (parser_of(tokenizer, BEHIND[start], "qwen3") for _ in range(2))
        committed = first.feed(tokens[:cut])
        second.feed(committed.tokens)
        rest = second.feed(tokens[len(committed.tokens) :]) + second.flush()
        assert trimmed(merge_deltas(committed.deltas + rest.deltas)) == said


def test_a_guessed_parser_that_does_not_fit_the_tokenizer_is_left_out_and_the_line_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guessed = demo_model(tool_parser="llama4_json", reasoning_parser="olmo3")
    monkeypatch.setattr("workers.engine.model_files.resolved", lambda model: (model, "a line"))
    fitting, line = resolved(guessed)
    assert (fitting.tool_parser, fitting.reasoning_parser) == (None, None)
    assert line.startswith("a line; reasoning_parser none after all: model 'longhaul-demo': olmo3: ")
    assert "tool_parser none after all: model 'longhaul-demo': llama4_json: " in line


def test_a_parser_of_the_models_file_that_does_not_fit_is_an_error(tokenizer: Any) -> None:
    guessed = frozenset({"tool_parser"})
    assert resolved(demo_model(reasoning_parser="olmo3", guessed=guessed))[0].reasoning_parser == "olmo3"
    with pytest.raises(ConfigError, match="olmo3"):
        parser_of(tokenizer, FREE, "olmo3", guessed)


@pytest.mark.parametrize("behind", ["", "<think>\n", "<think>\n\n</think>\n\n"])
@package
async def test_a_schema_is_held_wherever_the_prompt_starts_the_answer_and_also_after_a_cut(
    vllm_case: Case, behind: str
) -> None:
    made = await vllm_case.engine.output_format(
        OutputSpec(text_format=PERSON, template_args={"enable_thinking": False})
    )
    prompt = vllm_case.encode(TURN.format(ADA) + behind)
    sampling = replace(GREEDY, structured=made.structured, max_tokens=100)
    tokens = await vllm_case.tokens(prompt, sampling)
    said = merge_deltas((made_parser := ChatParser(made, prompt, AnswerRules())).feed(tokens).deltas)
    assert (said + made_parser.flush().deltas)[-1] == ADA_JSON
    assert isinstance(said[0], Text if "</think>" in behind else Reasoning)
    for cut in (1, 3, len(tokens) // 2):
        stream = vllm_case.engine.generate(EngineRequest(new_id(), prompt, sampling, committed=tokens[:cut]))
        assert tokens[:cut] + [token async for delta in stream for token in delta.token_ids] == tokens
