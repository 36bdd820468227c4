"""What the items of `input` that are kept have in common."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from app.protocol.requests.base import ItemId, ItemStatus, RequestModel
from app.protocol.requests.fields import SupportedValues
from app.protocol.types import Json


class PlainItem(RequestModel):
    """An item that is kept under an id, the caller's own or a new one."""

    prefix: ClassVar[str]
    """Of new ids."""

    id: ItemId | None = None
    created_by: Annotated[str | None, SupportedValues()] = None

    def stored(self, new_id: str) -> Json:
        """The item as the store has it. `new_id` is for one that has no id: what follows the prefix."""
        return {"id": self.id or f"{self.prefix}_{new_id}", **self._said()}

    def _said(self) -> Json:
        raise NotImplementedError


class StoredItem(PlainItem):
    """One that has a status, too; some types have more of them."""

    status: Any = None

    def stored(self, new_id: str) -> Json:
        item = super().stored(new_id)
        return {"id": item.pop("id"), "status": self.status or "completed", **item}


class StatusItem(StoredItem):
    """One whose status is that of a message."""

    status: ItemStatus | None = None
