"""Add `workers.context_length`: what `GET /v1/models` shows of a model whose entry in models.toml has none.

Workers of the version before insert rows without it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("workers", sa.Column("context_length", sa.Integer(), nullable=True))


def downgrade() -> None:
    op.drop_column("workers", "context_length")
