"""The next version of this code, for tests of upgrades: it has one migration, one column and one row layout more."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from app.store.layout import LAYOUT
from app.store.migrate import head
from config.settings import CHECKOUT

NEXT_LAYOUT = LAYOUT + 1
NEXT_REVISION = f"{int(head()) + 1:04}"
COLUMN = "claimed_by_next"
"""A column of `responses` that only claims of the next version set."""
_MIGRATION = f'''"""Add `responses.{COLUMN}`."""

import sqlalchemy as sa
from alembic import op

revision = "{NEXT_REVISION}"
down_revision = "{head()}"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("responses", sa.Column("{COLUMN}", sa.Boolean(), server_default=sa.false(), nullable=False))


def downgrade() -> None:
    op.drop_column("responses", "{COLUMN}")
'''
_CHANGES = (
    ("app/store/layout.py", f"LAYOUT = {LAYOUT}\n", f"LAYOUT = {NEXT_LAYOUT}\n"),
    ("app/store/responses/claims.py", "layout = {LAYOUT},\n", f"layout = {{LAYOUT}}, {COLUMN} = true,\n"),
)


def write(folder: Path, names: Sequence[str]) -> None:
    """Writes these folders of the checkout into `folder`, as the next version has them."""
    for name in names:
        shutil.copytree(CHECKOUT / name, folder / name)
    add_migration(folder / "migrations")
    for file, old, new in _CHANGES:
        path = folder / file
        code = path.read_text(encoding="utf-8")
        assert code.count(old) == 1, f"{file} has no single {old!r}: change it here, too"
        path.write_text(code.replace(old, new), encoding="utf-8")


def add_migration(migrations: Path) -> None:
    """Adds the next version's migration to a copy of `migrations`."""
    (migrations / "versions" / f"{NEXT_REVISION}_next.py").write_text(_MIGRATION, encoding="utf-8")
