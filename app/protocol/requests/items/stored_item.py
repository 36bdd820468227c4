"""The base of the items of `input` that the store keeps."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema

from app.protocol.requests.base import ItemId, ItemStatus, Part
from app.protocol.types import Json

_OPTIONAL = {"id", "status", "encrypted_content", "name", "namespace", "phase", "summary"}
"""Fields whose empty string is as good as none. Other servers write some, and clients send them back."""


class InputItemModel(Part):
    """What every item of `input` may have."""

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
    """How a new id begins."""

    id: ItemId | None = None

    def stored_under(self, new_id: str) -> Json:
        """Returns the item as the store keeps it. `new_id` follows the prefix if the client gave no id."""
        return {"id": self.id or f"{self.prefix}_{new_id}", **self._fields()}

    def _fields(self) -> Json:
        """The item without its id and status."""
        return self.model_dump(exclude={"id", "status"})


class StoredItem(PlainItem):
    """An item with a status."""

    status: ItemStatus | None = None

    def stored_under(self, new_id: str) -> Json:
        item = super().stored_under(new_id)
        return {"id": item.pop("id"), "status": self.status or "completed", **item}
