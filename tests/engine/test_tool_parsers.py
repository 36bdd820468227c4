"""What each of vLLM's tool parsers holds for each choice of tools: a grammar's random answers are read by the parser.
No engine is started. docs/models.md has the table."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from app.protocol.events.deltas import CallArguments, CallStart
from config.families import FAMILIES
from config.process import CHECKOUT
from config.settings import ConfigError
from tests.engine.answers import Passing
from tests.engine.cases import demo_model
from tests.engine.walks import Json, Walker, calls_of, read, text_of, tokenizer_of
from workers.engine import make_engine
from workers.engine.base import InvalidSampling
from workers.engine.output_format import OutputSpec, Tool, ToolChoice

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]  # vLLM's own warnings, at import

SEEDS = {"one seed": [0], "more": [1, 2]}
UNUSABLE = {
    "cohere_command3": "needs a package that vLLM does not bring",
    "cohere_command4": "needs a package that vLLM does not bring",
    "hf": "needs a template in the tokenizer's files",
    "openai": "reads nothing: gpt-oss has the format harmony",
}


def closed(**properties: Json) -> Json:
    names = list(properties)
    return {"type": "object", "properties": properties, "required": names[:2], "additionalProperties": False}


WEATHER = closed(city={"type": "string"}, days={"type": "integer"})
SEARCH = closed(
    query={"type": "string"},
    deep={"type": "boolean"},
    tags={"type": "array", "items": {"type": "string"}, "maxItems": 2},
)
PERSON = closed(name={"type": "string"})
SCHEMA = {"type": "json_schema", "schema": PERSON, "name": "p"}
CUSTOM = closed(input={"type": "string"})


def both(*, strict: bool = False) -> tuple[Tool, ...]:
    return (
        Tool("get_weather", "Weather", WEATHER, strict, "tools[0]"),
        Tool("search", "Search", SEARCH, strict, "tools[1]"),
    )


def spec(choice: ToolChoice, tools: tuple[Tool, ...] | None = None, **more: Any) -> OutputSpec:
    return OutputSpec(tools=both() if tools is None else tools, choice=choice, **more)


AUTO, REQUIRED = ToolChoice.AUTO, ToolChoice.REQUIRED
ONE = both()[1:]
SPECS: dict[str, OutputSpec] = {
    "auto": spec(AUTO),
    "strict": spec(AUTO, both(strict=True)),
    "strict, single": spec(AUTO, both(strict=True), single=True),
    "required": spec(REQUIRED),
    "required, single": spec(REQUIRED, single=True),
    "named": spec(ToolChoice.NAMED, ONE, single=True),
    "allowed": spec(AUTO, ONE, closed=True),
    "allowed, required": spec(REQUIRED, ONE, closed=True),
    "schema": spec(AUTO, text_format=SCHEMA),
    "schema, strict": spec(AUTO, both(strict=True), text_format=SCHEMA),
    "none": OutputSpec(text_format=SCHEMA),
}


def parsers() -> list[str]:
    make_engine(demo_model())  # imports vLLM in the environment that it needs
    from vllm.tool_parsers import ToolParserManager

    return [name for name in ToolParserManager.list_registered() if name not in UNUSABLE]


@cache
def walker_of(parser: str) -> tuple[Any, Walker]:
    tokenizer = tokenizer_of(parser)
    return tokenizer, Walker(tokenizer)


@cache
def formats_of(parser: str, reasoning: str | None = None) -> Any:
    from workers.engine.vllm.output.output_format import OutputFormats

    tokenizer, _ = walker_of(parser)
    model = demo_model(tool_parser=parser, reasoning_parser=reasoning)
    return OutputFormats(model, tokenizer, frozenset({tokenizer.eos_token_id}), None, Passing())


def made(parser: str, asked: OutputSpec) -> Any:
    from workers.engine.vllm.grammars.grammar import Parts

    return formats_of(parser).make(asked, Parts(enforceable=frozenset(tool.name for tool in asked.tools)))


def outcome(parser: str, asked: OutputSpec) -> str:
    """What becomes of a request: `free`, `list`, `own`, or the field that is refused."""
    try:
        output_format = made(parser, asked)
    except InvalidSampling as error:
        return str(error).split(":")[0]
    if output_format.structured is None:
        return "free"
    return "list" if output_format.listed else "own"


def documented() -> dict[str, tuple[str, ...]]:
    """The rows of the page, by parser."""
    lines = (Path(CHECKOUT) / "docs" / "models.md").read_text(encoding="utf-8").split("\n")
    first = next(number for number, line in enumerate(lines) if line.startswith("| tool parser |"))
    rows: dict[str, tuple[str, ...]] = {}
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        names, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        rows |= {name.strip("`"): tuple(cells) for name in names.split(", ")}
    return rows


REFUSED = "400"
HELD = "held"


def row_of(parser: str) -> tuple[str, ...]:
    """What holds: a call that is required, strict tools with `auto`, a grammar of a custom tool with `auto`, a schema
    beside tools."""
    custom = Tool("calc", None, CUSTOM, True, "tools[0]", grammar=("regex", "a"))
    asked = (SPECS["required"], SPECS["strict"], spec(AUTO, (custom,)), SPECS["schema"])
    refusals = ("tool_choice", "tools[0].strict", "tools[0].format", "text.format")
    forms = {"own": "own form", "list": "JSON list", "tool_choice": REFUSED}
    found = [outcome_with_inputs(parser, each) for each in asked]
    assert all(got in ("own", "list", field) for got, field in zip(found, refusals, strict=True))
    return (forms[found[0]], *(REFUSED if got.startswith("t") else HELD for got in found[1:]))


def outcome_with_inputs(parser: str, asked: OutputSpec) -> str:
    from workers.engine.vllm.grammars.grammar import Parts

    names = frozenset(tool.name for tool in asked.tools if tool.grammar is None)
    inputs = {tool.name: 'root ::= "a"' for tool in asked.tools if tool.grammar is not None}
    try:
        output_format = formats_of(parser).make(asked, Parts(inputs, names))
    except InvalidSampling as error:
        return str(error).split(":")[0]
    return "list" if output_format.listed else "own"


def test_the_page_says_for_each_parser_what_holds() -> None:
    rows = documented()
    others = rows.pop("any other")
    assert {name: row_of(name) for name in parsers()} == {name: rows.get(name, others) for name in parsers()}
    assert rows.keys() <= set(parsers())


@pytest.mark.parametrize("seeds", ["one seed", pytest.param("more", marks=pytest.mark.long)])
@pytest.mark.parametrize("parser", sorted({row.tool_parser for row in FAMILIES if row.tool_parser} - UNUSABLE.keys()))
def test_what_a_grammar_lets_pass_is_read_as_what_was_asked(parser: str, seeds: str) -> None:
    tokenizer, walker = walker_of(parser)
    loose = documented().get(parser, ("", ""))[1] == REFUSED and outcome(parser, SPECS["required"]) == "own"
    ended = 0
    for label, asked in SPECS.items():
        try:
            output_format = made(parser, asked)
        except InvalidSampling:
            continue
        if output_format.structured is None:
            continue
        for seed in SEEDS[seeds]:
            if (tokens := walker.walk(output_format.structured.tag, seed)) is None:
                continue
            ended += 1
            deltas = read(output_format, tokenizer, asked, tokens)
            about = f"{parser}, {label}, {seed}: {tokenizer.decode(tokens)!r}"
            held = not loose and (asked.forced or asked.closed or (asked.tools[:1] and asked.tools[0].strict))
            check(asked, calls_of(deltas), text_of(deltas), about, arguments=bool(held))
    assert ended > 4 * len(SEEDS[seeds])


def check(asked: OutputSpec, calls: list[tuple[str, str]], text: str, about: str, *, arguments: bool) -> None:
    parameters = {tool.name: tool.parameters for tool in asked.tools}
    assert calls or not asked.forced, about
    assert len(calls) <= 1 or not asked.single, about
    for name, written in calls:
        assert name in parameters, about
        if arguments:
            assert jsonschema.Draft202012Validator(parameters[name]).is_valid(json.loads(written)), about
    if asked.text_format["type"] != "text" and not calls:
        assert jsonschema.Draft202012Validator(PERSON).is_valid(json.loads(text)), about


@pytest.mark.parametrize("parser", UNUSABLE)
def test_a_parser_that_reads_nothing_is_refused_when_the_model_is_loaded(parser: str) -> None:
    with pytest.raises(ConfigError, match=parser):
        formats_of(parser)


CODER = "<tool_call>\n<function=get_weather>\n{}</function>\n</tool_call>"
GLM = "<tool_call>get_weather{}</tool_call>"
MODEL = {"type": "object", "properties": {"n": {"type": "integer"}}}
NESTED = {
    "type": "object",
    "$defs": {"M": MODEL, "L/1": {"type": "array", "items": {"$ref": "#/$defs/M"}}, "R": {"$ref": "#/$defs/R"}},
    "properties": {
        "ref": {"$ref": "#/$defs/M"},
        "all": {"allOf": [{"$ref": "#/$defs/M"}], "default": None},
        "optional": {"anyOf": [{"$ref": "#/$defs/M"}, {"type": "null"}]},
        "escaped": {"$ref": "#/$defs/L~11"},
        "const": {"const": 5},
        "endless": {"$ref": "#/$defs/R"},
    },
}
VALUES = {
    "ref": {"n": 1},
    "all": {"n": 2},
    "optional": {"n": 3},
    "escaped": [{"n": 4}],
    "const": 5,
    "endless": "x",
}


@pytest.mark.parametrize("parser", ["qwen3_coder", "glm45", "poolside_v1"])
@pytest.mark.parametrize("rooted", [False, True])
def test_arguments_get_the_types_that_references_and_constants_give(parser: str, *, rooted: bool) -> None:
    parameters = {"$ref": "#/$defs/Root", "$defs": {**NESTED["$defs"], "Root": NESTED}} if rooted else NESTED
    tools = (Tool("get_weather", None, parameters, False, "tools[0]"),)
    written = {key: value if isinstance(value, str) else json.dumps(value) for key, value in VALUES.items()}
    if parser == "qwen3_coder":
        text = CODER.format("".join(f"<parameter={key}>\n{it}\n</parameter>\n" for key, it in written.items()))
    else:
        pairs = (f"<arg_key>{key}</arg_key><arg_value>{it}</arg_value>" for key, it in written.items())
        text = GLM.format("".join(pairs))
    tokenizer, _ = walker_of(parser)
    tokens = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
    deltas = read(made(parser, spec(AUTO, tools)), tokenizer, spec(AUTO, tools), tokens)
    assert [(name, json.loads(arguments)) for name, arguments in calls_of(deltas)] == [("get_weather", VALUES)]


ONE_PAIR = "<arg_key>city</arg_key><arg_value>Paris</arg_value>"
WRITTEN = {
    "dots": '<dots_function_call><invoke name="get_weather"><parameter name="city">Paris</parameter></invoke>'
    "</dots_function_call>",
    "hy_v3": f"<tool_calls><tool_call>get_weather<tool_sep>{ONE_PAIR}</tool_call></tool_calls>",
    "minicpm5": '<function name="get_weather"><param name="city">Paris</param></function>',
}


@pytest.mark.parametrize("parser", WRITTEN)
def test_a_parser_that_looks_for_the_tool_in_the_request_reads_a_call(parser: str) -> None:
    tokenizer, _ = walker_of(parser)
    tools = (Tool("get_weather", None, closed(city={"type": "string"}), False, "tools[0]"),)
    tokens = [*tokenizer.encode(WRITTEN[parser], add_special_tokens=False), tokenizer.eos_token_id]
    deltas = read(made(parser, spec(AUTO, tools)), tokenizer, spec(AUTO, tools), tokens)
    assert [(name, json.loads(arguments)) for name, arguments in calls_of(deltas)] == [
        ("get_weather", {"city": "Paris"})
    ]
    assert text_of(deltas) == ""


def test_a_schema_that_refers_to_itself_in_many_ways_is_read_within_its_bound() -> None:
    from workers.engine.vllm.output import parameters

    knot = {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in "abcd"], "properties": {"x": {"$ref": "#/$defs/a"}}}
    tangled = {"$defs": dict.fromkeys("abcd", knot), "properties": dict.fromkeys(map(str, range(9)), knot)}
    assert len(json.dumps(parameters.readable(tangled))) < 200 * parameters.MAX_SCHEMAS


def test_a_call_in_thoughts_is_barred_where_the_grammar_has_none() -> None:
    tokenizer, _ = walker_of("hermes")
    [call] = tokenizer.encode("<tool_call>", add_special_tokens=False)
    from workers.engine.vllm.grammars.grammar import Parts

    formats = formats_of("hermes", "qwen3")
    assert formats.make(SPECS["none"], Parts()).structured.barred == {call}
    assert formats.make(SPECS["schema"], Parts()).structured.barred == frozenset()
    assert formats.make(SPECS["required"], Parts()).structured.barred == frozenset()


def test_a_line_feed_in_the_json_of_a_call_of_deepseek_is_read() -> None:
    tokenizer, _ = walker_of("deepseek_v31")
    begin, end, call, ended, sep = (
        f"<\uff5ctool\u2581{name}\uff5c>"
        for name in ("calls\u2581begin", "calls\u2581end", "call\u2581begin", "call\u2581end", "sep")
    )
    written = '{\n  "city": "Paris"\n}'
    text = f"{begin}{call}get_weather{sep}{written}{ended}{end}"
    tokens = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
    deltas = read(made("deepseek_v31", SPECS["auto"]), tokenizer, SPECS["auto"], tokens)
    assert deltas == (CallStart("get_weather"), CallArguments(written))


NO_ARGUMENTS = {
    "functiongemma": "<start_function_call>call:get_time{{}}<end_function_call>",
    "hermes": '<tool_call>\n{{"name": "get_time", "arguments": {{}}}}\n</tool_call>',
    "llama3_json": '{{"name": "get_time", "parameters": {{}}}}',
    "qwen3_coder": "<tool_call>\n<function=get_time>\n</function>\n</tool_call>",
}
"""How a call without arguments is written."""


@pytest.mark.parametrize("parser", NO_ARGUMENTS)
def test_a_call_without_arguments_has_an_empty_object(parser: str) -> None:
    tokenizer, _ = walker_of(parser)
    asked = spec(AUTO, (Tool("get_time", None, closed(), False, "tools[0]"),))
    tokens = tokenizer.encode(NO_ARGUMENTS[parser].format(), add_special_tokens=False)
    assert calls_of(read(made(parser, asked), tokenizer, asked, [*tokens, tokenizer.eos_token_id])) == [
        ("get_time", "{}")
    ]
