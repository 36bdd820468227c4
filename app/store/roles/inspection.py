"""The facts that a check of an installation reads in Postgres: the server, the role and its rights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import text

from app.store.database import Database
from app.store.roles.granting import HELD
from app.store.roles.rights import RIGHTS, ROLES

_SETTINGS = (
    *("synchronous_commit", "synchronous_standby_names", "fsync", "full_page_writes", "max_connections", "autovacuum"),
    *("superuser_reserved_connections", "idle_in_transaction_session_timeout", "transaction_timeout"),
    *("statement_timeout", "idle_session_timeout"),
)
_SERVER = text(
    """
    SELECT current_setting('server_version') AS version, extract(epoch FROM clock_timestamp())::float8 AS now,
        current_user AS role, r.rolsuper AS is_superuser,
        coalesce((SELECT s.ssl FROM pg_stat_ssl s WHERE s.pid = pg_backend_pid()), false) AS is_encrypted,
        (SELECT count(*) FROM pg_stat_activity WHERE usesysid IS NOT NULL) AS connections,
        (SELECT json_object_agg(name, setting) FROM pg_settings WHERE name = ANY(CAST(:settings AS text[]))) AS settings
    FROM pg_roles r WHERE r.rolname = current_user
    """
)
_OWNS = text("SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = to_regclass('responses')")
_ROLES = text(
    """
    SELECT rolname FROM pg_roles WHERE rolname = ANY(CAST(:roles AS text[])) AND pg_has_role(oid, 'USAGE')
    ORDER BY rolname
    """
)


@dataclass(frozen=True, slots=True)
class ServerFacts:
    version: str
    now: float
    """Seconds since the epoch, by the server's clock."""
    role: str
    is_superuser: bool
    is_encrypted: bool
    """Whether the connection is, as the server has it: that of PgBouncer, if one is between."""
    connections: int
    """Connections of all clients of the server."""
    settings: Mapping[str, str]
    """Settings as they hold for this connection; without those that this version of the server does not have."""


@dataclass(frozen=True, slots=True)
class RoleFacts:
    is_owner: bool
    """Whether the role owns the schema."""
    roles: Sequence[str]
    """The ROLES that it is, or is a member of."""
    held: frozenset[tuple[str, str, str | None]]
    """Table, right, and column or None."""


async def server(db: Database) -> ServerFacts:
    """Raises StoreUnavailable, as all of these."""
    [row] = await db.execute(_SERVER, {"settings": list(_SETTINGS)})
    return ServerFacts(**row._mapping)


async def role(db: Database) -> RoleFacts | None:
    """None: there is no schema."""
    owns = await db.execute(_OWNS)
    if not owns:
        return None
    roles = [row.rolname for row in await db.execute(_ROLES, {"roles": list(ROLES)})]
    held = [tuple(row) for row in await db.execute(HELD, {"role": None, "tables": list(RIGHTS)})]
    return RoleFacts(bool(owns[0][0]), roles, frozenset(held))
