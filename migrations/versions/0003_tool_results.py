"""Rename the columns `hidden` to `tool_results`: they hold the results of hosted tools."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_TABLES = ("responses", "conversation_items")


def upgrade() -> None:
    for table in _TABLES:
        op.alter_column(table, "hidden", new_column_name="tool_results")


def downgrade() -> None:
    for table in _TABLES:
        op.alter_column(table, "tool_results", new_column_name="hidden")
