"""The answers of the admin API: routes return these objects, and `/docs` shows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator

from app.access.changes import FLOWER
from app.access.project_limits import LIMIT_FIELDS, limit_id
from app.protocol.limits import LimitKind, LimitState
from app.protocol.requests.bodies.organization import NO_LIMIT
from app.protocol.types import Json
from app.store.tenants.api_keys import KeyRow
from app.store.tenants.audit import AuditRow
from app.store.tenants.projects import ALL, NOT, ProjectRow

COMMAND_LINE_ACTOR = "command-line"
"""Who acted, if it was no API key: `longhaul migrate`, or somebody who was asked for none."""
OPERATORS = "operators"
"""Admin keys belong to no person here."""


class Shape(BaseModel, extra="forbid", json_schema_serialization_defaults_required=True):
    """An answer that always has all its fields."""


class RowShape(Shape):
    """Shows a row: each field is the row's attribute of that name, but for those that are given or have a default."""

    @classmethod
    def of(cls, row: Any, **given: Any) -> Self:
        shown = {name: getattr(row, name) for name in cls.model_fields.keys() - given if hasattr(row, name)}
        return cls(**shown, **given)


Row = TypeVar("Row", bound=Any)
Entry = TypeVar("Entry", bound=Shape)


def _epoch(moment: Any) -> Any:
    return int(moment.timestamp()) if isinstance(moment, datetime) else moment


Seconds = Annotated[int, BeforeValidator(_epoch)]
"""Since the epoch; made of a datetime."""


class List(Shape, Generic[Entry]):
    object: Literal["list"] = "list"
    data: list[Entry]
    first_id: str
    last_id: str
    has_more: bool

    @classmethod
    def of(cls, found: tuple[Sequence[Row], bool], entry_of: Callable[[Row], Entry]) -> List[Entry]:
        """Makes an answer of a page of rows, and of whether there are more."""
        rows, has_more = found
        first, last = (rows[0].id, rows[-1].id) if rows else ("", "")
        return cls(data=[entry_of(row) for row in rows], first_id=first, last_id=last, has_more=has_more)


class DeletedObject(Shape):
    id: str
    object: str
    deleted: Literal[True] = True


class Project(RowShape):
    id: str
    object: Literal["organization.project"] = "organization.project"
    name: str
    created_at: Seconds
    archived_at: Seconds | None
    status: Literal["active", "archived"]
    external_key_id: None = None
    residency: None = None
    stored_bytes: int
    """This and what follows is Longhaul's own."""
    models: list[str]
    tool_servers: list[str]
    top_tier: str
    weight: float
    conversation_days: int | None
    erase_at: Seconds | None
    erased_at: Seconds | None

    @classmethod
    def of(cls, row: ProjectRow, **given: Any) -> Self:
        lists = {"models": sorted(row.models), "tool_servers": sorted(row.tool_servers)}
        return super().of(row, status="active" if row.archived_at is None else "archived", **lists, **given)


class Account(RowShape):
    """The service account that owns a key."""

    id: str
    name: str
    role: Literal["member"] = "member"
    created_at: Seconds


class ServiceAccount(Account):
    object: Literal["organization.project.service_account"] = "organization.project.service_account"


class NewAccountKey(RowShape):
    id: str
    object: Literal["organization.project.service_account.api_key"] = "organization.project.service_account.api_key"
    name: str
    created_at: Seconds
    expires_at: Seconds | None
    value: str
    """The key itself. No other answer has it."""


class NewServiceAccount(ServiceAccount):
    api_key: NewAccountKey


class KeyOwner(Shape):
    """A key that the commands made has none."""

    type: Literal["service_account"] | None
    service_account: Account | None
    user: None = None


class Key(RowShape):
    id: str
    name: str
    redacted_value: str
    scopes: list[str]
    created_at: Seconds
    expires_at: Seconds | None
    last_used_at: Seconds | None

    @classmethod
    def of(cls, row: KeyRow, **given: Any) -> Self:
        return super().of(row, redacted_value=row.shown, **given)


class ProjectKey(Key):
    object: Literal["organization.project.api_key"] = "organization.project.api_key"
    owner_project_access: Literal["active", "inactive"]
    owner: KeyOwner

    @classmethod
    def owned(cls, row: KeyRow) -> Self:
        owner = KeyOwner(type=None, service_account=None)
        if row.service_account is not None:
            account = Account(id=row.service_account, name=row.name, created_at=row.created_at)
            owner = KeyOwner(type="service_account", service_account=account)
        return cls.of(row, owner_project_access="inactive" if row.is_archived else "active", owner=owner)


