"""Chat models: a turn by the model's chat template, and the template's arguments.

Later arguments win: the model's own (`chat_template_args` in models.toml), then what the request's fields ask for, then
the request's `chat_template_kwargs`. A template uses those that it knows:

    reasoning.effort   reasoning_effort = the effort; enable_thinking and thinking = false for "none" and "minimal",
                       true for any other effort
    reasoning.context  preserve_thinking = true and clear_thinking = false for "all_turns"
    text.verbosity     verbosity"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from app.heavy import off_loop
from app.protocol.requests.bodies.vllm_params import RESERVED
from app.protocol.requests.capabilities import Capabilities, images_of
from app.sizes import item_count
from config.models import ServedModel
from config.shaping.proof import Proof
from config.shaping.shape import shaped
from workers.engine.base import EngineError, InvalidPrompt, InvalidSampling, Message
from workers.engine.template_efforts import effort_args
from workers.formats.calls.tools import output_spec_of
from workers.formats.chat.messages import Item, messages_of
from workers.formats.chat.parser import ChatParser
from workers.formats.reasoning import ALL_TURNS_ARGS, check_template, shows_all_turns
from workers.formats.sampling import sampling_of
from workers.formats.turn import Draft, TurnPlan, check_format

_CAPABILITIES = Capabilities(images=True, tools=True, reasoning=True, verbosity=True, fetches_images=True)
"""The abilities of the format; the engine knows what its model lacks."""


async def chat_draft(plan: TurnPlan) -> Draft:
    """The turn for a chat model. Raises as `workers.formats.builder.build_turn`."""
    engine, model, request, tools = plan.engine, plan.model, plan.request, plan.tools
    check_format(request, _CAPABILITIES)
    template_args = template_args_of(request, model.chat_template_args)
    if shows_all_turns(request) and not plan.past:  # later turns have the same arguments
        await check_template(engine, template_args)
    output_format = await engine.output_format(output_spec_of(request, tools, template_args))
    shown = tools.allowed if tools.closed and output_format.structured is None else tools.all
    functions = [tool.as_function() for tool in shown]

    async def render(kept: Sequence[Item]) -> tuple[int, ...]:
        def made() -> list[Message]:
            messages = messages_of(kept, request["instructions"], plan.client)
            check_order(messages, request, engine.proof, has_tools=bool(functions))
            return shaped(messages, engine.proof.shaping, has_tools=bool(functions))

        messages = await off_loop(made, items=item_count(kept))
        if not messages:
            raise InvalidSampling("'input' holds nothing that the model can be shown")
        try:
            return await engine.render(messages, template_args, functions, request["extra"].get("cache_salt"))
        except InvalidPrompt as error:
            images = images_of(request["input"])
            where = next((path for path, part in images if part["image_url"] == error.image), None)
            raise error if where is None else InvalidPrompt(f"{where}: {error}") from None

    sampling = sampling_of(request, output_format.structured, _adapter(request, model))
    return Draft(sampling, render, partial(ChatParser, output_format))


def check_order(messages: Sequence[Message], request: Mapping[str, Any], proof: Proof, *, has_tools: bool) -> None:
    """Raises InvalidPrompt for an order of messages that the model cannot be shown, EngineError if it is shown none."""
    if proof.broken is not None:
        raise EngineError(f"this model cannot be shown any message: {proof.broken}")
    refusal = proof.refusal(messages, has_tools=has_tools)
    if refusal is not None:
        field = (
            "tools" if refusal.of_tools else "instructions" if request["instructions"] and refusal.of_head else "input"
        )
        raise InvalidPrompt(f"{field}: this model cannot be shown {refusal.order}: {refusal.reason}")


def _adapter(request: Mapping[str, Any], model: ServedModel) -> str | None:
    name: str = request["model"]
    return name if any(adapter.name == name for adapter in model.adapters) else None


def template_args_of(request: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Raises InvalidSampling if the request sets a reserved argument."""
    args = dict(defaults)
    effort = (request.get("reasoning") or {}).get("effort")
    if effort is not None:
        args |= effort_args(effort)
    if shows_all_turns(request):
        args |= ALL_TURNS_ARGS
    verbosity = request["text"].get("verbosity")
    if verbosity is not None:
        args["verbosity"] = verbosity
    own = request["extra"].get("chat_template_kwargs") or {}
    for name in RESERVED:
        if name in own:
            raise InvalidSampling(f"chat_template_kwargs.{name} cannot be set")
    return args | own
