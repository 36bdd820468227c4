"""Add what a fair queue needs: costs of responses, tags of flows, weights of projects, slots of workers.

Processes of the version before insert responses as sent and without a cost, so nothing of theirs waits for a dispatch.
The tables and the indexes of what waits are new, and those processes write to neither. They read what is unfinished
without an index from here on: with old statistics Postgres would prefer that index to the ones of the queue.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("responses", sa.Column("cost", sa.Integer(), nullable=True))
    op.add_column("responses", sa.Column("charged", sa.Integer(), nullable=True))
    op.add_column("workers", sa.Column("slots", sa.Integer(), nullable=True))
    op.create_index(
        "responses_waiting_idx",
        "responses",
        ["queue", "project", "priority", "created_at"],
        postgresql_where=sa.text("status = 'queued' AND sent_at IS NULL"),
    )
    op.create_index(
        "responses_sent_idx",
        "responses",
        ["queue", "priority"],
        postgresql_where=sa.text("status = 'queued' AND sent_at IS NOT NULL"),
    )
    op.drop_index("responses_unfinished_idx", table_name="responses")
    op.create_table(
        "queues",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("virtual_time", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("queues_pkey")),
    )
    op.create_table(
        "flows",
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("priority", sa.SmallInteger(), nullable=False),
        sa.Column("tag", sa.Double(), nullable=False),
        sa.Column("scale", sa.Double(), server_default=sa.text("1"), nullable=False),
        sa.PrimaryKeyConstraint("queue", "project", "priority", name=op.f("flows_pkey")),
    )
    op.add_column("projects", sa.Column("weight", sa.Double(), server_default=sa.text("1"), nullable=False))
    op.create_check_constraint(op.f("projects_weight_in_bounds"), "projects", "weight BETWEEN 0.001 AND 1000")


def downgrade() -> None:
    op.drop_constraint(op.f("projects_weight_in_bounds"), "projects")
    op.drop_column("projects", "weight")
    for table in ("flows", "queues"):
        op.drop_table(table)
    op.create_index(
        "responses_unfinished_idx",
        "responses",
        ["created_at"],
        postgresql_where=sa.text("status IN ('queued', 'in_progress')"),
    )
    op.drop_index("responses_sent_idx", table_name="responses")
    op.drop_index("responses_waiting_idx", table_name="responses")
    op.drop_column("workers", "slots")
    op.drop_column("responses", "charged")
    op.drop_column("responses", "cost")
