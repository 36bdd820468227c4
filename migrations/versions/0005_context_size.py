"""Add what bounds contexts: length and bytes of a chain in `responses`, and the bytes of a conversation's items.

Processes of the version before insert rows without them; whoever needs them counts those rows.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_COLUMNS = (
    ("responses", "chain_length", sa.Integer),
    ("responses", "context_bytes", sa.BigInteger),
    ("conversation_items", "bytes", sa.Integer),
)


def upgrade() -> None:
    for table, column, kind in _COLUMNS:
        op.add_column(table, sa.Column(column, kind(), nullable=True))


def downgrade() -> None:
    for table, column, _ in _COLUMNS:
        op.drop_column(table, column)
