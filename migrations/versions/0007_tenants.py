"""Add projects and API keys.

Every response and conversation names its project already. Processes of the version before know the project `default`
alone and ask for no key, so these tables change nothing for them.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "projects",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("models", postgresql.ARRAY(sa.Text()), nullable=True),
        sa.Column("tool_servers", postgresql.ARRAY(sa.Text()), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("archived_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("projects_pkey")),
        sa.CheckConstraint("archived_at IS NULL OR id <> 'default'", name=op.f("projects_default_stays")),
    )
    op.execute("INSERT INTO projects (id, name, created_at) VALUES ('default', 'default', now())")
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("shown", sa.Text(), nullable=False),
        sa.Column("scopes", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("api_keys_pkey")),
        sa.ForeignKeyConstraint(["project"], ["projects.id"], name=op.f("api_keys_project_fkey")),
        sa.CheckConstraint("octet_length(hash) = 32", name=op.f("api_keys_hash_is_sha256")),
        sa.CheckConstraint(
            "(project IS NULL) = (scopes && ARRAY['admin', 'operator'])",
            name=op.f("api_keys_operators_have_no_project"),
        ),
    )
    op.create_index("api_keys_hash_idx", "api_keys", ["hash"], unique=True)
    op.create_index("api_keys_project_idx", "api_keys", ["project"])


def downgrade() -> None:
    op.drop_table("api_keys")
    op.drop_table("projects")
