"""Harmony models (gpt-oss): a turn in their own format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from openai_harmony import ToolNamespaceConfig

from app.heavy import off_loop
from app.protocol.requests.capabilities import Capabilities
from app.sizes import is_large, item_count, json_size
from config.models import ServedModel
from workers.engine import harmony_vocabulary
from workers.engine.base import InvalidSampling, PromptTooLong, Sampling, check_length
from workers.engine.output_format import OutputSpec, Structured, Tool
from workers.formats.answer import AnswerRules
from workers.formats.calls.browser import place_of
from workers.formats.calls.hosted import HostedTools
from workers.formats.calls.tools import Tools, is_hosted, output_spec_of
from workers.formats.harmony.history import earlier_messages, response_messages, result_messages
from workers.formats.harmony.messages import FUNCTIONS, Item
from workers.formats.harmony.parser import HarmonyParser
from workers.formats.harmony.prompt import EFFORTS, Conversation, Preface, continued, namespace, response_format
from workers.formats.reasoning import shows_all_turns
from workers.formats.sampling import sampling_of
from workers.formats.turn import Draft, MessagesOf, PastTurn, Prompt, TurnPlan, check_format

_CAPABILITIES = Capabilities(images=False, tools=True, reasoning=True, verbosity=False, harmony=True)
_NATIVE = {"python": ToolNamespaceConfig.python, "browser": ToolNamespaceConfig.browser}


async def harmony_draft(plan: TurnPlan) -> Draft:
    """The turn for a harmony model. Raises as `workers.formats.builder.build_turn`."""
    engine, request, tools = plan.engine, plan.request, plan.tools
    _check(request)
    spec = _output_spec(request, tools)
    structured = await engine.harmony_grammar(spec)
    preface = _preface(plan, tools.allowed if tools.closed and structured is None else tools.all)
    sent = request.get("previous_input_messages") or ()
    earlier = await off_loop(partial(earlier_messages, sent), json_size(sent), len(sent))
    conversations: dict[tuple[int, ...], Conversation] = {}

    async def render(kept: Sequence[Item]) -> tuple[int, ...]:
        conversation = Conversation(preface, kept, earlier, plan.client, all_reasoning=shows_all_turns(request))
        size = json_size(kept)
        limit = engine.context_length if is_large(size) else None
        tokens = await off_loop(partial(_rendered, conversation, plan.past, limit), size, item_count(kept), slow=True)
        if len(tokens) >= engine.context_length:
            raise PromptTooLong(len(tokens), engine.context_length)
        conversations[tokens] = conversation
        return tokens

    def parser(_prompt: Prompt, rules: AnswerRules) -> HarmonyParser:
        return HarmonyParser(rules, frozenset(spec.stop_tokens))

    def messages(prompt: Prompt) -> MessagesOf:
        return partial(response_messages, conversations[prompt], plan.past)

    sampling = _sampling(request, structured)
    return Draft(sampling, render, parser, messages if request.get("enable_response_messages") else None)


def _check(request: Mapping[str, Any]) -> None:
    """Raises InvalidSampling for what a harmony model cannot do."""
    check_format(request, _CAPABILITIES)
    for index, entry in enumerate(request["tools"]):
        if entry.get("server_label") == FUNCTIONS.rstrip("."):
            raise InvalidSampling(f"tools[{index}].server_label: 'functions' is reserved, for the client's own tools")


def _preface(plan: TurnPlan, tools: Sequence[Tool]) -> Preface:
    """`tools`: those that the model is shown."""
    request, hosted = plan.request, plan.hosted
    args = _args_of(request, plan.model)
    hosted_tools = [tool for tool in tools if is_hosted(tool, hosted)]
    kinds = {hosted[tool.name].kind for tool in hosted_tools}
    own = [tool for tool in tools if not is_hosted(tool, hosted)]
    functions = [namespace(FUNCTIONS.rstrip("."), None, own)] if own else []
    return Preface(
        created_at=plan.created_at,
        effort=_effort(args.get("reasoning_effort")),
        identity=args.get("model_identity"),
        instructions=_instructions(request, browser="browser" in kinds),
        native=[made() for kind, made in _NATIVE.items() if kind in kinds],
        tools=[*functions, *_servers(request, hosted_tools, hosted)],
        answer=_answer(request["text"]["format"]),
    )


def _instructions(request: Mapping[str, Any], *, browser: bool) -> str | None:
    """With where the user is: the description of the browser is that of the model's training, and stays as it is."""
    place = place_of(request["tools"]) if browser else None
    return "\n\n".join(filter(None, (request["instructions"], place))) or None


def _args_of(request: Mapping[str, Any], model: ServedModel) -> dict[str, Any]:
    """The arguments that gpt-oss's chat template would get."""
    own = request["extra"].get("chat_template_kwargs") or {}
    effort = (request.get("reasoning") or {}).get("effort")
    asked = {} if effort is None else {"reasoning_effort": effort}
    return {**model.chat_template_args, **asked, **own}


def _effort(effort: Any) -> str | None:
    if effort is None or (isinstance(effort, str) and effort in EFFORTS):
        return effort
    raise InvalidSampling(f"reasoning.effort: this model knows {', '.join(EFFORTS)}, and not {effort!r}")


def _servers(request: Mapping[str, Any], tools: Iterable[Tool], hosted: HostedTools) -> list[Any]:
    """The tools of MCP servers under their labels, by their own names."""
    about = {spec["server_label"]: spec.get("server_description") for spec in request["tools"] if spec["type"] == "mcp"}
    found: dict[str, list[Tool]] = {}
    for tool in tools:
        hosted_tool = hosted[tool.name]
        if hosted_tool.kind == "mcp":
            found.setdefault(hosted_tool.server_label or "", []).append(replace(tool, name=hosted_tool.tool))
    return [namespace(label, about.get(label), listed) for label, listed in found.items()]


def _answer(spec: Mapping[str, Any]) -> str | None:
    if spec["type"] != "json_schema":
        return None
    return response_format(spec["name"], spec.get("description"), spec["schema"])


def _output_spec(request: Mapping[str, Any], tools: Tools) -> OutputSpec:
    """What must be enforced; tools are named by the recipients of their calls."""
    spec = output_spec_of(request, tools, {})
    return replace(spec, tools=tuple(_addressed(tool, tools.callable.hosted) for tool in spec.tools))


def _addressed(tool: Tool, hosted: HostedTools) -> Tool:
    if not is_hosted(tool, hosted):
        return replace(tool, name=FUNCTIONS + tool.name)
    return replace(tool, parameters=None) if hosted[tool.name].kind == "python" else tool  # python takes bare code


def _sampling(request: Mapping[str, Any], structured: Structured | None) -> Sampling:
    sampling = sampling_of(request, structured)
    if sampling.extra.get("ignore_eos"):
        return sampling
    stops = dict.fromkeys((*harmony_vocabulary.stop_tokens(), *(sampling.extra.get("stop_token_ids") or ())))
    return replace(sampling, extra={**sampling.extra, "stop_token_ids": list(stops)})


def _rendered(conversation: Conversation, past: Sequence[PastTurn], limit: int | None) -> tuple[int, ...]:
    """Raises PromptTooLong, with a `limit` before everything becomes tokens."""
    if limit is not None:
        check_length(conversation.texts(), lambda text: len(harmony_vocabulary.encode(text)), limit)
    tokens = conversation.tokens()
    for turn in past:
        tokens += continued(turn.tokens, result_messages(turn, conversation.client))
    return tuple(tokens)
