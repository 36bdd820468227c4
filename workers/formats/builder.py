"""Builds a turn in the format that a model was trained on.

request, items, past turns --plan_turn--> TurnPlan: which tools there are
                  TurnPlan --draft_of---> Draft: the format's sampling (with its grammar), renderer and parser
    TurnPlan, Draft, items --turn_of----> Turn: a prompt, cut to what fits, its sampling and its parser
                      Turn --TurnGenerator (workers/generation/turns)--> Parsed, delta by delta
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from app.heavy import off_loop
from app.protocol.types import Json
from app.sizes import item_count
from config.models import ServedModel
from workers.engine.base import Engine, PromptTooLong
from workers.formats.answer import answer_rules_of
from workers.formats.calls.client_tools import ClientTools, client_tools_of
from workers.formats.calls.hosted import NameStyle
from workers.formats.calls.hosted_formats import hosted_tools_of
from workers.formats.calls.tools import Tools, tools_of
from workers.formats.chat.turn import chat_draft
from workers.formats.citations import sources_of
from workers.formats.reasoning import without_left_out
from workers.formats.sampling import remaining_sampling
from workers.formats.truncation import fit_prompt, max_prompt_tokens
from workers.formats.turn import Draft, PastTurn, Turn, TurnPlan


async def build_turn(plan: TurnPlan, items: Sequence[Mapping[str, Any]]) -> Turn:
    """The turn of the items that the plan was made of. Raises as `draft_of` and `turn_of`.

    These are functions of their own, so that nobody need hold the items while the draft is made.
    """
    return await turn_of(plan, await draft_of(plan), items)


async def plan_turn(
    engine: Engine,
    model: ServedModel,
    request: Mapping[str, Any],
    items: Sequence[Mapping[str, Any]],
    past: Sequence[PastTurn],
    created_at: int,
    listings: Mapping[str, Sequence[Json]],
) -> TurnPlan:
    """What the next turn of a stored request is made of, after `items` (earlier context, then its input) and its own
    `past` turns. Of the items it holds no more than the tools in them. `listings`: the tools of MCP servers by label,
    as in an mcp_list_tools item."""
    everything = _with_past(items, past)
    hosted = hosted_tools_of(request, listings, NameStyle.HARMONY if model.harmony else NameStyle.CHAT)
    taken = None if model.harmony else hosted  # in harmony the client's functions have a namespace of their own

    def made() -> tuple[ClientTools, Tools]:
        client = client_tools_of(request, everything, taken)
        return client, tools_of(request, hosted, client, later=bool(past))

    client, tools = await off_loop(made, items=item_count(everything) + _tool_count([request, *everything]))
    return TurnPlan(engine, model, request, past, created_at, hosted, client, tools)


async def draft_of(plan: TurnPlan) -> Draft:
    """May wait until a grammar was tried. Raises InvalidSampling (the message names the field) or EngineError."""
    if plan.model.harmony:
        from workers.formats.harmony.turn import harmony_draft  # loads a vocabulary that other models do not need

        return await harmony_draft(plan)
    return await chat_draft(plan)


async def turn_of(plan: TurnPlan, draft: Draft, items: Sequence[Mapping[str, Any]]) -> Turn:
    """Raises PromptTooLong or EngineError."""
    request, past = plan.request, plan.past
    shown = await off_loop(partial(without_left_out, items, request), items=item_count(items))
    everything = _with_past(shown, past)
    spent = sum(len(turn.tokens) for turn in past)
    sampling = remaining_sampling(draft.sampling, spent)
    max_tokens = max_prompt_tokens(sampling.max_tokens, plan.engine.context_length)
    rendered = shown if plan.model.harmony else everything  # harmony shows past turns by their tokens
    prompt = await fit_prompt(rendered, draft.render, truncate=request["truncation"] == "auto", max_tokens=max_tokens)
    if request.get("leaves_room") and not past and len(prompt) > max_tokens:  # rows of older versions have no such key
        raise PromptTooLong(len(prompt), max_tokens, leaves_room=True)
    sources = await off_loop(partial(sources_of, everything), items=item_count(everything))
    rules = answer_rules_of(request, plan.tools, spent, sources)
    messages = None if draft.messages is None else draft.messages(prompt)
    return Turn(prompt, sampling, partial(draft.parser, prompt, rules), messages)


def _tool_count(holders: Iterable[Mapping[str, Any]]) -> int:
    """How many tools, and tools in namespaces, a request and items bring."""
    entries = (entry for holder in holders for entry in holder.get("tools") or ())
    return sum(1 + len(entry.get("tools") or ()) for entry in entries)


def _with_past(items: Sequence[Mapping[str, Any]], past: Sequence[PastTurn]) -> list[Mapping[str, Any]]:
    return [*items, *(item for turn in past for item in turn.items)]
