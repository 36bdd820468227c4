"""The bodies of requests to `/v1/organization`: OpenAI's admin API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from app.protocol.limits import ALL_MODELS, LimitKind
from app.protocol.requests.base import RequestModel
from app.protocol.requests.fields import SupportedValues

MAX_NAME_CHARS = 200
MAX_KEY_SECONDS = 10 * 366 * 86400
"""The longest lifetime of a key that expires."""
MAX_DAYS = 3660
"""The longest time that conversations are kept, and before a project is erased."""
MAX_MODEL_IDS = 1000
MAX_SCOPES = 16
NO_LIMIT = 2**53 - 1
"""In place of a rate limit's value. JavaScript reads larger integers wrong."""

READ_ONLY = "api.all.read"
"""OpenAI's name for the scope `read`."""

Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]
Lifetime = Annotated[int, Field(ge=1, le=MAX_KEY_SECONDS)]
ProjectScope = Literal["responses", "batches", "files", "read", "api.all.read"]
Scopes = Annotated[list[ProjectScope], Field(min_length=1, max_length=MAX_SCOPES, fail_fast=True)]
LimitValue = Annotated[int, Field(ge=1, le=NO_LIMIT)]
Permitted = Annotated[list[str], Field(max_length=MAX_MODEL_IDS, fail_fast=True)]
"""Names; `*`: all, and `!name`: but this one."""
ServiceTier = Literal["flex", "default", "priority"]
Weight = Annotated[float, Field(ge=0.001, le=1000)]
Days = Annotated[int, Field(ge=0, le=MAX_DAYS)]
OnlyNull = Annotated[Any, SupportedValues()]


class ProjectFields(RequestModel):
    """Longhaul's own of a project: what its requests may use."""

    models: Permitted | None = None
    tool_servers: Permitted | None = None
    top_tier: ServiceTier | None = None
    """The best service tier that its responses get."""
    weight: Weight | None = None
    """Its share of every queue, beside projects with 1."""

    @property
    def own(self) -> dict[str, Any]:
        """Those of them that were sent."""
        return self.model_dump(include=set(ProjectFields.model_fields), exclude_none=True)


class CreateProject(ProjectFields, example={"name": "team red"}):
    """The body of `POST /v1/organization/projects`."""

    name: Name
    external_key_id: OnlyNull = None
    geography: OnlyNull = None
    residency: OnlyNull = None


class UpdateProject(ProjectFields, example={"name": "team blue"}):
    """The body of `POST /v1/organization/projects/{id}`."""

    name: Name | None = None
    conversation_days: Days | None = None
    """Longhaul's own: conversations that have not changed for so long are deleted; 0: none is."""
    external_key_id: OnlyNull = None
    geography: OnlyNull = None


class EraseProject(RequestModel, example={"after_days": 30}):
    """The body of `POST /v1/organization/projects/{id}/erase`, which may be empty."""

    after_days: Days = 0


class CreateServiceAccount(RequestModel, example={"name": "nightly jobs"}):
    """The body of `POST .../service_accounts`."""

    name: Name
    create_service_account_only: Annotated[bool | None, SupportedValues((False,))] = None
    expires_in_seconds: Lifetime | None = None
    """How long the first key works."""


class UpdateServiceAccount(RequestModel, example={"role": "member"}):
    """The body of `POST .../service_accounts/{id}`."""

    name: Name | None = None
    role: Annotated[str | None, SupportedValues(("member",))] = None


class CreateAccountKey(RequestModel, example={"name": "laptop", "scopes": ["read"]}):
    """The body of `POST .../service_accounts/{id}/api_keys`."""

    name: Name | None = None
    """By default that of the account."""
    expires_in_seconds: Lifetime | None = None
    scopes: Scopes = Field(default_factory=list)
    """Left out, the key allows everything that a project's key may do."""


class UpdateKey(RequestModel, json_schema_extra={"examples": [{"expires_in_seconds": 86400}], "minProperties": 1}):
    """The body of `POST .../api_keys/{id}`: at least one of the fields."""

    expires_in_seconds: Lifetime = Field(default_factory=int)
    """From now on."""
    scopes: Scopes = Field(default_factory=list)
    """Left out, they stay. OpenAI's empty list would allow everything, so it is refused, as at creation."""


class CreateAdminKey(RequestModel, example={"name": "laptop"}):
    """The body of `POST /v1/organization/admin_api_keys`."""

    name: Name
    expires_in_seconds: Lifetime = Field(default_factory=int)


class CreateKey(RequestModel, example={"project": "default", "name": "laptop"}):
    """The body of `POST /v1/organization/api_keys`."""

    project: str | None = Field(None, max_length=MAX_NAME_CHARS)
    """None: a key of the operators."""
    name: Name
    expires_in_seconds: Lifetime | None = None
    scopes: Annotated[
        list[Literal[ProjectScope, "operator", "admin"]], Field(max_length=MAX_SCOPES, fail_fast=True)
    ] = Field(default_factory=list)
    """Left out: all that a key of the project may have; of an operators' key all that the caller's has."""


class RotateKey(RequestModel, example={"overlap_seconds": 3600}):
    """The body of `POST /v1/organization/api_keys/{id}/rotate`."""

    overlap_seconds: Annotated[int, Field(ge=0, le=MAX_KEY_SECONDS)] = 86400
    """How long the old key works beside the new one."""


class SetLimit(RequestModel, example={"kind": "tokens_per_day", "value": 1000000}):
    """The body of `POST .../limits`."""

    kind: Annotated[LimitKind, Field(strict=False)]
    model: Name = ALL_MODELS
    value: Annotated[int, Field(ge=1, lt=NO_LIMIT)] | None = None
    """None: no limit."""


class SetModelPermissions(RequestModel, example={"mode": "allow_list", "model_ids": ["longhaul-demo"]}):
    """The body of `POST .../model_permissions`."""

    mode: Literal["allow_list", "deny_list"]
    model_ids: Annotated[list[str], Field(max_length=MAX_MODEL_IDS, fail_fast=True)]


class SetRateLimit(RequestModel, example={"max_requests_per_1_minute": 60}):
    """The body of `POST .../rate_limits/{id}`; limits that are left out stay as they are."""

    max_requests_per_1_minute: LimitValue | None = None
    max_tokens_per_1_minute: LimitValue | None = None
    max_requests_per_1_day: OnlyNull = None
    max_images_per_1_minute: OnlyNull = None
    max_audio_megabytes_per_1_minute: OnlyNull = None
    batch_1_day_max_input_tokens: OnlyNull = None
