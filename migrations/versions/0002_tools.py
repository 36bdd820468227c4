"""Hosted tools: their steps in the log, and what the model was sent as results of its calls."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_COLUMNS = (
    ("chunks", "steps"),
    ("responses", "hidden"),
    ("responses", "messages"),
    ("conversation_items", "hidden"),
)


def upgrade() -> None:
    for table, column in _COLUMNS:
        op.add_column(table, sa.Column(column, postgresql.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    for table, column in _COLUMNS:
        op.drop_column(table, column)
