"""Harmony models (gpt-oss): one turn, from the items of its context to what the model says."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from app.protocol.errors import InvalidRequest
from app.protocol.requests.capabilities import Capabilities, check_capabilities
from config.models import ServedModel
from workers.engine.base import Engine, InvalidSampling, PromptTooLong, Sampling
from workers.engine.output_format import OutputSpec, Structured, Tool
from workers.formats.calls.hosted import HostedKind, HostedTools, NameStyle, hosted_tools_of
from workers.formats.calls.tools import Tools, output_spec_of, tools_of
from workers.formats.chat.parser import AnswerRules
from workers.formats.citations import sources_of
from workers.formats.harmony import encoding as encoding
from workers.formats.harmony.history import earlier_messages, results_of, shown
from workers.formats.harmony.messages import FUNCTIONS, Item
from workers.formats.harmony.parser import HarmonyParser
from workers.formats.harmony.prompt import EFFORTS, AnswerFormat, Conversation, Namespace, Preface, continued
from workers.formats.sampling import remaining_sampling, sampling_of
from workers.formats.truncation import fit_prompt, reserved_for_answer
from workers.formats.turn import PastTurn, Turn, TurnContext

_ABILITIES = Capabilities(images=False, tools=True, reasoning=True, verbosity=False, harmony=True)


async def build_harmony_turn(
    engine: Engine,
    model: ServedModel,
    request: Mapping[str, Any],
    items: Sequence[Item],
    past: Sequence[PastTurn],
    seen: TurnContext,
) -> Turn:
    """The turn that `request` asks for behind `items` (what it continues, and its own input) and its `past` turns.

    Raises InvalidSampling (the message names the field), PromptTooLong or EngineError.
    """
    _check(request)
    spent = sum(len(turn.tokens) for turn in past)
    hosted = _hosted(request, seen)
    tools = tools_of(request, hosted, later=bool(past))
    spec = _output_spec(request, tools)
    structured = await engine.harmony_grammar(spec)
    offered = tools.allowed if tools.closed and structured is None else tools.all
    preface = _preface(request, model, seen.created_at, offered, hosted)
    earlier = earlier_messages(request.get("previous_input_messages") or ())

    chosen: dict[tuple[int, ...], Conversation] = {}

    async def render(kept: Sequence[Item]) -> tuple[int, ...]:
        conversation = Conversation(preface, kept, earlier)
        tokens = await asyncio.to_thread(_rendered, conversation, past)
        if len(tokens) >= engine.context_length:
            raise PromptTooLong(len(tokens), engine.context_length)
        chosen[tokens] = conversation
        return tokens

    sampling = _sampling(request, structured, spent)
    most = engine.context_length - reserved_for_answer(sampling.max_tokens, engine.context_length)
    prompt = await fit_prompt(items, render, truncate=request["truncation"] == "auto", most=most)
    sources = sources_of([*items, *(item for turn in past for item in turn.items)])
    make = partial(HarmonyParser, _rules(request, tools, spent), sources, frozenset(spec.stop_tokens))
    asked = request.get("enable_response_messages")
    return Turn(prompt, sampling, make, partial(shown, chosen[prompt], past) if asked else None)


def _check(request: Mapping[str, Any]) -> None:
    """Raises InvalidSampling for what a harmony model cannot do; the API has refused it where it knew the model."""
    try:
        check_capabilities(request, _ABILITIES)
    except InvalidRequest as error:
        raise InvalidSampling(error.error.message) from None


def _hosted(request: Mapping[str, Any], seen: TurnContext) -> HostedTools:
    """Raises InvalidSampling where a server's tools could be taken for the client's."""
    for place, spec in enumerate(request["tools"]):
        if spec.get("server_label") == FUNCTIONS.rstrip("."):
            raise InvalidSampling(f"tools[{place}].server_label: this model calls the client's own tools so")
    return hosted_tools_of(request, seen.listings, NameStyle.HARMONY)


def _preface(
    request: Mapping[str, Any], model: ServedModel, created_at: int, tools: Sequence[Tool], hosted: HostedTools
) -> Preface:
    args = _args_of(request, model)
    mine = [tool for tool in tools if is_hosted(tool, hosted)]
    kinds = {hosted[tool.name].kind for tool in mine}
    return Preface(
        created_at=created_at,
        effort=_effort(args.get("reasoning_effort")),
        identity=args.get("model_identity"),
        instructions=request["instructions"],
        functions=tuple(tool for tool in tools if not is_hosted(tool, hosted)),
        python=HostedKind.PYTHON in kinds,
        browser=HostedKind.BROWSER in kinds,
        servers=_servers(request, mine, hosted),
        answer=_answer(request["text"]["format"]),
    )


def _args_of(request: Mapping[str, Any], model: ServedModel) -> dict[str, Any]:
    """What gpt-oss's chat template would be given."""
    own = request["extra"].get("chat_template_kwargs") or {}
    effort = (request.get("reasoning") or {}).get("effort")
    asked = {} if effort is None else {"reasoning_effort": effort}
    return {**model.chat_template_args, **asked, **own}


