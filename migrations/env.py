"""Alembic's entry: the connection comes from `app.store.migrate`, which also holds the lock."""

from alembic import context

from app.store.tables import metadata

connection = context.config.attributes.get("connection")
if connection is None:
    raise SystemExit("run `longhaul migrate`: it knows the database")
context.configure(connection=connection, target_metadata=metadata)
context.run_migrations()
