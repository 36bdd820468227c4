"""The base of the items of `input` that the store keeps."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema

from app.protocol.requests.base import ItemId, ItemStatus, Part
from app.protocol.requests.fields import OpaqueObject, SupportedValues
from app.protocol.types import Json

_NOT_OF_ITS_TYPE = {"id", "status", "created_by", "caller", "async_", "internal_chat_message_metadata_passthrough"}
"""Fields that items of many types have: kept apart from the others, or nowhere."""
_OPTIONAL = {"id", "status", "created_by", "encrypted_content", "name", "namespace", "phase", "summary"}
"""Fields whose empty string is as good as none. Other servers write some, and clients send them back."""


class InputItemModel(Part):
    """What every item of `input` may have."""

    internal_chat_message_metadata_passthrough: OpaqueObject | None = None
    """Of Codex. It is kept nowhere."""

    @model_validator(mode="before")
    @classmethod
    def _leave_out_empty(cls, sent: Any) -> Any:
        if not isinstance(sent, dict) or "" not in sent.values():
            return sent
        return {name: value for name, value in sent.items() if value != "" or name not in _OPTIONAL}

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> Json:
        """Says that these may be empty."""
        made = handler(core)
        found = handler.resolve_ref_schema(made)
        properties = found.get("properties", {})
        for name in (_OPTIONAL & properties.keys()).difference(found.get("required", ())):
            properties[name] = {"anyOf": [properties[name], {"const": ""}]}
        return made


class PlainItem(InputItemModel):
    """An item that is stored under an id: the client's, or a new one."""

    prefix: ClassVar[str]
    """Of a new id."""

    id: ItemId | None = None
    created_by: Annotated[str | None, SupportedValues()] = None

    def stored_under(self, new_id: str) -> Json:
        """Returns the item as the store keeps it. `new_id` follows the prefix if the client gave no id."""
        return {"id": self.id or f"{self.prefix}_{new_id}", **self._fields()}

    def _fields(self) -> Json:
        """The item without its id and status."""
        return self.model_dump(exclude=_NOT_OF_ITS_TYPE)


class StoredItem(PlainItem):
    """An item with a status; each type says which values it has."""

    status: Any = None

    def stored_under(self, new_id: str) -> Json:
        item = super().stored_under(new_id)
        return {"id": item.pop("id"), "status": self.status or "completed", **item}


class StatusItem(StoredItem):
    """An item with the statuses of a message."""

    status: ItemStatus | None = None


class FromCaller(Part):
    """Of a call, or its output: who called. Calls by programs are not supported yet."""

    caller: Annotated[Json | None, SupportedValues(({"type": "direct"},))] = None
    async_: Annotated[bool | None, SupportedValues((False,)), Field(alias="async")] = None

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True)


class CallItem(FromCaller, StatusItem):
    """A call, or its output."""
