"""Output formats by vLLM's parsers, and what a request may ask of its output, with the demo model's tokenizer."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from app.protocol.events.deltas import CallArguments, CallStart, CustomInput, CustomStart, Delta, Reasoning, Text
from config.settings import ConfigError
from tests.engine.answers import ADA, ADA_JSON, HERMES, PARIS, PERSON, WEATHER, Passing, json_schema, tokens_of
from tests.engine.cases import Case, demo_model
from tests.support.requests import message, stored_request
from workers.engine import make_engine
from workers.engine.base import InvalidSampling
from workers.engine.output_format import OutputFormat, OutputSpec, Tool, ToolChoice
from workers.formats import builder
from workers.formats.answer import AnswerRules, merge_deltas
from workers.formats.calls.router import CallableTools
from workers.formats.chat.parser import ChatParser
from workers.formats.turn import Parsed, Turn

pytestmark = pytest.mark.vllm
package = pytest.mark.asyncio(loop_scope="package")

Json = dict[str, Any]

SEARCH: Json = {
    "type": "function",
    "name": "search",
    "description": "Search the web.",
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    "strict": None,
}

THINK = "<think>\nI see: 你好.\n</think>\n\n"
LLAMA = '<|python_tag|>{"name": "get_weather", "parameters": {"city":"Paris"}}'
MISTRAL = 'Hi.[TOOL_CALLS]get_weather[ARGS]{"city":"Paris"}'
PYTHONIC = '[get_weather(city="Paris")]'
CODER = "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>"
SPACED = CallArguments('{"city": "Paris"}')
THOUGHT_CALL = (Reasoning("I see: 你好."), CallStart("get_weather"))

FORMATS: list[tuple[str | None, str | None, str, tuple[Delta, ...]]] = [
    ("qwen3", "hermes", THINK + "It is so.", (Reasoning("I see: 你好."), Text("It is so."))),
    ("qwen3", "hermes", THINK + HERMES, (*THOUGHT_CALL, PARIS)),
    ("qwen3", "hermes", "<think>\n\n</think>\n\nLook:\n" + HERMES, (Text("Look:\n"), CallStart("get_weather"), PARIS)),
    ("qwen3", "hermes", THINK + "a < b <tool", (Reasoning("I see: 你好."), Text("a < b <tool"))),
    ("qwen3", None, THINK + HERMES, (Reasoning("I see: 你好."), Text(HERMES))),
    ("deepseek_r1", "hermes", THINK + "é👋 <b>", (Reasoning("I see: 你好."), Text("é👋 <b>"))),
    ("deepseek_r1", "hermes", "I see.\n\n" + HERMES, (Text("I see.\n\n"), CallStart("get_weather"), PARIS)),
    (None, "hermes", HERMES + "\n" + HERMES, (CallStart("get_weather"), PARIS, CallStart("get_weather"), PARIS)),
    (None, "llama3_json", LLAMA, (CallStart("get_weather"), SPACED)),
    (None, "mistral", MISTRAL, (Text("Hi."), CallStart("get_weather"), PARIS)),
    (
        None,
        "mistral",
        MISTRAL.replace("[ARGS]", "[CALL_ID]call12345[ARGS]"),
        (Text("Hi."), CallStart("get_weather"), PARIS),
    ),
    (None, "pythonic", PYTHONIC, (CallStart("get_weather"), SPACED)),
    ("qwen3", "qwen3_coder", THINK + CODER, (*THOUGHT_CALL, SPACED)),
    (None, None, "plain <think> text", (Text("plain <think> text"),)),
]
by_format = pytest.mark.parametrize(("reasoning", "tools", "text", "expected"), FORMATS)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """The demo model's tokenizer with the marks of other formats."""
    make_engine(demo_model())  # imports vLLM in the environment that it needs
    from transformers import AutoTokenizer

    made = AutoTokenizer.from_pretrained(demo_model().path)
    made.add_tokens(["<|python_tag|>", "[TOOL_CALLS]", "[ARGS]"], special_tokens=True)
    return made


