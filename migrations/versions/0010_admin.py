"""Add service accounts, the audit log, and what a project is denied.

Processes of the version before know nothing of projects and keys, so all this changes nothing for them.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def _names(name: str) -> sa.Column[object]:
    return sa.Column(name, postgresql.ARRAY(sa.Text()), server_default=sa.text("'{}'"), nullable=False)


def upgrade() -> None:
    op.add_column("projects", _names("denied_models"))
    op.add_column("projects", _names("denied_tools"))
    op.create_check_constraint(op.f("projects_allow_or_deny"), "projects", "models IS NULL OR denied_models = '{}'")
    op.create_index("projects_created_idx", "projects", ["created_at", "id"])
    op.create_table(
        "service_accounts",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("service_accounts_pkey")),
        sa.ForeignKeyConstraint(["project"], ["projects.id"], name=op.f("service_accounts_project_fkey")),
        sa.CheckConstraint("role IN ('member', 'none')", name=op.f("service_accounts_role_known")),
    )
    op.create_index("service_accounts_project_idx", "service_accounts", ["project", "created_at", "id"])
    _add_owner()
    op.create_table(
        "audit_logs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("effective_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=True),
        sa.Column("project", sa.Text(), nullable=True),
        sa.Column("resource", sa.Text(), nullable=False),
        sa.Column("details", postgresql.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("audit_logs_pkey")),
    )
    op.create_index("audit_logs_time_idx", "audit_logs", ["effective_at", "id"])
    op.create_index("audit_logs_project_idx", "audit_logs", ["project", "effective_at", "id"])


def _add_owner() -> None:
    op.add_column("api_keys", sa.Column("service_account", sa.Text(), nullable=True))
    op.create_foreign_key(
        op.f("api_keys_service_account_fkey"), "api_keys", "service_accounts", ["service_account"], ["id"]
    )
    op.create_check_constraint(
        op.f("api_keys_accounts_are_of_projects"), "api_keys", "service_account IS NULL OR project IS NOT NULL"
    )
    op.create_index(
        "api_keys_account_idx",
        "api_keys",
        ["service_account"],
        postgresql_where=sa.text("service_account IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_table("audit_logs")
    op.drop_index("api_keys_account_idx", "api_keys")
    op.drop_constraint(op.f("api_keys_accounts_are_of_projects"), "api_keys")
    op.drop_constraint(op.f("api_keys_service_account_fkey"), "api_keys")
    op.drop_column("api_keys", "service_account")
    op.drop_table("service_accounts")
    op.drop_index("projects_created_idx", "projects")
    op.drop_constraint(op.f("projects_allow_or_deny"), "projects")
    op.drop_column("projects", "denied_tools")
    op.drop_column("projects", "denied_models")
