"""The outbox: what the world must be told is a row, written in the transaction that makes it true.

`event_id` is set by what ends a background response or a batch; lines of batches, and responses of the foreground, have
none. Two triggers write a delivery for each webhook endpoint that wants the event. A delivery has no foreign key: its
response may be deleted in the same transaction, and an endpoint that is being deleted must fail no ending. What an
erasure ends tells nobody.
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import text

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

_TABLES = """
CREATE TABLE webhook_endpoints (
    id TEXT NOT NULL,
    project TEXT NOT NULL,
    name TEXT NOT NULL,
    url TEXT NOT NULL,
    event_types TEXT[] NOT NULL,
    secret TEXT NOT NULL,
    secret_hint TEXT NOT NULL,
    old_secret TEXT,
    old_secret_until TIMESTAMPTZ,
    created_at TIMESTAMPTZ DEFAULT now() NOT NULL,
    updated_at TIMESTAMPTZ DEFAULT now() NOT NULL,
    failing_since TIMESTAMPTZ,
    disabled_at TIMESTAMPTZ,
    disabled_reason TEXT,
    CONSTRAINT webhook_endpoints_pkey PRIMARY KEY (id),
    CONSTRAINT webhook_endpoints_old_secret_ends CHECK ((old_secret IS NULL) = (old_secret_until IS NULL)),
    CONSTRAINT webhook_endpoints_reason_known CHECK (disabled_reason IN ('requested', 'gone', 'failing')),
    CONSTRAINT webhook_endpoints_reason_if_disabled CHECK ((disabled_at IS NULL) = (disabled_reason IS NULL)),
    CONSTRAINT webhook_endpoints_project_fkey FOREIGN KEY (project) REFERENCES projects (id)
);
CREATE INDEX webhook_endpoints_project_idx ON webhook_endpoints (project, created_at, id);

CREATE TABLE webhook_deliveries (
    endpoint TEXT NOT NULL,
    event_id TEXT COLLATE "C" NOT NULL,
    project TEXT NOT NULL,
    type TEXT NOT NULL,
    object_id TEXT NOT NULL,
    body TEXT NOT NULL,
    status TEXT DEFAULT 'pending' NOT NULL,
    created_at TIMESTAMPTZ DEFAULT now() NOT NULL,
    due_at TIMESTAMPTZ DEFAULT now(),
    sent_at TIMESTAMPTZ,
    ended_at TIMESTAMPTZ,
    tries INTEGER DEFAULT 0 NOT NULL,
    attempts JSONB DEFAULT '[]' NOT NULL,
    CONSTRAINT webhook_deliveries_pkey PRIMARY KEY (endpoint, event_id),
    CONSTRAINT webhook_deliveries_status_known CHECK (status IN ('pending', 'delivered', 'failed')),
    CONSTRAINT webhook_deliveries_due_while_pending CHECK ((due_at IS NOT NULL) = (status = 'pending')),
    CONSTRAINT webhook_deliveries_ended_unless_pending CHECK ((ended_at IS NULL) = (status = 'pending'))
) WITH (autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX webhook_deliveries_due_idx ON webhook_deliveries (endpoint, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX webhook_deliveries_sent_idx ON webhook_deliveries (endpoint) WHERE sent_at IS NOT NULL;
CREATE INDEX webhook_deliveries_created_idx ON webhook_deliveries (created_at);

ALTER TABLE responses ADD COLUMN event_id TEXT COLLATE "C";
CREATE INDEX responses_events_idx ON responses (project, event_id) WHERE event_id IS NOT NULL AND log <> 'deleted';
ALTER TABLE batches ADD COLUMN event_id TEXT COLLATE "C";
CREATE INDEX batches_events_idx ON batches (project, event_id) WHERE event_id IS NOT NULL
"""

_TELL = """
    CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = {schema}, pg_temp AS $$
    BEGIN
        INSERT INTO webhook_deliveries (endpoint, event_id, project, type, object_id, body)
        SELECT e.id, NEW.event_id, NEW.project, '{kind}.' || NEW.status, NEW.id,
            format('{{"id":"%s","object":"event","created_at":%s,"type":"{kind}.%s","data":{{"id":"%s"}}}}',
                NEW.event_id, floor(extract(epoch FROM {at})), NEW.status, NEW.id)
        FROM webhook_endpoints e JOIN projects p ON p.id = e.project
        WHERE e.project = NEW.project AND e.disabled_at IS NULL AND '{kind}.' || NEW.status = ANY(e.event_types)
            AND (p.erase_at IS NULL OR p.erase_at <= NEW.{made_at});
        RETURN NULL;
    END $$
"""
_TRIGGERS = (
    """
    CREATE TRIGGER responses_tell AFTER UPDATE OF status ON responses FOR EACH ROW
    WHEN (OLD.finished_at IS NULL AND NEW.finished_at IS NOT NULL AND NEW.event_id IS NOT NULL)
    EXECUTE FUNCTION tell_of_response()
    """,
    """
    CREATE TRIGGER batches_tell AFTER UPDATE OF status ON batches FOR EACH ROW
    WHEN (OLD.event_id IS NULL AND NEW.event_id IS NOT NULL)
    EXECUTE FUNCTION tell_of_batch()
    """,
)


def upgrade() -> None:
    schema = op.get_bind().execute(text("SELECT quote_ident(current_schema())")).scalar_one()
    for statement in _TABLES.split(";\n"):
        op.execute(statement)
    told = {"kind": "response", "at": "NEW.finished_at", "made_at": "inserted_at"}
    op.execute(_TELL.format(name="tell_of_response", schema=schema, **told))
    told = {"kind": "batch", "at": "now()", "made_at": "created_at"}
    op.execute(_TELL.format(name="tell_of_batch", schema=schema, **told))
    op.execute("REVOKE ALL ON FUNCTION tell_of_response(), tell_of_batch() FROM PUBLIC")
    for trigger in _TRIGGERS:
        op.execute(trigger)


def downgrade() -> None:
    op.execute("DROP FUNCTION tell_of_response(), tell_of_batch() CASCADE")
    op.execute("DROP TABLE webhook_deliveries, webhook_endpoints")
    op.execute("ALTER TABLE responses DROP COLUMN event_id")
    op.execute("ALTER TABLE batches DROP COLUMN event_id")