@cache
def format_of(tokenizer: Any, reasoning: str | None, tools: str | None, called: str) -> OutputFormat:
    """Answers share it: `test_equal_specs_share_an_output_format_but_no_state_of_a_response`."""
    from workers.engine.vllm.grammars.grammar import Parts
    from workers.engine.vllm.output.output_format import OutputFormats

    model = demo_model(reasoning_parser=reasoning, tool_parser=tools)
    formats = OutputFormats(model, tokenizer, frozenset({tokenizer.eos_token_id}), None, Passing())
    function = Tool(called, None, WEATHER["parameters"], False, "tools[0]")
    spec = OutputSpec(tools=(function,) if tools else (), choice=ToolChoice.AUTO if tools else ToolChoice.NONE)
    return formats.make(spec, Parts())


def parser_of(tokenizer: Any, reasoning: str | None, tools: str | None, called: str = "get_weather") -> ChatParser:
    rules = AnswerRules(tools=CallableTools(functions=frozenset({called})))
    prompt = tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False)
    return ChatParser(format_of(tokenizer, reasoning, tools, called), prompt, rules)


@by_format
def test_a_parser_is_chosen_by_name(
    tokenizer: Any, reasoning: str | None, tools: str | None, text: str, expected: tuple[Delta, ...]
) -> None:
    parser = parser_of(tokenizer, reasoning, tools)
    assert merge_deltas((parser.feed(tokens_of(tokenizer, text)) + parser.flush()).deltas) == expected


@by_format
def test_a_cut_answer_is_a_beginning_of_the_whole_one_and_another_worker_continues_it(
    tokenizer: Any, reasoning: str | None, tools: str | None, text: str, expected: tuple[Delta, ...]
) -> None:
    tokens = tokens_of(tokenizer, text)
    for cut in range(1, len(tokens)):
        parser = parser_of(tokenizer, reasoning, tools)
        said = merge_deltas((parser.feed(tokens[:cut]) + parser.flush(cut=True)).deltas)
        assert [type(delta) for delta in said] == [type(delta) for delta in expected[: len(said)]]
        assert said[:-1] == expected[: max(len(said) - 1, 0)]
        if said and isinstance(said[-1], Text | Reasoning):
            whole = expected[len(said) - 1]
            assert isinstance(whole, Text | Reasoning)
            assert whole.text.startswith(said[-1].text.rstrip("\ufffd"))
        first, second = (parser_of(tokenizer, reasoning, tools) for _ in range(2))
        committed = first.feed(tokens[:cut])
        second.feed(committed.tokens)
        rest = second.feed(tokens[len(committed.tokens) :]) + second.flush()
        assert merge_deltas(committed.deltas + rest.deltas) == expected


@pytest.mark.parametrize(
    ("reasoning", "tools", "named"),
    [("no_such", None, "no_such"), (None, "no_such", "no_such"), ("olmo3", None, "olmo3")],
)
def test_a_parser_that_cannot_be_used_is_named(
    tokenizer: Any, reasoning: str | None, tools: str | None, named: str
) -> None:
    with pytest.raises(ConfigError, match=f"^model 'longhaul-demo': .*{named}"):
        parser_of(tokenizer, reasoning, tools)


async def test_equal_specs_share_an_output_format_but_no_state_of_a_response(tokenizer: Any) -> None:
    from workers.engine.vllm.output.output_format import OutputFormats

    model = demo_model(reasoning_parser="qwen3", tool_parser="hermes")
    formats = OutputFormats(model, tokenizer, frozenset({tokenizer.eos_token_id}), None, Passing())
    function = Tool("get_weather", None, WEATHER["parameters"], False, "tools[0]")
    spec = OutputSpec(tools=(function,), choice=ToolChoice.AUTO)
    output_format = await formats.output_format(spec)
    assert await formats.output_format(replace(spec, tools=(replace(function),))) is output_format
    for other in (
        replace(spec, single=True),
        replace(spec, template_args={"enable_thinking": False}),
        replace(spec, tools=(replace(function, strict=True),)),
        replace(spec, tools=(replace(function, parameters={**WEATHER["parameters"], "title": "It"}),)),
    ):
        assert await formats.output_format(other) is not output_format
    rules = AnswerRules(tools=CallableTools(functions=frozenset({"get_weather"})))
    prompt = tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False)
    parsers = [ChatParser(output_format, prompt, rules) for _ in range(2)]
    said = [Parsed(), Parsed()]
    for token in tokens_of(tokenizer, THINK + HERMES):
        for place, parser in enumerate(parsers):
            said[place] += parser.feed([token])
    for place, parser in enumerate(parsers):
        assert merge_deltas((said[place] + parser.flush()).deltas) == (*THOUGHT_CALL, PARIS)


# -- answers of the engine ----------------------------------------------------------------------------------


