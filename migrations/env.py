"""Alembic's entry point. The connection comes from `app.store.migrate`, which holds the migration lock."""

from alembic import context

connection = context.config.attributes.get("connection")
if connection is None:
    raise SystemExit("run `longhaul migrate` instead: it connects Alembic to the database")
context.configure(connection=connection)
context.run_migrations()
