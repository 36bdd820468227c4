"""Drop uploads, files that several requests bring; a retry of a batch reads lines of the batch's own file.

What uploads brought so far goes; files that were made of them stay. So do the files of retries before: `lines` is null,
so such a retry has all lines of its file.
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import text

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_UP = """
UPDATE file_parts SET state = 'dropped', bytes = 0, upload_id = NULL WHERE upload_id IS NOT NULL;
ALTER TABLE file_parts DROP COLUMN upload_id;
ALTER TABLE file_parts ADD CONSTRAINT file_parts_dropped_counts_no_more CHECK (state <> 'dropped' OR bytes = 0);
DROP TABLE uploads;
ALTER TABLE batches ADD COLUMN lines INTEGER[];
CREATE OR REPLACE VIEW oldest_revision AS SELECT CAST('0012' AS text) AS revision
"""
# The table as version 0011 writes it, without what keeps rows from being wrong: it is empty, and goes again.
_DOWN = """
CREATE TABLE uploads (
    id TEXT PRIMARY KEY, project TEXT NOT NULL, filename TEXT NOT NULL, purpose TEXT NOT NULL, bytes BIGINT NOT NULL,
    expires_after_seconds INTEGER, status TEXT DEFAULT 'pending' NOT NULL, file_id TEXT,
    created_at TIMESTAMPTZ DEFAULT now() NOT NULL, expires_at TIMESTAMPTZ NOT NULL
);
ALTER TABLE batches DROP COLUMN lines;
ALTER TABLE file_parts ADD COLUMN upload_id TEXT REFERENCES uploads (id);
ALTER TABLE file_parts DROP CONSTRAINT file_parts_dropped_counts_no_more;
ALTER TABLE file_parts ADD CONSTRAINT file_parts_dropped_counts_no_more
    CHECK (state <> 'dropped' OR bytes = 0 AND upload_id IS NULL);
CREATE OR REPLACE VIEW oldest_revision AS SELECT CAST('0011' AS text) AS revision
"""


def upgrade() -> None:
    _run(_UP)


def downgrade() -> None:
    _run(_DOWN)


def _run(statements: str) -> None:
    for statement in statements.split(";"):
        op.execute(text(statement))
