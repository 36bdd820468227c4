"""Projects, service accounts, keys and the audit log as objects of OpenAI's admin API."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from app.access.new_keys import CreatedKey
from app.protocol.types import Json
from app.store.tenants.api_keys import KeyRow
from app.store.tenants.audit import AuditRow
from app.store.tenants.projects import ProjectRow
from app.store.tenants.service_accounts import AccountRow

COMMAND_LINE = "command-line"
"""Who acted, if it was no API key: a command on a machine of the operators."""

_OWNER: Json = {
    "id": "operators",
    "object": "organization.user",
    "type": "user",
    "name": "The operators of this server",
    "role": "owner",
    "created_at": None,
}
"""Admin keys belong to no person here."""


def project_object(row: ProjectRow) -> Json:
    return {
        "id": row.id,
        "object": "organization.project",
        "name": row.name,
        "created_at": _seconds(row.created_at),
        "archived_at": _seconds(row.archived_at),
        "status": "active" if row.archived_at is None else "archived",
        "external_key_id": None,
        "residency": None,
    }


def account_object(row: AccountRow) -> Json:
    return {
        "id": row.id,
        "object": "organization.project.service_account",
        "name": row.name,
        "role": row.role,
        "created_at": _seconds(row.created_at),
    }


def new_account_object(row: AccountRow, key: CreatedKey | None) -> Json:
    """The answer to the account's creation: the only one that has its first key."""
    return {**account_object(row), "api_key": None if key is None else new_account_key_object(key)}


def new_account_key_object(key: CreatedKey) -> Json:
    """The answer to the key's creation: the only one that has the key itself."""
    return {
        "id": key.row.id,
        "object": "organization.project.service_account.api_key",
        "name": key.row.name,
        "created_at": _seconds(key.row.created_at),
        "expires_at": _seconds(key.row.expires_at),
        "value": key.secret,
    }


def key_object(row: KeyRow, owners: Mapping[str, AccountRow]) -> Json:
    """`owners` are service accounts by id. A key that the commands made has no owner."""
    account = owners.get(row.service_account or "")
    return {
        "id": row.id,
        "object": "organization.project.api_key",
        "name": row.name,
        "redacted_value": row.shown,
        "scopes": list(row.scopes),
        "created_at": _seconds(row.created_at),
        "expires_at": _seconds(row.expires_at),
        "last_used_at": _seconds(row.last_used_at),
        "owner_project_access": "inactive" if row.is_archived else "active",
        "owner": {
            "type": None if account is None else "service_account",
            "service_account": None if account is None else _owner_object(account),
            "user": None,
        },
    }


def admin_key_object(row: KeyRow) -> Json:
    return {
        "id": row.id,
        "object": "organization.admin_api_key",
        "name": row.name,
        "redacted_value": row.shown,
        "scopes": list(row.scopes),
        "created_at": _seconds(row.created_at),
        "expires_at": _seconds(row.expires_at),
        "last_used_at": _seconds(row.last_used_at),
        "owner": _OWNER,
    }


def model_permissions_object(row: ProjectRow) -> Json:
    """A project without rules denies no model."""
    mode, names = ("deny_list", row.denied_models) if row.models is None else ("allow_list", row.models)
    return {"object": "project.model_permissions", "mode": mode, "model_ids": sorted(names)}


def audit_object(row: AuditRow) -> Json:
    return {
        "id": row.id,
        "object": "organization.audit_log",
        "type": row.type,
        "effective_at": _seconds(row.effective_at),
        "project": None if row.project is None else {"id": row.project, "name": row.project_name},
        "actor": _actor(row.actor),
        row.type: {"id": row.resource, **row.details},
    }


def _actor(key_id: str | None) -> Json:
    if key_id is None:
        return {"type": "session", "session": {"user": {"id": COMMAND_LINE, "email": None}, "ip_address": None}}
    return {"type": "api_key", "api_key": {"id": key_id, "type": "user", "user": {"id": _OWNER["id"], "email": None}}}


def _owner_object(row: AccountRow) -> Json:
    return {"id": row.id, "name": row.name, "role": row.role, "created_at": _seconds(row.created_at)}


def _seconds(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp())
