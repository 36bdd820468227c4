"""Attacks by what a prompt is made of: items, references, chains, conversations, tools, counting and compacting."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from tests.attacks.attack import Attack
from tests.attacks.memory import CONTEXTS, LARGE
from tests.attacks.target import Json, Target

MEGABYTE = 1_000_000
ITEMS = 9_900
TOOLS = 1000
"""Just within the bounds of one request: refused is what exceeds them, and these must be harmless."""


def _message(text: str, role: str = "user") -> Json:
    return {"role": role, "content": text}


def _function(number: int, size: int = 20, **fields: Any) -> Json:
    parameters = {"type": "object", "properties": {"a": {"type": "string", "description": "d" * size}}}
    return {"type": "function", "name": f"f{number}", "parameters": parameters, **fields}


async def references(target: Target, count: int) -> None:
    """`count` references to one stored message of 4 MB."""
    stored = await target.create(input=[_message("x" * 4 * MEGABYTE)], background=True)
    listed = await target.send("GET", f"/v1/responses/{stored['id']}/input_items")
    reference = {"type": "item_reference", "id": listed["data"][0]["id"]}
    for background in (True, False):
        await target.create(input=[reference] * count, background=background)
    await target.send("POST", "/v1/conversations", json={"items": [reference] * 20})


async def unknown_references(target: Target, count: int) -> None:
    items = [{"type": "item_reference", "id": f"msg_{number}"} for number in range(count)]
    for size in (count, 500):
        await target.create(input=items[:size])
    await target.create(input=[{"type": "item_reference", "id": "x" * 100_000}])


async def system_messages(target: Target, count: int) -> None:
    for role in ("system", "developer"):
        for items in (count, min(count, ITEMS), 1000):
            await target.create(input=[*[_message("s" * 137, role)] * items, _message("x")])


async def truncated_messages(target: Target, count: int) -> None:
    for items in (count, min(count, ITEMS)):
        turns = [_message("a" * 120, "assistant")] * items
        await target.create(input=[*turns, _message("x")], truncation="auto")
        await target.create(input=[_message("u")] * items, truncation="auto")


async def mixed_items(target: Target, count: int) -> None:
    """Calls and their outputs, which a prompt has to match."""
    items: list[Json] = []
    for number in range(count):
        call = {"type": "function_call", "call_id": f"c{number}", "name": "f", "arguments": "{}"}
        items += [call, {"type": "function_call_output", "call_id": f"c{number}", "output": "o"}]
    for sent in (items, items[:ITEMS]):
        await target.create(input=sent)
        await target.create(input=sent, truncation="auto")
        await target.create(input=sent[::-1])


async def prompts_at_the_limit(target: Target, count: int) -> None:
    """As long as the context, and one token longer."""
    for size in (399_900, 400_100, 7 * MEGABYTE):
        await target.repeat(count, lambda _, size=size: target.create(input="x" * size), parallel=4)  # type: ignore[misc]


async def count_flood(target: Target, count: int) -> None:
    """`input_tokens` of 7.5 MB, one after the other, and several at once."""
    body = {"model": target.model, "input": "ab " * (5 * MEGABYTE // 2)}
    await target.repeat(count, lambda _: target.send("POST", "/v1/responses/input_tokens", json=body), parallel=3)


async def count_of_messages(target: Target, count: int) -> None:
    for items in (count, min(count, ITEMS)):
        body = {"model": target.model, "input": [_message("m" * 100)] * items}
        await target.send("POST", "/v1/responses/input_tokens", json=body)


async def compact_flood(target: Target, count: int) -> None:
    long = [_message("/summary short"), *[_message("ab " * 30_000)] * 4]  # the scripted engine's summary is short
    body = {"model": target.model, "input": long}
    await target.repeat(count, lambda _: target.send("POST", "/v1/responses/compact", json=body))


async def compaction_triggers(target: Target, count: int) -> None:
    """Compactions in each request, and items that ask for them."""
    management = [{"type": "compaction", "compact_threshold": 1000}]
    long = [_message("/summary short"), *[_message("ab " * 3000)] * 4]
    await target.repeat(count, lambda _: target.create(input=long, context_management=management))
    await target.create(input=[_message("x"), *[{"type": "compaction_trigger"}] * count])
    await target.create(input=[{"type": "compaction", "encrypted_content": "x" * MEGABYTE}])
    await target.create(context_management=management * count)


async def long_chain(target: Target, count: int) -> None:
    """Responses of 7 MB that continue each other and generate nothing, on one WebSocket."""
    async with target.websocket() as opened:
        previous: Json = {}
        for _ in range(count):
            event = await target.turn(opened, input="x" * 7 * MEGABYTE, generate=False, **previous)
            if event["type"] != "response.completed":
                break
            previous = {"previous_response_id": event["response"]["id"]}


async def chain_of_many(target: Target, count: int) -> None:
    """Short responses, each of which continues all before it."""
    previous = None
    for _ in range(count):
        found = await target.create(previous_response_id=previous)
        if "id" not in found:
            break
        previous = found["id"]


async def instructions_in_chain(target: Target, count: int) -> None:
    first = await target.create()
    fields = {"previous_response_id": first["id"], "instructions": "i" * 7 * MEGABYTE}
    await target.repeat(count, lambda _: target.create(**fields), parallel=4)


async def large_conversation(target: Target, count: int) -> None:
    """`count` times 7 MB in a conversation, and responses that read it."""
    path = f"/v1/conversations/{(await target.send('POST', '/v1/conversations', json={}))['id']}"
    for _ in range(count):
        await target.send("POST", f"{path}/items", json={"items": [_message("x" * 350_000)] * 20})
    conversation = path.rsplit("/", 1)[1]
    await target.repeat(4, lambda _: target.create(conversation=conversation))
    await target.send("GET", f"{path}/items?limit=100")
    await target.send("DELETE", path)


async def items_of_conversation(target: Target, count: int) -> None:
    """`count` times 20 small items, and a listing of them page by page."""
    path = f"/v1/conversations/{(await target.send('POST', '/v1/conversations', json={}))['id']}"
    add = {"items": [_message("x")] * 20}
    await target.repeat(count, lambda _: target.send("POST", f"{path}/items", json=add))
    await target.create(conversation=path.rsplit("/", 1)[1])
    after = ""
    for _ in range(min(count, 50)):
        page = await target.send("GET", f"{path}/items?limit=100{after}")
        if not page.get("has_more"):
            break
        after = f"&after={page['last_id']}"


async def thousands_of_tools(target: Target, count: int) -> None:
    for tools in (count, min(count, TOOLS)):
        await target.create(tools=[_function(number) for number in range(tools)])
        await target.create(tools=[_function(0)] * tools)
    await target.create(tools=[_function(0, 7 * MEGABYTE)], tool_choice="required")
    await target.create(tools=[_function(n, strict=True) for n in range(min(count, TOOLS))], tool_choice="required")


async def namespaces(target: Target, count: int) -> None:
    def named(name: str, tools: list[Json]) -> Json:
        return {"type": "namespace", "name": name, "description": "d", "tools": tools}

    functions = [_function(number, 1) for number in range(count)]
    await target.create(tools=[named("n", functions)])
    await target.create(tools=[named(f"n{number}", functions[:10]) for number in range(count)])
    await target.create(tools=[named("n" * 60, functions), named("n" * 59 + "_", functions)])


async def found_tools(target: Target, count: int) -> None:
    """A search for tools that finds `count` of them, several times."""
    call = {"type": "tool_search_call", "call_id": "c", "execution": "client", "arguments": {}}
    output = {"type": "tool_search_output", "call_id": "c", "execution": "client"}
    search = {"type": "tool_search", "execution": "client", "description": "d", "parameters": {"type": "object"}}
    for size in (count, 1024):
        found = {**output, "tools": [_function(number, 1, defer_loading=True) for number in range(size)]}
        await target.create(tools=[search], input=[_message("x"), *[call, found] * 4])
    added = {"type": "additional_tools", "role": "developer", "tools": [_function(n, 1) for n in range(1024)]}
    await target.create(input=[*[added] * 8, _message("x")])


async def large_outputs_in_parallel(target: Target, count: int) -> None:
    """Responses that would write without end, in the background; cancelled at the end."""
    fields = {"max_output_tokens": 2**31 - 1, "ignore_eos": True, "background": True, "input": "/repeat 300000 x"}
    created = []

    async def start(_: int) -> None:
        created.append(await target.create(**fields))

    await target.repeat(count, start)
    await target.projects.cancel(created)


async def store_false_flood(target: Target, count: int) -> None:
    await target.repeat(count, lambda _: target.create(store=False, input="x" * 100_000))


def _many_items(name: str, point: str, run: Callable[[Target, int], Awaitable[None]], full: int) -> Attack:
    """So many items that the full form goes beyond what one request may have."""
    return Attack(name, point, run, full, 2000, {"200"}, full_only={"400 input"}, demand=LARGE)


ATTACKS = (
    Attack(
        "references",
        "1: reference amplification",
        references,
        300,
        50,
        {"200", "400 input", "400 items"},
        demand=CONTEXTS,
    ),
    Attack("unknown-references", "1: references", unknown_references, 50_000, 500, {"400 input", "404"}, demand=LARGE),
    _many_items("system-messages", "2: quadratic prompt building", system_messages, 49_000),
    _many_items("truncated-messages", "2: truncation auto", truncated_messages, 45_000),
    Attack("mixed-items", "2: calls and outputs", mixed_items, 30_000, 1000, {"200", "400 input"}, demand=LARGE),
    Attack("prompts-at-the-limit", "2: tokenizing", prompts_at_the_limit, 16, 1, {"200", "400 input"}, demand=LARGE),
    Attack("count-flood", "2: input_tokens", count_flood, 12, 1, {"200"}, demand=LARGE),
    _many_items("count-of-messages", "2: input_tokens", count_of_messages, 60_000),
    Attack("compact-flood", "2: compact", compact_flood, 100, 2, {"200"}, demand=LARGE),
    Attack(
        "compaction-triggers",
        "2: compact",
        compaction_triggers,
        100,
        2,
        {"200", "400 input", "400 context_management"},
        demand=LARGE,
    ),
    Attack(
        "long-chain",
        "4: unbounded context over WebSocket",
        long_chain,
        40,
        2,
        {"200"},
        full_only={"400 previous_response_id"},
        demand=CONTEXTS,
    ),
    Attack("chain-of-many", "4: unbounded context", chain_of_many, 300, 5, {"200"}),
    Attack(
        "instructions-in-chain",
        "4: unbounded context",
        instructions_in_chain,
        20,
        1,
        {"200", "400 input"},
        demand=CONTEXTS,
    ),
    Attack(
        "large-conversation",
        "4: unbounded context",
        large_conversation,
        20,
        1,
        {"200", "400 input"},
        full_only={"400 items"},
        demand=CONTEXTS,
    ),
    Attack(
        "items-of-conversation",
        "4: unbounded context",
        items_of_conversation,
        1100,
        5,
        {"200"},
        full_only={"400 items"},
    ),
    Attack(
        "thousands-of-tools",
        "thousands of tools",
        thousands_of_tools,
        20_000,
        500,
        {"200", "400 input", "400 tools"},
        demand=LARGE,
    ),
    Attack("namespaces", "namespaces", namespaces, 1024, 100, {"200"}, full_only={"400 input"}, demand=LARGE),
    Attack("found-tools", "tool_search_output", found_tools, 10_000, 1100, {"200", "400 input"}, demand=LARGE),
    Attack(
        "large-outputs-in-parallel", "8: batches by bytes", large_outputs_in_parallel, 300, 8, {"200"}, demand=LARGE
    ),
    Attack("store-false-flood", "store: false", store_false_flood, 500, 10, {"200"}),
)
