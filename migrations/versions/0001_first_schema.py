"""The first schema: responses, their chunks, conversations, workers, keys."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "conversations",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("metadata", postgresql.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("conversations_pkey")),
    )
    op.create_table(
        "keys",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("keys_pkey")),
    )
    op.create_table(
        "responses",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("priority", sa.SmallInteger(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("background", sa.BOOLEAN(), nullable=False),
        sa.Column("stream", sa.BOOLEAN(), nullable=False),
        sa.Column("store", sa.BOOLEAN(), nullable=False),
        sa.Column("previous_response_id", sa.Text(), nullable=True),
        sa.Column("conversation_id", sa.Text(), nullable=True),
        sa.Column("request", postgresql.JSON(), nullable=False),
        sa.Column("attempt", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("crashes", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column(
            "output",
            postgresql.JSON(
                none_as_null=True,
            ),
            nullable=True,
        ),
        sa.Column(
            "usage",
            postgresql.JSON(
                none_as_null=True,
            ),
            nullable=True,
        ),
        sa.Column(
            "error",
            postgresql.JSON(
                none_as_null=True,
            ),
            nullable=True,
        ),
        sa.Column(
            "incomplete_details",
            postgresql.JSON(
                none_as_null=True,
            ),
            nullable=True,
        ),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("sent_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("sends", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("run_seconds", sa.Float(), nullable=True),
        sa.Column("queue_deadline", sa.DateTime(timezone=True), nullable=True),
        sa.Column("run_deadline", sa.DateTime(timezone=True), nullable=True),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("fingerprint", sa.LargeBinary(), nullable=True),
        sa.Column("log", sa.Text(), server_default=sa.text("'live'"), nullable=False),
        sa.CheckConstraint("(error IS NOT NULL) = (status = 'failed')", name=op.f("responses_error_when_failed")),
        sa.CheckConstraint(
            "(finished_at IS NOT NULL) = (status IN ('cancelled', 'completed', 'failed', 'incomplete'))",
            name=op.f("responses_finished_when_final"),
        ),
        sa.CheckConstraint(
            "(incomplete_details IS NOT NULL) = (status = 'incomplete')",
            name=op.f("responses_incomplete_details_when_incomplete"),
        ),
        sa.CheckConstraint(
            "(output IS NOT NULL) = (status IN ('cancelled', 'completed', 'failed', 'incomplete'))",
            name=op.f("responses_output_when_final"),
        ),
        sa.CheckConstraint("log = 'live' OR finished_at IS NOT NULL", name=op.f("responses_log_live_while_unfinished")),
        sa.CheckConstraint("log IN ('live', 'merged', 'deleted')", name=op.f("responses_log_known")),
        sa.CheckConstraint(
            "status <> 'in_progress' OR (started_at IS NOT NULL AND attempt > 0)",
            name=op.f("responses_in_progress_started"),
        ),
        sa.CheckConstraint(
            "status <> 'queued' OR (started_at IS NULL AND attempt = 0)", name=op.f("responses_queued_never_started")
        ),
        sa.CheckConstraint(
            "status IN ('cancelled', 'completed', 'failed', 'in_progress', 'incomplete', 'queued')",
            name=op.f("responses_status_known"),
        ),
        sa.CheckConstraint("worker IS NULL OR status = 'in_progress'", name=op.f("responses_worker_while_in_progress")),
        sa.CheckConstraint(
            "(idempotency_key IS NULL) = (fingerprint IS NULL)", name=op.f("responses_fingerprint_of_idempotent")
        ),
        sa.CheckConstraint("crashes >= 0 AND crashes <= attempt", name=op.f("responses_crashes_within_attempts")),
        sa.PrimaryKeyConstraint("id", name=op.f("responses_pkey")),
    )
    op.create_index(
        "responses_idempotency_key_idx",
        "responses",
        ["project", "idempotency_key"],
        unique=True,
        postgresql_where=sa.text("idempotency_key IS NOT NULL"),
    )
    op.create_index(
        "responses_live_log_idx",
        "responses",
        ["finished_at"],
        unique=False,
        postgresql_where=sa.text("finished_at IS NOT NULL AND log = 'live'"),
    )
    op.create_index(
        "responses_merged_log_idx",
        "responses",
        ["finished_at"],
        unique=False,
        postgresql_where=sa.text("log = 'merged'"),
    )
    op.create_index(
        "responses_queue_deadline_idx",
        "responses",
        ["queue_deadline"],
        unique=False,
        postgresql_where=sa.text("status = 'queued' AND queue_deadline IS NOT NULL"),
    )
    op.create_index(
        "responses_released_idx",
        "responses",
        ["created_at"],
        unique=False,
        postgresql_where=sa.text("status = 'in_progress' AND worker IS NULL"),
    )
    op.create_index(
        "responses_run_deadline_idx",
        "responses",
        ["run_deadline"],
        unique=False,
        postgresql_where=sa.text("status = 'in_progress' AND run_deadline IS NOT NULL"),
    )
    op.create_index(
        "responses_stored_idx",
        "responses",
        ["finished_at"],
        unique=False,
        postgresql_where=sa.text("finished_at IS NOT NULL AND store"),
    )
    op.create_index(
        "responses_unfinished_idx",
        "responses",
        ["created_at"],
        unique=False,
        postgresql_where=sa.text("status IN ('queued', 'in_progress')"),
    )
    op.create_index(
        "responses_unstored_idx",
        "responses",
        ["finished_at"],
        unique=False,
        postgresql_where=sa.text("finished_at IS NOT NULL AND NOT store"),
    )
    op.create_index(
        "responses_worker_idx", "responses", ["worker"], unique=False, postgresql_where=sa.text("worker IS NOT NULL")
    )
    op.create_table(
        "workers",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=False),
        sa.Column("absent_since", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("workers_pkey")),
    )
    op.create_table(
        "chunks",
        sa.Column("response_id", sa.Text(), nullable=False),
        sa.Column("first", sa.Integer(), nullable=False),
        sa.Column("last", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("final", sa.BOOLEAN(), nullable=False),
        sa.Column("tokens", sa.LargeBinary(), nullable=False),
        sa.Column("frames", sa.LargeBinary(), nullable=False),
        sa.Column("compressed", sa.BOOLEAN(), server_default=sa.text("false"), nullable=False),
        sa.CheckConstraint("first >= 0 AND last >= first", name=op.f("chunks_numbers_in_order")),
        sa.ForeignKeyConstraint(
            ["response_id"], ["responses.id"], name=op.f("chunks_response_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("response_id", "first", name=op.f("chunks_pkey")),
    )
    op.create_table(
        "conversation_items",
        sa.Column("conversation_id", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("position", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("item", postgresql.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["conversation_id"],
            ["conversations.id"],
            name=op.f("conversation_items_conversation_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("conversation_id", "id", name=op.f("conversation_items_pkey")),
    )
    op.create_index("conversation_items_id_idx", "conversation_items", ["id"], unique=False)
    op.create_index(
        "conversation_items_position_idx", "conversation_items", ["conversation_id", "position"], unique=True
    )


def downgrade() -> None:
    op.drop_index("conversation_items_position_idx", table_name="conversation_items")
    op.drop_index("conversation_items_id_idx", table_name="conversation_items")
    op.drop_table("conversation_items")
    op.drop_table("chunks")
    op.drop_table("workers")
    op.drop_index("responses_worker_idx", table_name="responses", postgresql_where=sa.text("worker IS NOT NULL"))
    op.drop_index(
        "responses_unstored_idx",
        table_name="responses",
        postgresql_where=sa.text("finished_at IS NOT NULL AND NOT store"),
    )
    op.drop_index(
        "responses_unfinished_idx",
        table_name="responses",
        postgresql_where=sa.text("status IN ('queued', 'in_progress')"),
    )
    op.drop_index(
        "responses_stored_idx", table_name="responses", postgresql_where=sa.text("finished_at IS NOT NULL AND store")
    )
    op.drop_index(
        "responses_run_deadline_idx",
        table_name="responses",
        postgresql_where=sa.text("status = 'in_progress' AND run_deadline IS NOT NULL"),
    )
    op.drop_index(
        "responses_released_idx",
        table_name="responses",
        postgresql_where=sa.text("status = 'in_progress' AND worker IS NULL"),
    )
    op.drop_index(
        "responses_queue_deadline_idx",
        table_name="responses",
        postgresql_where=sa.text("status = 'queued' AND queue_deadline IS NOT NULL"),
    )
    op.drop_index("responses_merged_log_idx", table_name="responses", postgresql_where=sa.text("log = 'merged'"))
    op.drop_index(
        "responses_live_log_idx",
        table_name="responses",
        postgresql_where=sa.text("finished_at IS NOT NULL AND log = 'live'"),
    )
    op.drop_index(
        "responses_idempotency_key_idx", table_name="responses", postgresql_where=sa.text("idempotency_key IS NOT NULL")
    )
    op.drop_table("responses")
    op.drop_table("keys")
    op.drop_table("conversations")
