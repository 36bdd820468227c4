"""Items of `input` that bring tools: what the client's tool search found, and tools that join in the middle."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from app.protocol.requests.base import CallId
from app.protocol.requests.items.stored_item import PlainItem, StatusItem
from app.protocol.requests.tools.any_tool import AddedTool, ClientExecution, LoadedTool, check_names
from app.protocol.requests.tools.omitted import OmittedTool
from app.protocol.types import Json

MAX_LOADED_TOOLS = 1024
"""Of one item: tools and namespaces."""


class ToolSearchCall(StatusItem):
    """The model's call of the client's tool search."""

    prefix = "tsc"

    type: Literal["tool_search_call"]
    call_id: CallId
    execution: ClientExecution = "client"
    arguments: dict[str, Any]


class ToolSearchOutput(StatusItem):
    """What the client's tool search found: the model may call these tools from here on."""

    prefix = "tso"

    type: Literal["tool_search_output"]
    call_id: CallId
    execution: ClientExecution = "client"
    tools: Annotated[list[LoadedTool], Field(max_length=MAX_LOADED_TOOLS, fail_fast=True), AfterValidator(check_names)]

    def _fields(self) -> Json:
        return {"type": self.type, "call_id": self.call_id, "execution": "client", "tools": _kept(self.tools)}


class AdditionalTools(PlainItem):
    """Tools that the model may call from here on."""

    prefix = "at"

    type: Literal["additional_tools"]
    role: Literal["developer"]
    tools: Annotated[list[AddedTool], Field(max_length=MAX_LOADED_TOOLS, fail_fast=True), AfterValidator(check_names)]

    def _fields(self) -> Json:
        return {"type": self.type, "role": self.role, "tools": _kept(self.tools)}


def _kept(tools: list[Any]) -> list[Json]:
    """The tools as the store keeps them, without those that are left out."""
    return [tool.stored() for tool in tools if not isinstance(tool, OmittedTool)]
