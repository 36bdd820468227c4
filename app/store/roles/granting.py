"""Granting the rights of `rights.py`, and reading what a role may do.

Grants are made by `longhaul migrate`, with each version anew, so that they are those of its code. The roles are the
operator's: a role that the server does not have gets nothing. What is granted already is left alone, because a change
of rights takes locks.
"""

from __future__ import annotations

from sqlalchemy import Connection, text

from app.store.roles.rights import FUNCTIONS, RIGHTS, ROLES, ROWS, wanted

_IS_OWNER = text("SELECT pg_has_role((SELECT relowner FROM pg_class WHERE oid = 'responses'::regclass), 'USAGE')")
_PRESENT = text("SELECT rolname FROM pg_roles WHERE rolname = ANY(CAST(:roles AS text[])) ORDER BY rolname")
# A table's right includes that of its columns, which are left out then.
HELD = text(
    """
    SELECT c.relname, p.privilege, CAST(NULL AS text) AS column_name
    FROM pg_class c CROSS JOIN unnest(
        ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) AS p(privilege)
    WHERE c.relnamespace = CAST(current_schema() AS regnamespace) AND c.relname = ANY(CAST(:tables AS text[]))
        AND has_table_privilege(coalesce(CAST(:role AS name), current_user), c.oid, p.privilege)
    UNION ALL
    SELECT c.relname, p.privilege, a.attname
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'REFERENCES']) AS p(privilege)
    WHERE c.relnamespace = CAST(current_schema() AS regnamespace) AND c.relname = ANY(CAST(:tables AS text[]))
        AND NOT has_table_privilege(coalesce(CAST(:role AS name), current_user), c.oid, p.privilege)
        AND has_column_privilege(coalesce(CAST(:role AS name), current_user), c.oid, a.attnum, p.privilege)
    """
)
"""What the role may do with the `tables`: name, right, and column or NULL. NULL as `role`: that of the connection."""
_MAY_CALL = text("SELECT has_function_privilege(CAST(:role AS name), CAST(:function AS regprocedure), 'EXECUTE')")
_ROWS = text(
    """
    SELECT obj_description(oid, 'pg_policy') FROM pg_policy
    WHERE polname = CAST(:role AS name) AND polrelid = CAST(:table AS regclass)
    """
)


def grant(connection: Connection) -> None:
    """Gives each role that the server has what RIGHTS says, and nothing else; does nothing for others than the owner.

    The names are constants of this program, so no statement has a value that somebody else chose.
    """
    if not connection.execute(_IS_OWNER).scalar_one():
        return
    for role in connection.execute(_PRESENT, {"roles": list(ROLES)}).scalars().all():
        held = {tuple(row) for row in connection.execute(HELD, {"role": role, "tables": list(RIGHTS)})}
        if held != wanted(role):
            _grant_tables(connection, role)
        for function, callers in FUNCTIONS.items():
            if connection.execute(_MAY_CALL, {"role": role, "function": function}).scalar_one() != (role in callers):
                grants = (
                    "GRANT EXECUTE ON FUNCTION {} TO {}" if role in callers else "REVOKE ALL ON FUNCTION {} FROM {}"
                )
                connection.execute(text(grants.format(function, role)))
        for table, rows in ROWS.items():
            _show_rows(connection, table, role, rows.get(role))


def _grant_tables(connection: Connection, role: str) -> None:
    connection.execute(text(f"REVOKE ALL ON {', '.join(RIGHTS)} FROM {role}"))
    for table, of_role in RIGHTS.items():
        if (rights := of_role.get(role)) is not None:
            connection.execute(text(f"GRANT {rights} ON {table} TO {role}"))


def _show_rows(connection: Connection, table: str, role: str, condition: str | None) -> None:
    """The policy's comment is its condition as it was written: Postgres keeps another text of it."""
    if connection.execute(_ROWS, {"role": role, "table": table}).scalar() == condition:
        return
    connection.execute(text(f"DROP POLICY IF EXISTS {role} ON {table}"))
    if condition is not None:
        connection.execute(text(f"CREATE POLICY {role} ON {table} TO {role} USING ({condition})"))
        quoted = condition.replace("'", "''")
        connection.execute(text(f"COMMENT ON POLICY {role} ON {table} IS '{quoted}'"))
