"""Add limits of projects, what they have reserved, and the ledger of usage.

A trigger settles: it notes that a response left the queue, and what an ended response used. So every ending settles,
whoever makes it: a worker, a cancel, maintenance, a process of the version before. The notes are plain inserts. They
lock nothing that others wait for; app/store/tenants/limits.py and app/store/tenants/usage.py add them up.

Tokens of a response that ran and ended without a usage are counted in its log, four bytes each. Priority 0 is the
server's own work: counting tokens, which uses none.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def _time(name: str) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=False)


def _count(name: str) -> sa.Column[object]:
    return sa.Column(name, sa.BigInteger(), nullable=False)


def upgrade() -> None:
    op.add_column("projects", sa.Column("top_tier", sa.Text(), nullable=False, server_default="priority"))
    op.create_check_constraint(
        op.f("projects_top_tier_known"), "projects", "top_tier IN ('flex', 'default', 'priority')"
    )
    op.execute("UPDATE projects SET top_tier = 'default' WHERE id <> 'default'")
    op.add_column("responses", sa.Column("key_id", sa.Text(), nullable=True))
    op.add_column("responses", sa.Column("reserved_at", sa.DateTime(timezone=True), nullable=True))
    for name in ("reserved_input", "reserved_output", "reserved_bytes"):
        op.add_column("responses", sa.Column(name, sa.BigInteger(), nullable=True))
    _create_limits()
    _create_usage()
    _create_triggers()


def _create_limits() -> None:
    op.create_table(
        "limits",
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        _count("value"),
        _time("since"),
        sa.Column("used", sa.Double(), nullable=False, server_default=sa.text("0")),
        sa.Column("drained_per_second", sa.Double(), nullable=False, server_default=sa.text("0")),
        _time("as_of"),
        sa.PrimaryKeyConstraint("project", "model", "kind", name=op.f("limits_pkey")),
        sa.ForeignKeyConstraint(["project"], ["projects.id"], name=op.f("limits_project_fkey")),
        sa.CheckConstraint("value > 0", name=op.f("limits_value_positive")),
        sa.CheckConstraint("used >= 0", name=op.f("limits_used_not_negative")),
    )
    op.create_table(
        "settlements",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        _time("reserved_at"),
        _time("at"),
        sa.Column("left_queue", sa.Boolean(), nullable=False),
        sa.Column("ended", sa.Boolean(), nullable=False),
        _count("bytes"),
        _count("unused_tokens"),
        sa.PrimaryKeyConstraint("id", name=op.f("settlements_pkey")),
    )
    op.create_index("settlements_project_idx", "settlements", ["project"])


def _create_usage() -> None:
    counts = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
    op.create_table(
        "usage_entries",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=True),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("tier", sa.Text(), nullable=False),
        _time("at"),
        *map(_count, counts),
        sa.PrimaryKeyConstraint("id", name=op.f("usage_entries_pkey")),
    )
    op.create_table(
        "usage",
        _time("minute"),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("tier", sa.Text(), nullable=False),
        _count("requests"),
        *map(_count, counts),
        sa.PrimaryKeyConstraint("minute", "project", "key_id", "model", "tier", name=op.f("usage_pkey")),
    )


def _create_triggers() -> None:
    op.execute(
        """
        CREATE FUNCTION settle_response() RETURNS trigger LANGUAGE plpgsql AS $$
        DECLARE
            has_ended boolean := NEW.finished_at IS NOT NULL;
            input bigint := coalesce(CAST(NEW.usage->>'input_tokens' AS bigint), 0);
            output bigint := coalesce(CAST(NEW.usage->>'output_tokens' AS bigint), 0);
            unused bigint := 0;
        BEGIN
            IF NEW.reserved_at IS NOT NULL THEN
                IF has_ended AND OLD.status = 'queued' THEN
                    unused := NEW.reserved_input + NEW.reserved_output;
                ELSIF has_ended AND NEW.priority = 0 THEN
                    unused := 0;
                ELSIF has_ended AND NEW.usage IS NOT NULL THEN
                    unused := NEW.reserved_input + NEW.reserved_output - input - output;
                ELSIF has_ended THEN
                    unused := NEW.reserved_output - (
                        SELECT coalesce(sum(octet_length(tokens)), 0) / 4 FROM chunks WHERE response_id = NEW.id);
                END IF;
                INSERT INTO settlements
                    (project, model, reserved_at, at, left_queue, ended, bytes, unused_tokens)
                VALUES (NEW.project, NEW.model, NEW.reserved_at, clock_timestamp(), OLD.status = 'queued', has_ended,
                    NEW.reserved_bytes, unused);
            END IF;
            IF has_ended AND NEW.usage IS NOT NULL AND NEW.priority > 0 THEN
                INSERT INTO usage_entries
                    (project, key_id, model, tier, at, input_tokens, cached_tokens, output_tokens, reasoning_tokens)
                VALUES (NEW.project, NEW.key_id, NEW.model,
                    CASE WHEN NEW.priority IN (1, 2) THEN 'priority' WHEN NEW.priority >= 8 THEN 'flex'
                        ELSE 'default' END,
                    clock_timestamp(), input,
                    coalesce(CAST(NEW.usage->'input_tokens_details'->>'cached_tokens' AS bigint), 0), output,
                    coalesce(CAST(NEW.usage->'output_tokens_details'->>'reasoning_tokens' AS bigint), 0));
            END IF;
            RETURN NULL;
        END $$
        """
    )
    op.execute(
        """
        CREATE TRIGGER responses_settle AFTER UPDATE OF status ON responses FOR EACH ROW
        WHEN (OLD.finished_at IS NULL AND (NEW.finished_at IS NOT NULL AND
                (NEW.usage IS NOT NULL OR NEW.reserved_at IS NOT NULL)
            OR OLD.status = 'queued' AND NEW.status <> 'queued' AND NEW.reserved_at IS NOT NULL))
        EXECUTE FUNCTION settle_response()
        """
    )


def downgrade() -> None:
    op.execute("DROP TRIGGER responses_settle ON responses")
    op.execute("DROP FUNCTION settle_response()")
    for table in ("usage", "usage_entries", "settlements", "limits"):
        op.drop_table(table)
    for name in ("reserved_bytes", "reserved_output", "reserved_input", "reserved_at", "key_id"):
        op.drop_column("responses", name)
    op.drop_constraint(op.f("projects_top_tier_known"), "projects")
    op.drop_column("projects", "top_tier")
