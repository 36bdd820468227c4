"""Chat models: one turn, from the items of its context to what the model says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from config.models import ServedModel
from workers.engine.base import Engine, InvalidSampling
from workers.formats.calls.hosted import NameStyle, hosted_tools_of
from workers.formats.calls.tools import Tools, output_spec_of, shown, tools_of
from workers.formats.chat.messages import Item, messages_of
from workers.formats.chat.parser import AnswerRules, ChatParser
from workers.formats.chat.template import template_args_of
from workers.formats.citations import sources_of
from workers.formats.sampling import remaining_sampling, sampling_of
from workers.formats.truncation import fit_prompt, reserved_for_answer
from workers.formats.turn import PastTurn, Turn, TurnContext


async def build_chat_turn(
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
    spent = sum(len(turn.tokens) for turn in past)
    tools = tools_of(request, hosted_tools_of(request, seen.listings, NameStyle.CHAT), later=bool(past))
    template_args = template_args_of(request, model.chat_template_args)
    output_format = await engine.output_format(output_spec_of(request, tools, template_args))
    functions = shown(tools.allowed if tools.closed and output_format.structured is None else tools.all)

    async def render(kept: Sequence[Item]) -> tuple[int, ...]:
        messages = messages_of(kept, request["instructions"], model.tool_parser)
        if not messages:
            raise InvalidSampling("'input' holds nothing that the model can be shown")
        return await engine.render(messages, template_args, functions)

    sampling = remaining_sampling(sampling_of(request, output_format.structured, _adapter(request, model)), spent)
    most = engine.context_length - reserved_for_answer(sampling.max_tokens, engine.context_length)
    said = [*items, *(item for turn in past for item in turn.items)]
    prompt = await fit_prompt(said, render, truncate=request["truncation"] == "auto", most=most)
    rules = replace(_rules(request, tools, spent), sources=sources_of(said))

    def parser() -> ChatParser:
        return ChatParser(output_format, prompt, rules)

    return Turn(prompt, sampling, parser)


def _adapter(request: Mapping[str, Any], model: ServedModel) -> str | None:
    name: str = request["model"]
    return name if any(adapter.name == name for adapter in model.adapters) else None


def _rules(request: Mapping[str, Any], tools: Tools, spent: int) -> AnswerRules:
    extra = request["extra"]
    stop = extra.get("stop") or ()
    return AnswerRules(
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        keep_stop=bool(extra.get("include_stop_str_in_output")),
        min_tokens=max((extra.get("min_tokens") or 0) - spent, 0),
        functions=tools.functions,
        custom=tools.custom_allowed,
        hosted=tools.hosted,
        single_call=tools.single,
    )