class AdminKeyOwner(Shape):
    id: Literal["operators"] = "operators"
    object: Literal["organization.user"] = "organization.user"
    type: Literal["user"] = "user"
    name: str = "The operators of this server"
    role: Literal["owner"] = "owner"
    created_at: None = None


class AdminKey(Key):
    object: Literal["organization.admin_api_key"] = "organization.admin_api_key"
    owner: AdminKeyOwner = AdminKeyOwner()


class NewAdminKey(AdminKey):
    value: str
    """The key itself. No other answer has it."""


class NewKey(Key):
    """Longhaul's own."""

    object: Literal["organization.api_key"] = "organization.api_key"
    project: str | None
    value: str
    """The key itself. No other answer has it."""


class ModelPermissions(Shape):
    """A project without rules denies no model."""

    object: Literal["project.model_permissions"] = "project.model_permissions"
    mode: Literal["allow_list", "deny_list"]
    model_ids: list[str]

    @classmethod
    def of(cls, row: ProjectRow) -> ModelPermissions:
        if ALL in row.models:
            return cls(mode="deny_list", model_ids=sorted(name[1:] for name in row.models if name.startswith(NOT)))
        return cls(mode="allow_list", model_ids=sorted(row.models))


class ModelPermissionsDeleted(Shape):
    object: Literal["project.model_permissions.deleted"] = "project.model_permissions.deleted"
    deleted: Literal[True] = True


class AuditProject(Shape):
    id: str
    name: str | None


class AuditLog(RowShape, extra="allow"):
    """Besides these fields it has one that is named as its `type`, with details."""

    id: str
    object: Literal["organization.audit_log"] = "organization.audit_log"
    type: str
    effective_at: Seconds
    project: AuditProject | None
    actor: Json
    ip_address: str | None
    request_id: str | None

    @classmethod
    def of(cls, row: AuditRow, **given: Any) -> Self:
        project = None if row.project is None else AuditProject(id=row.project, name=row.project_name)
        details = {row.type: {"id": row.resource, **row.details}}
        return super().of(row, project=project, actor=_actor(row.actor), ip_address=row.address, **details, **given)


class RateLimit(Shape):
    """A limit of 9007199254740991 stands for none."""

    id: str
    object: Literal["project.rate_limit"] = "project.rate_limit"
    model: str
    max_requests_per_1_minute: int
    max_tokens_per_1_minute: int

    @classmethod
    def of(cls, model: str, values: Mapping[tuple[str, LimitKind], int]) -> RateLimit:
        """`values` are the limits of a project."""
        limits = {field: values.get((model, kind), NO_LIMIT) for kind, field in LIMIT_FIELDS.items()}
        return cls(id=limit_id(model), model=model, **limits)


class ProjectLimit(Shape):
    """Longhaul's own."""

    object: Literal["project.limit"] = "project.limit"
    kind: LimitKind
    model: str
    """`*`: all together."""
    value: int
    taken: int

    @classmethod
    def of(cls, state: LimitState) -> Self:
        return cls(kind=state.kind, model=state.model, value=state.value, taken=state.value - state.remaining)


class Limits(Shape):
    object: Literal["list"] = "list"
    data: list[ProjectLimit]


class UsageResult(Shape):
    """What is not grouped by is null."""

    object: Literal["organization.usage.completions.result"] = "organization.usage.completions.result"
    num_model_requests: int
    input_tokens: int
    input_cached_tokens: int
    input_uncached_tokens: int
    output_tokens: int
    output_reasoning_tokens: int
    project_id: str | None = None
    user_id: str | None = None
    api_key_id: str | None = None
    model: str | None = None
    service_tier: str | None = None
    batch: bool | None = None
    api_source: Literal["unlabeled"] | None = None


class UsageBucket(Shape):
    object: Literal["bucket"] = "bucket"
    start_time: int
    end_time: int
    results: list[UsageResult]


class UsagePage(Shape):
    object: Literal["page"] = "page"
    data: list[UsageBucket]
    has_more: bool
    next_page: str | None


def _actor(key_id: str | None) -> Json:
    if key_id in (None, FLOWER):
        user = {"id": key_id or COMMAND_LINE_ACTOR, "email": None}
        return {"type": "session", "session": {"user": user, "ip_address": None}}
    return {"type": "api_key", "api_key": {"id": key_id, "type": "user", "user": {"id": OPERATORS, "email": None}}}
