"""The items that a response continues, from its chain of responses or from its conversation.

Nothing is copied from turn to turn: each response keeps the items that it added, and the chain is walked by primary
key. Branches from one response share their past and nothing else. Of a conversation, a response continues the items
that were there when it was accepted, because a worker that takes it over must find the same ones.

A column of its own, `tool_results`, holds what models were told of hosted tools' calls. Only workers see it: they get
it as the `call` of an item (workers/formats/chat/messages.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sqlalchemy import text

from app.heavy import off_loop
from app.protocol.item_types import HOSTED_CALLS
from app.protocol.requests.strict_json import loads
from app.protocol.types import Json
from app.store.context.items import CHAIN, INPUT, input_in, raw, responses_of
from app.store.database import Database
from app.store.rows import HasContext

CALL = "call"
"""The key under which a worker finds the call of a hosted tool in an item."""

_CHAIN = text(
    f"""
    {CHAIN}
    SELECT c.previous, {raw(INPUT)}, {raw("r.output")}, {raw("r.tool_results")}
    FROM chain c JOIN responses r ON r.id = c.id ORDER BY c.depth DESC
    """
)

_CONVERSATION = text(
    f"""
    SELECT {raw("item")}, {raw("tool_results")} FROM conversation_items
    WHERE conversation_id = :id AND project = :project
        AND position <= coalesce(CAST(:until AS bigint), 9223372036854775807)
    ORDER BY position
    """
)
_TOOL_RESULTS_BYTES = text(
    """
    SELECT coalesce(sum(r.output_bytes), 0) FROM responses r
    WHERE r.id = ANY(CAST(:responses AS text[])) AND r.project = :project AND r.tool_results IS NOT NULL
    """
)
_TOOL_RESULTS = text(
    f"""
    SELECT {raw("r.output")}, {raw("r.tool_results")} FROM responses r
    WHERE r.id = ANY(CAST(:responses AS text[])) AND r.project = :project AND r.tool_results IS NOT NULL
    """
)


class ContextGone(Exception):
    """A response in the chain was deleted, by a client or by retention."""


async def chain_items(db: Database, project: str, response_id: str) -> list[Json]:
    """The items of a response and of every response it continues, oldest first, as workers see them.

    Raises ContextGone.
    """
    values = {"id": response_id, "project": project}
    rows = list(await db.execute(_CHAIN, values))
    if not rows or rows[0].previous is not None:
        raise ContextGone(response_id)

    def items(row: Sequence[Any]) -> Iterable[Json]:
        _, own, output, tool_results = row
        return *input_in(loads(own)), *_output_of(output, tool_results)

    return await _parsed(rows, items)


async def conversation_context(db: Database, project: str, conversation_id: str, until: int | None) -> list[Json]:
    """The items of a conversation up to position `until`, or all of them, oldest first, as workers see them."""
    rows = list(await db.execute(_CONVERSATION, {"id": conversation_id, "project": project, "until": until}))
    return await _parsed(rows, lambda row: [_with_call(loads(row[0]), _loads(row[1]))])


async def context_items(db: Database, row: HasContext) -> list[Json]:
    """The items before the response's own input, as workers see them; size.py has their size.

    Raises ContextGone.
    """
    previous = row.request.get("previous_response_id")
    if previous is not None:
        return await chain_items(db, row.project, previous)
    if row.conversation_id is not None:
        until = row.request.get("conversation_until")
        return await conversation_context(db, row.project, row.conversation_id, until)
    return []


def copied_from(items: Iterable[Json]) -> list[str]:
    """The ids of the responses from which a client copied items with hosted calls, without the calls."""
    copied = {item["id"] for item in items if item["type"] in HOSTED_CALLS and CALL not in item and item.get("id")}
    return list(responses_of(copied))


async def copied_calls_size(db: Database, project: str, responses: Sequence[str]) -> int:
    """The bytes that `restore_calls` reads of these responses."""
    return int((await db.execute(_TOOL_RESULTS_BYTES, {"responses": responses, "project": project}))[0][0])


async def restore_calls(db: Database, project: str, items: Iterable[Json], responses: Sequence[str]) -> list[Json]:
    """The same items; those that were copied from these responses get back the calls that their client never saw."""
    rows = list(await db.execute(_TOOL_RESULTS, {"responses": responses, "project": project}))
    stored = await _parsed(rows, lambda row: [item for item in _output_of(*row) if CALL in item])
    calls = {item["id"]: item[CALL] for item in stored}
    return [item if CALL in item else _with_call(item, calls.get(item.get("id"))) for item in items]


async def _parsed(rows: list[Any], items_of: Callable[[Sequence[Any]], Iterable[Json]]) -> list[Json]:
    """The items of rows in raw JSON, oldest first. Takes the rows out of the list: nothing is held twice.

    Much of it is parsed in a thread.
    """
    size = sum(len(value) for row in rows for value in row if isinstance(value, bytes))
    rows.reverse()

    def parse() -> list[Json]:
        items: list[Json] = []
        while rows:
            items += items_of(rows.pop())
        return items

    return await off_loop(parse, size)


def _output_of(output: bytes | None, tool_results: bytes | None) -> list[Json]:
    items, results = _loads(output) or [], _loads(tool_results) or {}
    return [_with_call(item, results.get(str(index))) for index, item in enumerate(items)] if results else items


def _loads(raw: bytes | None) -> Any:
    return None if raw is None else loads(raw)


def _with_call(item: Json, call: Json | None) -> Json:
    return item if call is None else {**item, CALL: call}
