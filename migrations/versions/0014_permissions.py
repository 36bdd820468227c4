"""What a project may use is two lists, and a service account is what its keys carry.

A project to which some kinds of hosted tool were denied may use no MCP server until an operator permits it some: the
models file says which server runs which kind, and a migration does not read it.
"""

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_UP = """
UPDATE projects SET
    models = CASE WHEN models IS NULL
        THEN ARRAY['*'] || ARRAY(SELECT '!' || name FROM unnest(denied_models) AS name ORDER BY name) ELSE models END,
    tool_servers = CASE WHEN denied_tools <> '{}' THEN '{}' ELSE coalesce(tool_servers, '{*}') END;
ALTER TABLE projects DROP COLUMN denied_models, DROP COLUMN denied_tools,
    ALTER COLUMN models SET DEFAULT '{*}', ALTER COLUMN models SET NOT NULL,
    ALTER COLUMN tool_servers SET DEFAULT '{*}', ALTER COLUMN tool_servers SET NOT NULL;
ALTER TABLE api_keys DROP CONSTRAINT api_keys_service_account_fkey;
DROP TABLE service_accounts;
CREATE OR REPLACE VIEW oldest_revision AS SELECT CAST('0014' AS text) AS revision
"""
# As version 0013 has them. Its service accounts are gone; its lists keep what they allow by name.
_DOWN = """
CREATE TABLE service_accounts (
    id TEXT PRIMARY KEY, project TEXT NOT NULL, name TEXT NOT NULL, role TEXT NOT NULL, created_at TIMESTAMPTZ NOT NULL,
    deleted_at TIMESTAMPTZ
);
UPDATE api_keys SET service_account = NULL;
ALTER TABLE api_keys ADD CONSTRAINT api_keys_service_account_fkey
    FOREIGN KEY (service_account) REFERENCES service_accounts (id);
ALTER TABLE projects ADD COLUMN denied_models TEXT[] DEFAULT '{}' NOT NULL,
    ADD COLUMN denied_tools TEXT[] DEFAULT '{}' NOT NULL,
    ALTER COLUMN models DROP NOT NULL, ALTER COLUMN models DROP DEFAULT,
    ALTER COLUMN tool_servers DROP NOT NULL, ALTER COLUMN tool_servers DROP DEFAULT;
UPDATE projects SET models = nullif(models, '{*}'), tool_servers = nullif(tool_servers, '{*}');
CREATE OR REPLACE VIEW oldest_revision AS SELECT CAST('0013' AS text) AS revision
"""


def upgrade() -> None:
    for statement in _UP.split(";\n"):
        op.execute(statement)


def downgrade() -> None:
    for statement in _DOWN.split(";\n"):
        op.execute(statement)
