"""Chat models: one turn, from the items of its context to its parser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from config.models import ServedModel
from workers.engine.base import Engine, InvalidSampling
from workers.formats.answer import answer_rules_of
from workers.formats.calls.client_tools import client_tools_of
from workers.formats.calls.hosted import NameStyle
from workers.formats.calls.hosted_formats import hosted_tools_of
from workers.formats.calls.tools import as_functions, output_spec_of, tools_of
from workers.formats.chat.messages import Item, messages_of
from workers.formats.chat.parser import ChatParser
from workers.formats.chat.template import template_args_of
from workers.formats.citations import sources_of
from workers.formats.off_loop import off_loop
from workers.formats.reasoning import check_template, shows_all_turns
from workers.formats.sampling import remaining_sampling, sampling_of
from workers.formats.truncation import fit_prompt, max_prompt_tokens
from workers.formats.turn import PastTurn, Turn, TurnContext


async def build_chat_turn(
    engine: Engine,
    model: ServedModel,
    request: Mapping[str, Any],
    items: Sequence[Item],
    past: Sequence[PastTurn],
    context: TurnContext,
) -> Turn:
    """See `workers.formats.builder.build_turn`."""
    spent = sum(len(turn.tokens) for turn in past)
    conversation = [*items, *(item for turn in past for item in turn.items)]
    hosted = hosted_tools_of(request, context.listings, NameStyle.CHAT)
    client = await off_loop(conversation, client_tools_of, request, conversation, hosted)
    tools = tools_of(request, hosted, client, later=bool(past))
    template_args = template_args_of(request, model.chat_template_args)
    if shows_all_turns(request) and not past:  # later turns have the same arguments
        await check_template(engine, template_args)
    output_format = await engine.output_format(output_spec_of(request, tools, template_args))
    functions = as_functions(tools.allowed if tools.closed and output_format.structured is None else tools.all)

    async def render(kept: Sequence[Item]) -> tuple[int, ...]:
        messages = await off_loop(kept, messages_of, kept, request["instructions"], model.tool_parser, client)
        if not messages:
            raise InvalidSampling("'input' holds nothing that the model can be shown")
        return await engine.render(messages, template_args, functions)

    sampling = remaining_sampling(sampling_of(request, output_format.structured, _adapter(request, model)), spent)
    max_tokens = max_prompt_tokens(sampling.max_tokens, engine.context_length)
    prompt = await fit_prompt(conversation, render, truncate=request["truncation"] == "auto", max_tokens=max_tokens)
    sources = await off_loop(conversation, sources_of, conversation)
    rules = answer_rules_of(request, tools, tools.functions, spent, sources)
    return Turn(prompt, sampling, partial(ChatParser, output_format, prompt, rules))


def _adapter(request: Mapping[str, Any], model: ServedModel) -> str | None:
    name: str = request["model"]
    return name if any(adapter.name == name for adapter in model.adapters) else None
