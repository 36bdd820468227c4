"""Items of `input` that bring tools: what a tool search found, and tools that join in the middle."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from app.protocol.item_types import SERVER
from app.protocol.requests.base import CallId
from app.protocol.requests.items.stored_item import PlainItem, StoredItem
from app.protocol.requests.tools.any_tool import AddedTool, Execution, LoadedTool, check_names
from app.protocol.requests.tools.omitted import OmittedTool
from app.protocol.requests.validation import refused
from app.protocol.types import Json

MAX_LOADED_TOOLS = 1024
"""Most tools and namespaces that one item brings."""


class _Searched(StoredItem):
    """An item of a tool search. If the server has searched, no call needs an answer, and none has an id."""

    call_id: CallId | None = None
    execution: Execution | None = None

    @property
    def by_server(self) -> bool:
        return self.execution == SERVER

    @model_validator(mode="after")
    def _check_call(self) -> Self:
        if self.call_id is None and not self.by_server:
            raise refused("Missing required parameter: '{path}'.", "missing_required_parameter", "call_id")
        return self

    def _of_call(self) -> Json:
        if self.by_server:
            return {"call_id": None, "execution": SERVER}
        return {"call_id": self.call_id, "execution": "client"}


class ToolSearchCall(_Searched):
    """The model's call of a tool search."""

    prefix = "tsc"

    type: Literal["tool_search_call"]
    arguments: dict[str, Any]

    def _fields(self) -> Json:
        return {"type": self.type, **self._of_call(), "arguments": self.arguments}


class ToolSearchOutput(_Searched):
    """What a tool search found: the model may call these tools from here on."""

    prefix = "tso"

    type: Literal["tool_search_output"]
    tools: Annotated[list[LoadedTool], Field(max_length=MAX_LOADED_TOOLS, fail_fast=True), AfterValidator(check_names)]

    def _fields(self) -> Json:
        return {"type": self.type, **self._of_call(), "tools": _kept(self.tools)}


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
