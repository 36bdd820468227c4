"""Counts of tokens are no responses any more: there is no priority 0.

Those that the version before has made end as foreground responses, until retention deletes them.
"""

from alembic import op
from sqlalchemy import text

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_CHECK = """
    ALTER TABLE responses DROP CONSTRAINT responses_priority_known,
        ADD CONSTRAINT responses_priority_known CHECK (priority IN ({}))
"""
_FUNCTION = "SELECT pg_get_functiondef(CAST('settle_response' AS regproc))"
_VIEW = "SELECT 'CREATE OR REPLACE VIEW worker_loads AS ' || pg_get_viewdef(CAST('worker_loads' AS regclass))"
# What set the priority 0 apart, as Postgres writes it.
_APART = {
    _FUNCTION: (" AND (OLD.status = 'queued' OR NEW.priority > 0)", " AND NEW.priority > 0"),
    _VIEW: (" AND (r.priority > 0)", " AND r.priority > 0"),
}
_OLDEST = "CREATE OR REPLACE VIEW oldest_revision AS SELECT CAST('{}' AS text) AS revision"


def upgrade() -> None:
    op.execute("UPDATE responses SET priority = 3 WHERE priority = 0")
    op.execute(_CHECK.format("1, 2, 3, 6, 8, 9, 10"))
    for definition, conditions in _APART.items():
        statement = op.get_bind().execute(text(definition)).scalar_one()
        for condition in conditions:
            statement = statement.replace(condition, "")
        op.execute(statement)
    op.execute(_OLDEST.format("0013"))


def downgrade() -> None:
    """The version before works with the function and the view as they are."""
    op.execute(_CHECK.format("0, 1, 2, 3, 6, 8, 9, 10"))
    op.execute(_OLDEST.format("0012"))
