"""Add `responses.format` and `workers.format`, and what lets processes of two versions work side by side.

Processes of 0.2 know no formats. They insert rows without one, which get format 1, and their claims do not look at it.
So a trigger skips an update that claims a row of a later format, unless the statement says that it knows formats: it
sets `longhaul.format` (in claims.py). To the old worker the row looks like one that another worker has.

The view names the oldest revision whose processes still work with this schema. A later migration that takes something
away replaces the view.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_TABLES = ("responses", "workers")


def upgrade() -> None:
    for table in _TABLES:
        op.add_column(table, sa.Column("format", sa.SmallInteger(), server_default=sa.text("1"), nullable=False))
    op.execute(
        "CREATE FUNCTION skip_row() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$",
    )
    op.execute(
        """
        CREATE TRIGGER responses_claim_without_format BEFORE UPDATE OF attempt ON responses FOR EACH ROW
        WHEN (OLD.format > 1 AND coalesce(current_setting('longhaul.format', true), '') = '')
        EXECUTE FUNCTION skip_row()
        """
    )
    op.execute("CREATE VIEW oldest_revision AS SELECT CAST('0003' AS text) AS revision")


def downgrade() -> None:
    op.execute("DROP VIEW oldest_revision")
    op.execute("DROP TRIGGER responses_claim_without_format ON responses")
    op.execute("DROP FUNCTION skip_row()")
    for table in _TABLES:
        op.drop_column(table, "format")
