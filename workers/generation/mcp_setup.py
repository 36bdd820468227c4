"""What is done for a response before its first turn: MCP servers list their tools, and allowed calls are made.

Each server is asked once for a chain of responses: the list is an item, and stays in the context.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from app.protocol.events.deltas import Delta, Listed, Listing, McpArguments, McpStart, TurnEnd
from app.protocol.item_types import APPROVAL_REQUEST, APPROVAL_RESPONSE, MCP_CALL, MCP_LIST_TOOLS
from workers.formats.calls.hosted import HostedCall, HostedKind, chat_name
from workers.formats.turn import Parsed
from workers.generation.recorder import Recorder, Run
from workers.generation.tool_calls import ToolCallRunner
from workers.mcp.errors import ListingFailed

if TYPE_CHECKING:
    from workers.mcp.toolbox import Toolbox

Json = dict[str, Any]

NOT_OFFERED = "The call was not made: its server does not offer this tool to this response."


def listings_of(items: Iterable[Mapping[str, Any]]) -> dict[str, Sequence[Json]]:
    """The tools of MCP servers as the newest list of each in these items has them, by label."""
    return {
        item["server_label"]: item["tools"]
        for item in items
        if item["type"] == MCP_LIST_TOOLS and not item.get("error")
    }


async def listings_for(
    request: Mapping[str, Any], items: Iterable[Json], toolbox: Toolbox | None
) -> dict[str, Sequence[Json]]:
    """`listings_of` as the first turn of a response to `request` would have them: those are asked that it would ask."""
    known = listings_of(items)
    if toolbox is None:
        return known
    labels = list(_unlisted(request, known))
    asked = await asyncio.gather(*(_listed(toolbox, place, label) for place, label in enumerate(labels)))
    return known | {labels[one.index]: one.tools for one in asked if one.error is None}


def prepared(output: Sequence[Json]) -> int:
    """How many of the items were made before the first turn."""
    return sum(
        1 for _ in takewhile(lambda item: item["type"] == MCP_LIST_TOOLS or item.get("approval_request_id"), output)
    )


class McpSetup:
    """Of one response; does what no earlier attempt has done. `items` are its context, its own input last."""

    def __init__(self, run: Run, record: Recorder, items: Sequence[Json], caller: ToolCallRunner) -> None:
        self._run = run
        self._record = record
        self._items = items
        self._caller = caller
        self._request: Mapping[str, Any] = run.row.request

    async def make(self) -> None:
        """Raises Lost."""
        if self._run.toolbox is not None:
            await self._list()
            await self._run_allowed()

    @property
    def _output(self) -> list[Json]:
        output: list[Json] = self._run.stream.response["output"]
        return output

    async def _list(self) -> None:
        begun = {item["server_label"] for item in self._output if item["type"] == MCP_LIST_TOOLS}
        new = [label for label in _unlisted(self._request, listings_of(self._items)) if label not in begun]
        if new:
            await self._record.add(Parsed(tuple(map(Listing, new))))
        waiting = [place for place in self._run.stream.pending if self._output[place]["type"] == MCP_LIST_TOOLS]
        toolbox = self._run.toolbox
        assert toolbox is not None
        async with asyncio.TaskGroup() as group:
            labels = ((place, self._output[place]["server_label"]) for place in waiting)
            asked = [group.create_task(_listed(toolbox, place, label)) for place, label in labels]
        for task in asked:
            await self._record.add(Parsed((task.result(),)))

    async def _run_allowed(self) -> None:
        made = {item.get("approval_request_id") for item in (*self._items, *self._output) if item["type"] == MCP_CALL}
        new = [request for request in self._allowed() if request["id"] not in made]
        if new:
            deltas = tuple(delta for request in new for delta in _call_of(request))
            await self._record.add(Parsed((*deltas, TurnEnd())))
            await self._record.settle()
        waiting = {place: self._output[place] for place in self._run.stream.pending}
        calls = {place: _hosted_call(item) for place, item in waiting.items() if item.get("approval_request_id")}
        offered = {place: call for place, call in calls.items() if self._is_offered(call)}
        await self._caller.refuse({place: calls[place] for place in calls if place not in offered}, NOT_OFFERED)
        await self._caller.make(offered)

    def _allowed(self) -> Iterable[Json]:
        """Approval requests that this response's own input says yes to."""
        asked = {item["id"]: item for item in self._items if item["type"] == APPROVAL_REQUEST}
        for item in self._request["input"]:
            if item["type"] == APPROVAL_RESPONSE and item["approve"] and item["approval_request_id"] in asked:
                yield asked[item["approval_request_id"]]

    def _is_offered(self, call: HostedCall) -> bool:
        listings = listings_of([*self._items, *self._output])
        return any(tool["name"] == call.tool for tool in listings.get(call.server_label or "", ()))


def _unlisted(request: Mapping[str, Any], known: Mapping[str, Sequence[Json]]) -> Iterable[str]:
    """The labels of servers whose tools are wanted and not known."""
    if request["tool_choice"] == "none":
        return
    for spec in request["tools"]:
        if spec["type"] == "mcp" and not _is_known(spec, known):
            yield spec["server_label"]


async def _listed(toolbox: Toolbox, place: int, label: str) -> Listed:
    try:
        return Listed(place, tuple(await toolbox.list_tools(label)))
    except ListingFailed as error:
        return Listed(place, (), str(error))


def _is_known(spec: Json, known: Mapping[str, Sequence[Json]]) -> bool:
    """A list made for an earlier response may have left out what this one allows."""
    listing = known.get(spec["server_label"])
    return listing is not None and _names(spec) <= {tool["name"] for tool in listing}


def _names(spec: Json) -> set[str]:
    """The tools that a request allows by name."""
    allowed = spec.get("allowed_tools") or ()
    names = allowed.get("tool_names") if isinstance(allowed, Mapping) else allowed
    return set(names or ())


def _call_of(request: Json) -> Iterable[Delta]:
    yield McpStart(request["server_label"], request["name"], request["id"])
    if request["arguments"]:
        yield McpArguments(request["arguments"])


def _hosted_call(item: Json) -> HostedCall:
    return HostedCall(chat_name(item), item["arguments"], HostedKind.MCP, item["server_label"], item["name"])
