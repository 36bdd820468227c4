"""The answers of the admin API as `/docs` shows them; see schemas.py."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict

from app.api.schemas import Shape
from app.protocol.types import Json


class Project(Shape):
    id: str
    object: Literal["organization.project"]
    name: str
    created_at: int
    archived_at: int | None
    status: Literal["active", "archived"]
    external_key_id: None
    residency: None


class Page(Shape):
    object: Literal["list"]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ProjectList(Page):
    data: list[Project]


class ServiceAccount(Shape):
    id: str
    object: Literal["organization.project.service_account"]
    name: str
    role: Literal["member", "none"]
    created_at: int


class ServiceAccountList(Page):
    data: list[ServiceAccount]


class NewAccountKey(Shape):
    id: str
    object: Literal["organization.project.service_account.api_key"]
    name: str
    created_at: int
    expires_at: int | None
    value: str
    """The key itself. No other answer has it."""


class NewServiceAccount(ServiceAccount):
    api_key: NewAccountKey | None


class ServiceAccountDeleted(Shape):
    id: str
    object: Literal["organization.project.service_account.deleted"]
    deleted: Literal[True]


class KeyOwnerAccount(Shape):
    id: str
    name: str
    role: Literal["member", "none"]
    created_at: int


class KeyOwner(Shape):
    """A key that the commands made has none."""

    type: Literal["service_account"] | None
    service_account: KeyOwnerAccount | None
    user: None


class ProjectKey(Shape):
    id: str
    object: Literal["organization.project.api_key"]
    name: str
    redacted_value: str
    scopes: list[str]
    created_at: int
    expires_at: int | None
    last_used_at: int | None
    owner_project_access: Literal["active", "inactive"]
    owner: KeyOwner


class ProjectKeyList(Page):
    data: list[ProjectKey]


class ProjectKeyDeleted(Shape):
    id: str
    object: Literal["organization.project.api_key.deleted"]
    deleted: Literal[True]


class AdminKeyOwner(Shape):
    id: str
    object: Literal["organization.user"]
    type: Literal["user"]
    name: str
    role: Literal["owner"]
    created_at: None


class AdminKey(Shape):
    id: str
    object: Literal["organization.admin_api_key"]
    name: str
    redacted_value: str
    scopes: list[str]
    created_at: int
    expires_at: int | None
    last_used_at: int | None
    owner: AdminKeyOwner


class NewAdminKey(AdminKey):
    value: str
    """The key itself. No other answer has it."""


class AdminKeyList(Page):
    data: list[AdminKey]


class AdminKeyDeleted(Shape):
    id: str
    object: Literal["organization.admin_api_key.deleted"]
    deleted: Literal[True]


class ModelPermissions(Shape):
    object: Literal["project.model_permissions"]
    mode: Literal["allow_list", "deny_list"]
    model_ids: list[str]


class ModelPermissionsDeleted(Shape):
    object: Literal["project.model_permissions.deleted"]
    deleted: Literal[True]


class ToolEnabled(Shape):
    enabled: bool


class ToolPermissions(Shape):
    code_interpreter: ToolEnabled
    file_search: ToolEnabled
    image_generation: ToolEnabled
    mcp: ToolEnabled
    web_search: ToolEnabled


class AuditProject(Shape):
    id: str
    name: str | None


class AuditLog(Shape):
    """Besides these fields it has one that is named as its `type`, with details."""

    model_config = ConfigDict(extra="allow")

    id: str
    object: Literal["organization.audit_log"]
    type: str
    effective_at: int
    project: AuditProject | None
    actor: Json


class AuditLogList(Page):
    data: list[AuditLog]


class RateLimit(Shape):
    """A limit of 9007199254740991 stands for none."""

    id: str
    object: Literal["project.rate_limit"]
    model: str
    max_requests_per_1_minute: int
    max_tokens_per_1_minute: int


class RateLimitList(Page):
    data: list[RateLimit]


class UsageResult(Shape):
    """What is not grouped by is null."""

    object: Literal["organization.usage.completions.result"]
    num_model_requests: int
    input_tokens: int
    input_cached_tokens: int
    input_uncached_tokens: int
    output_tokens: int
    output_reasoning_tokens: int
    project_id: str | None
    user_id: str | None
    api_key_id: str | None
    model: str | None
    service_tier: str | None
    batch: bool | None
    api_source: Literal["unlabeled"] | None


class UsageBucket(Shape):
    object: Literal["bucket"]
    start_time: int
    end_time: int
    results: list[UsageResult]


class UsagePage(Shape):
    object: Literal["page"]
    data: list[UsageBucket]
    has_more: bool
    next_page: str | None
