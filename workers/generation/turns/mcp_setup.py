"""The setup before a response's first turn: MCP servers list their tools, and approved calls are made.

Each server is asked once for a chain of responses: the list is an item, and stays in the context.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from app.protocol.events.deltas import Delta, Listed, Listing, McpArguments, McpStart, TurnEnd
from app.protocol.item_types import APPROVAL_REQUEST, APPROVAL_RESPONSE, MCP_CALL, MCP_LIST_TOOLS
from app.protocol.types import Json
from workers.engine.base import InvalidSampling
from workers.formats.calls.browser import unknown_option
from workers.formats.calls.hosted import HostedCall, NameStyle
from workers.formats.calls.hosted_formats import shown_call
from workers.formats.turn import Parsed
from workers.generation.run import Run
from workers.generation.turns.inputs import Context
from workers.generation.turns.tool_calls import ToolCallRunner
from workers.generation.writing.chunk_writer import ChunkWriter
from workers.mcp.errors import ListingFailed

if TYPE_CHECKING:  # it imports the MCP library, which a response without hosted tools never loads
    from workers.mcp.toolbox import Toolbox

NOT_OFFERED = "The call was not made: the MCP server does not offer this tool to this response."

Tools = Mapping[str, Sequence[Json]]
"""The tools of MCP servers, by server label."""


def listings_of(items: Iterable[Mapping[str, Any]]) -> dict[str, Sequence[Json]]:
    """The tools of MCP servers, by label, as the newest list of each server in these items has them."""
    return {
        item["server_label"]: item["tools"]
        for item in items
        if item["type"] == MCP_LIST_TOOLS and not item.get("error")
    }


async def all_listings(request: Mapping[str, Any], context: Context, toolbox: Toolbox) -> Tools:
    """The tools at the first turn of a response to `request`; asks the servers that its setup would ask."""
    known = listings_of(await context.use(setup_items))
    labels = list(_unlisted(request, known))
    listed = await asyncio.gather(*(_list_tools(toolbox, index, label) for index, label in enumerate(labels)))
    return {**known, **{labels[each.index]: each.tools for each in listed if each.error is None}}


async def setup_items(items: Iterable[Json]) -> list[Json]:
    """What a setup reads of a context: the items about tools and approvals, without what the tools returned."""
    return [_without_result(item) for item in items if item["type"] in (MCP_LIST_TOOLS, MCP_CALL, APPROVAL_REQUEST)]


def _without_result(item: Json) -> Json:
    if item["type"] != MCP_CALL:
        return item
    return {"type": MCP_CALL, "approval_request_id": item.get("approval_request_id")}


def count_setup_items(output: Sequence[Json]) -> int:
    """How many output items were made before the first turn."""
    made = takewhile(lambda item: item["type"] == MCP_LIST_TOOLS or item.get("approval_request_id"), output)
    return sum(1 for _ in made)


class McpSetup:
    """The setup of one response; skips what earlier attempts have done.

    `items`: the `setup_items` of the response's context and of its own input. The response has a toolbox.
    """

    def __init__(self, run: Run, writer: ChunkWriter, items: Sequence[Json], calls: ToolCallRunner) -> None:
        self._run = run
        self._writer = writer
        self._items = items
        self._calls = calls
        self._request: Mapping[str, Any] = run.row.request

    async def run(self) -> None:
        """Lists tools and makes the approved calls. Raises Fenced, or InvalidSampling if a server cannot do what the
        request asks of it."""
        assert self._run.toolbox is not None
        await self._check_search(self._run.toolbox)
        await self._list_all(self._run.toolbox)
        await self._run_approved_calls()

    @property
    def _output(self) -> list[Json]:
        output: list[Json] = self._run.stream.response["output"]
        return output

    async def _check_search(self, toolbox: Toolbox) -> None:
        """A browser that is away is no reason to refuse: its calls will fail, and the model is told."""
        field = unknown_option(self._request["tools"])
        with suppress(ListingFailed):
            if field is not None and not await toolbox.knows_search_options():
                reason = "the MCP server that runs 'web_search' here cannot search like this; leave the field out"
                raise InvalidSampling(f"{field}: {reason}")

    async def _list_all(self, toolbox: Toolbox) -> None:
        begun = {item["server_label"] for item in self._output if item["type"] == MCP_LIST_TOOLS}
        new = [label for label in _unlisted(self._request, listings_of(self._items)) if label not in begun]
        if new:
            await self._writer.flush(Parsed(tuple(map(Listing, new))))
        open_lists = [index for index in self._run.stream.pending if self._output[index]["type"] == MCP_LIST_TOOLS]
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(_list_tools(toolbox, index, self._output[index]["server_label"]))
                for index in open_lists
            ]
        for task in tasks:
            await self._writer.flush(Parsed((task.result(),)))

    async def _run_approved_calls(self) -> None:
        made = {item.get("approval_request_id") for item in (*self._items, *self._output) if item["type"] == MCP_CALL}
        new = [request for request in self._approved() if request["id"] not in made]
        if new:
            deltas = tuple(delta for request in new for delta in _call_deltas(request))
            await self._writer.flush(Parsed((*deltas, TurnEnd())))
            await self._writer.commit_all()
        pending = {index: self._output[index] for index in self._run.stream.pending}
        calls = {index: _hosted_call(item) for index, item in pending.items() if item.get("approval_request_id")}
        offered = {index: call for index, call in calls.items() if self._is_offered(call)}
        await self._calls.refuse({index: calls[index] for index in calls if index not in offered}, NOT_OFFERED)
        await self._calls.run(offered)

    def _approved(self) -> Iterable[Json]:
        """The approval requests that this response's own input approves."""
        requests = {item["id"]: item for item in self._items if item["type"] == APPROVAL_REQUEST}
        for item in self._request["input"]:
            if item["type"] == APPROVAL_RESPONSE and item["approve"] and item["approval_request_id"] in requests:
                yield requests[item["approval_request_id"]]

    def _is_offered(self, call: HostedCall) -> bool:
        listings = listings_of([*self._items, *self._output])
        return any(tool["name"] == call.tool for tool in listings.get(call.server_label or "", ()))


def _unlisted(request: Mapping[str, Any], known: Tools) -> Iterable[str]:
    """The labels of MCP servers whose tools the request wants and the context does not have."""
    if request["tool_choice"] == "none":
        return
    for spec in request["tools"]:
        if spec["type"] == "mcp" and not _is_known(spec, known):
            yield spec["server_label"]


async def _list_tools(toolbox: Toolbox, index: int, label: str) -> Listed:
    try:
        return Listed(index, tuple(await toolbox.list_tools(label)))
    except ListingFailed as error:
        return Listed(index, (), str(error))


def _is_known(spec: Json, known: Tools) -> bool:
    """A list made for an earlier response may lack tools that this one allows."""
    listing = known.get(spec["server_label"])
    return listing is not None and _allowed_names(spec) <= {tool["name"] for tool in listing}


def _allowed_names(spec: Json) -> set[str]:
    """The tools that a request allows by name."""
    allowed = spec.get("allowed_tools") or ()
    names = allowed.get("tool_names") if isinstance(allowed, Mapping) else allowed
    return set(names or ())


def _call_deltas(request: Json) -> Iterable[Delta]:
    yield McpStart(request["server_label"], request["name"], request["id"])
    if request["arguments"]:
        yield McpArguments(request["arguments"])


def _hosted_call(item: Json) -> HostedCall:
    return HostedCall(
        shown_call(item, NameStyle.CHAT).name, item["arguments"], "mcp", item["server_label"], item["name"]
    )
