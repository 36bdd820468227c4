"""Chat models: one turn, from the items of its context to what the model says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from config.models import ServedModel
from workers.engine.base import Engine
from workers.formats.messages import Item, messages_of
from workers.formats.parser import ChatParser, Rules
from workers.formats.template import template_args_of
from workers.formats.tools import Tools, form_of, shown, tools_of
from workers.formats.turn import Turn
from workers.prompting import fitted, room_of
from workers.sampling import sampling_of


async def chat_turn(engine: Engine, model: ServedModel, request: Mapping[str, Any], items: Sequence[Item]) -> Turn:
    """The turn that `request` asks for behind `items`: what it continues, and its own input.

    Raises InvalidSampling (the message names the field), PromptTooLong or EngineError.
    """
    tools = tools_of(request)
    template_args = template_args_of(request, model.chat_template_args)
    dialect = await engine.dialect(form_of(request, tools, template_args))
    functions = shown(tools.allowed if tools.closed and dialect.structured is None else tools.all)

    async def render(kept: Sequence[Item]) -> tuple[int, ...]:
        messages = messages_of(kept, request["instructions"], model.tool_parser)
        return await engine.render(messages, template_args, functions)

    most = engine.context_length - room_of(request["max_output_tokens"], engine.context_length)
    prompt = await fitted(items, render, truncate=request["truncation"] == "auto", most=most)
    sampling = sampling_of(request, dialect.structured, _adapter(request, model))
    return Turn(prompt, sampling, partial(ChatParser, dialect, prompt, _rules(request, tools)))


def _adapter(request: Mapping[str, Any], model: ServedModel) -> str | None:
    name: str = request["model"]
    return name if any(adapter.name == name for adapter in model.adapters) else None


def _rules(request: Mapping[str, Any], tools: Tools) -> Rules:
    extra = request["extra"]
    stop = extra.get("stop") or ()
    return Rules(
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        keep_stop=bool(extra.get("include_stop_str_in_output")),
        min_tokens=extra.get("min_tokens") or 0,
        functions=tools.functions,
        custom=tools.custom_allowed,
        single_call=tools.single,
    )