def _effort(effort: Any) -> str | None:
    if effort is None or (isinstance(effort, str) and effort in EFFORTS):
        return effort
    raise InvalidSampling(f"reasoning.effort: this model knows {', '.join(EFFORTS)}, and not {effort!r}")


def _servers(request: Mapping[str, Any], tools: Iterable[Tool], hosted: HostedTools) -> tuple[Namespace, ...]:
    """The tools of MCP servers under their labels, by the names that they have there."""
    about = {spec["server_label"]: spec.get("server_description") for spec in request["tools"] if spec["type"] == "mcp"}
    found: dict[str, list[Tool]] = {}
    for tool in tools:
        mine = hosted[tool.name]
        if mine.kind is HostedKind.MCP:
            found.setdefault(mine.server_label or "", []).append(replace(tool, name=mine.tool))
    return tuple(Namespace(label, about.get(label), tuple(listed)) for label, listed in found.items())


def _answer(spec: Mapping[str, Any]) -> AnswerFormat | None:
    if spec["type"] != "json_schema":
        return None
    return AnswerFormat(spec["name"], spec.get("description"), spec["schema"])


def _output_spec(request: Mapping[str, Any], tools: Tools) -> OutputSpec:
    """What must be enforced, the tools by their recipients."""
    spec = output_spec_of(request, tools, {})
    return replace(spec, tools=tuple(_addressed(tool, tools.hosted) for tool in spec.tools))


def _addressed(tool: Tool, hosted: HostedTools) -> Tool:
    if not is_hosted(tool, hosted):
        return replace(tool, name=FUNCTIONS + tool.name)
    return replace(tool, parameters=None) if hosted[tool.name].kind is HostedKind.PYTHON else tool  # it takes bare code


def is_hosted(tool: Tool, hosted: HostedTools) -> bool:
    """A client's function may have the name of one of the server's tools: it is called in another namespace."""
    return tool.name in hosted and hosted[tool.name].field == tool.field


def _sampling(request: Mapping[str, Any], structured: Structured | None, spent: int) -> Sampling:
    sampling = remaining_sampling(sampling_of(request, structured), spent)
    if sampling.extra.get("ignore_eos"):
        return sampling
    stops = dict.fromkeys((*encoding.stop_tokens(), *(sampling.extra.get("stop_token_ids") or ())))
    return replace(sampling, extra={**sampling.extra, "stop_token_ids": list(stops)})


def _rules(request: Mapping[str, Any], tools: Tools, spent: int) -> AnswerRules:
    extra = request["extra"]
    return AnswerRules(
        stop=tuple(extra.get("stop") or ()),
        keep_stop=bool(extra.get("include_stop_str_in_output")),
        min_tokens=max((extra.get("min_tokens") or 0) - spent, 0),
        functions=frozenset(tool.name for tool in tools.allowed if not is_hosted(tool, tools.hosted)) - tools.custom,
        custom=tools.custom_allowed,
        hosted=tools.hosted,
        single_call=tools.single,
    )


def _rendered(conversation: Conversation, past: Sequence[PastTurn]) -> tuple[int, ...]:
    tokens = conversation.tokens()
    for turn in past:
        tokens += continued(turn.tokens, results_of(turn))
    return tuple(tokens)
