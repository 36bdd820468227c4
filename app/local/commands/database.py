"""The database of the installation, for one command."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import typer

from app.access.changes import AdministrationError
from app.access.new_keys import create_first_key, create_given_key
from app.local.errors import LocalError
from app.local.home import Home
from app.store.database import Database, StoreBusy, StoreUnavailable
from config.settings import ConfigError, Settings


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[Database]:
    """Opens the database until the block ends. Raises ConfigError, and LocalError without Postgres."""
    db = Database(settings.database_dsn, 2)
    try:
        yield db
    except StoreBusy as error:
        raise LocalError(f"DATABASE_URL: other transactions hold the tables ({error}); try again later") from None
    except StoreUnavailable as error:
        raise LocalError(f"DATABASE_URL: Postgres cannot be reached ({error})") from None
    finally:
        await db.close()


async def make_first_key(db: Database, settings: Settings) -> None:
    """Makes the admin key that the operator gives, or else one of its own unless one works.

    Raises ConfigError and LocalError.
    """
    if settings.admin_key is None:
        home = Home.prepare(settings.home)
        if await create_first_key(db, home.keep_admin_key):
            typer.echo(f"the first admin key lies in {home.admin_key_file}")
        return
    try:
        if await create_given_key(db, settings.admin_key):
            typer.echo("the key in LONGHAUL_ADMIN_KEY is an admin key now")
    except AdministrationError as error:
        raise ConfigError(f"LONGHAUL_ADMIN_KEY: {error}") from None
