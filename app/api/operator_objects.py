"""The answers of the operators' API: routes return these objects, and `/docs` shows them."""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

from app.api.admin_objects import RowShape, Seconds, Shape

Entry = TypeVar("Entry", bound=Shape)


class Entries(Shape, Generic[Entry]):
    """A whole list, which has no pages."""

    object: Literal["list"] = "list"
    data: list[Entry]


class Worker(RowShape):
    """`draining`: it takes no responses now. `absent`: it shows no sign of life. `lost`: its lease ran out."""

    id: str
    object: Literal["operator.worker"] = "operator.worker"
    name: str
    model: str
    queue: str
    host: str
    pid: int
    state: Literal["ready", "draining", "absent", "lost"]
    slots: int
    running: int
    sent: int
    """Sent to it, and not claimed yet."""
    in_tools: int
    """Running responses that wait for their tools, and take no slot."""
    tokens_per_second: float
    """Output tokens of responses that ended within the last five minutes, or less where many did."""
    lease_seconds: float
    """Until its lease runs out, unless it is renewed."""
    started_at: Seconds
