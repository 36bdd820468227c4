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
    """`draining`: it takes no responses now. `drained`: nor has it any. `absent`: it shows no sign of life. `lost`: its
    lease ran out."""

    id: str
    object: Literal["operator.worker"] = "operator.worker"
    name: str
    model: str
    queue: str
    host: str
    pid: int
    unit: str | None
    """What restarts it: a systemd unit, a pod, or a process of `longhaul up`."""
    devices: str | None
    """As CUDA_VISIBLE_DEVICES names them; null: all of its host."""
    device: str | None
    """Their name."""
    version: str
    state: Literal["ready", "draining", "drained", "absent", "lost"]
    draining_since: Seconds | None
    """Since an operator drained it."""
    drain_reason: str | None
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


class Pause(RowShape):
    """What is held back in its line."""

    object: Literal["operator.pause"] = "operator.pause"
    model: str
    queue: str
    project: str | None
    """Null: all projects."""
    since: Seconds
    reason: str | None
    actor: str | None
    """The id of the operator's API key; null: a command on a machine of the operators."""