async def build_turn(case: Case, asked: str, **fields: Any) -> Turn:
    request = {**stored_request(asked), "model": "longhaul-demo", **fields}
    items = request["input"]
    return await builder.build_turn(
        await builder.plan_turn(case.engine, demo_model(), request, items, (), 0, {}), items
    )


async def answer(case: Case, asked: str, **fields: Any) -> tuple[Delta, ...]:
    turn = await build_turn(case, asked, **{"max_output_tokens": 120, **fields})
    parser, said = turn.parser(), Parsed()
    async for delta in case.stream(turn.prompt, turn.sampling):
        said += parser.feed(delta.token_ids, delta.logprobs)
        if parser.ended:
            break
    said += parser.flush()
    return merge_deltas(said.deltas)


PARIS_WEATHER = "What is the weather in Paris?"
CALLED = (CallStart("get_weather"), PARIS)
THINKING = {"effort": "low", "summary": None}
THOUGHT = Reasoning("I have to ask get_weather about Paris.")


def allowed(mode: str, name: str) -> Json:
    return {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": name}]}


ANSWERS: list[tuple[str, str, Json, tuple[Delta, ...]]] = [
    ("text", "Hello!", {}, (Text("Hello! How can I help you today?"),)),
    (
        "thinking",
        "Hi",
        {"reasoning": THINKING},
        (Reasoning("A short greeting gets a short answer."), Text("Hi there!")),
    ),
    ("call", PARIS_WEATHER, {"tools": [WEATHER]}, CALLED),
    ("thinking call", PARIS_WEATHER, {"tools": [WEATHER], "reasoning": THINKING}, (THOUGHT, *CALLED)),
    ("required", PARIS_WEATHER, {"tools": [WEATHER, SEARCH], "tool_choice": "required"}, CALLED),
    ("strict", PARIS_WEATHER, {"tools": [{**WEATHER, "strict": True}]}, CALLED),
    (
        "thinking required",
        PARIS_WEATHER,
        {"tools": [WEATHER], "tool_choice": "required", "reasoning": THINKING},
        (THOUGHT, *CALLED),
    ),
    (
        "two calls",
        "Compare the weather in Paris and Rome.",
        {"tools": [WEATHER]},
        (*CALLED, CallStart("get_weather"), CallArguments('{"city":"Rome"}')),
    ),
    (
        "one of two calls",
        "Compare the weather in Paris and Rome.",
        {"tools": [WEATHER], "parallel_tool_calls": False},
        CALLED,
    ),
    ("schema", ADA, {"text": {"format": PERSON}}, (ADA_JSON,)),
    (
        "thinking schema",
        ADA,
        {"text": {"format": PERSON}, "reasoning": THINKING},
        (Reasoning("Name, year and city, as JSON."), ADA_JSON),
    ),
    ("schema or call: schema", ADA, {"text": {"format": PERSON}, "tools": [WEATHER]}, (ADA_JSON,)),
    ("schema or call: call", PARIS_WEATHER, {"text": {"format": PERSON}, "tools": [WEATHER]}, CALLED),
    (
        "json object",
        "Give me a JSON object that describes Paris.",
        {"text": {"format": {"type": "json_object"}}},
        (Text('{"name":"Paris","country":"France","population":2102650,"capital":true}'),),
    ),
    ("stop", "List three colours.", {"extra": {"stop": ["n\n", "blu"]}}, (Text("1. red\n2. gree"),)),
]


@pytest.mark.parametrize(("asked", "fields", "said"), [row[1:] for row in ANSWERS], ids=[row[0] for row in ANSWERS])
@package
async def test_the_model_s_answer_becomes_these_deltas(
    vllm_case: Case, asked: str, fields: Json, said: tuple[Delta, ...]
) -> None:
    assert await answer(vllm_case, asked, **fields) == said


@pytest.mark.parametrize("name", ["get_weather", "search", "web.find-all"])
@package
async def test_a_named_function_is_called_whatever_the_question(vllm_case: Case, name: str) -> None:
    choice, tools = {"type": "function", "name": name}, [WEATHER, SEARCH, {**SEARCH, "name": "web.find-all"}]
    said = await answer(vllm_case, "Hello!", tools=tools, tool_choice=choice, max_output_tokens=200)
    assert said[0] == CallStart(name)
    assert sum(isinstance(delta, CallStart) for delta in said) == 1


@pytest.mark.parametrize("mode", ["auto", "required"])
@package
async def test_a_tool_that_is_not_allowed_is_never_called(vllm_case: Case, mode: str) -> None:
    said = await answer(vllm_case, PARIS_WEATHER, tools=[WEATHER, SEARCH], tool_choice=allowed(mode, "search"))
    assert CallStart("get_weather") not in said
    assert not any(isinstance(delta, Text) and "tool_call" in delta.text for delta in said)


@pytest.mark.parametrize(
    ("syntax", "definition", "pattern"),
    [
        ("regex", r"\d{1,3} [+] \d{1,3}", r"\d{1,3} \+ \d{1,3}"),
        ("lark", 'start: "a" "\\n" /[b-d"]{1,3}/\n', 'a\n[b-d"]{1,3}'),
    ],
)
@package
async def test_a_custom_tool_s_input_fits_its_grammar(
    vllm_case: Case, syntax: str, definition: str, pattern: str
) -> None:
    tool = {**custom("calc", syntax, definition), "description": "Reckons."}
    choice = {"type": "custom", "name": "calc"}
    start, given = await answer(vllm_case, "Hello!", tools=[tool], tool_choice=choice, max_output_tokens=200)
    assert start == CustomStart("calc")
    assert isinstance(given, CustomInput)
    assert re.fullmatch(pattern, given.text)


def custom(name: str, syntax: str, definition: str) -> Json:
    made = {"type": "grammar", "syntax": syntax, "definition": definition}
    return {"type": "custom", "name": name, "description": None, "format": made}


NO_SUCH = {"type": "object", "properties": {"a": {"$ref": "#/no"}}}
REFUSED: list[tuple[str, Json]] = [
    ("text.format.schema", {"text": {"format": json_schema(a={"type": "array", "uniqueItems": True})}}),
    ("text.format.schema", {"text": {"format": json_schema(a={"type": "nonsense"})}}),
    ("tools[0].parameters", {"tools": [{**WEATHER, "strict": True, "parameters": NO_SUCH}]}),
    ("tools[1].format.definition", {"tools": [WEATHER, custom("c", "lark", "start: (")]}),
    ("tools[0].format.definition", {"tools": [custom("c", "regex", "(a")]}),
    ("chat_template_kwargs.chat_template", {"extra": {"chat_template_kwargs": {"chat_template": "x"}}}),
]


@package
async def test_schemas_and_grammars_that_cannot_be_enforced_are_refused_before_the_run(vllm_case: Case) -> None:
    for field, fields in REFUSED:
        with pytest.raises(InvalidSampling) as caught:
            await build_turn(vllm_case, "Hello!", **fields)
        assert str(caught.value).startswith(field) and "\n" not in str(caught.value)


@package
async def test_a_model_without_a_tool_parser_calls_no_tools(vllm_case: Case) -> None:
    from workers.engine.vllm.output.output_format import OutputFormats

    llm = vllm_case.engine._llm()  # type: ignore[attr-defined]
    model = demo_model(tool_parser=None)
    formats = OutputFormats(model, llm.renderer.get_tokenizer(), frozenset(), llm.model_config, Passing())
    with pytest.raises(InvalidSampling, match=r"^tools: this model calls no tools"):
        await formats.output_format(OutputSpec(choice=ToolChoice.AUTO))


@package
async def test_vllm_s_own_parameters_are_accepted(vllm_case: Case) -> None:
    one = {"logit_bias": {"40": -100.0}, "bad_words": ["red"], "cache_salt": "x", "top_k": 5}
    for extra in (one, {"stop_token_ids": [40]}, {"allowed_token_ids": [40, 41]}):
        assert await answer(vllm_case, "List three colours.", extra=extra, max_output_tokens=5)


@package
async def test_a_model_without_vision_refuses_images(vllm_case: Case) -> None:
    from workers.engine.base import EngineError

    image = {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "auto"}
    with pytest.raises(EngineError, match="takes no images"):
        await build_turn(vllm_case, "", input=[{**message(""), "content": [image]}])


@package
async def test_end_tokens_are_the_model_s_and_the_request_s(vllm_case: Case) -> None:
    output_format = await vllm_case.engine.output_format(OutputSpec(stop_tokens=(7,)))
    assert vllm_case.special[-1] in output_format.end_tokens
    assert 7 in output_format.end_tokens
    assert not output_format.end_tokens & output_format.markers
    assert replace(OutputSpec(), special_tokens=True).special_tokens
