"""All checks of an installation, as one process of it sees it: with the settings that this command has."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable

from app.local.commands.doctor import machine, postgres, redis
from app.local.commands.doctor.finding import Findings, fail, of_error
from app.local.home import with_running_services
from app.protocol.text import type_and_places
from config.models import ModelCatalog, load_models
from config.settings import ConfigError, load_settings


async def check() -> Findings:
    """Everything that was found, in the order in which one would mend it. Changes nothing."""
    try:
        given = load_settings()
    except ConfigError as error:
        return [of_error("settings", error, "docs/settings.md says what it may be; the rest was not looked at")]
    settings = with_running_services(given)
    is_embedded = settings.database_url != given.database_url
    catalog: ModelCatalog | None = None
    found: Findings = []
    try:
        catalog = load_models(settings.models)
    except ConfigError as error:
        found = [of_error("models file", error, "docs/models-file.md; no process starts like this")]
    looks = {
        "Postgres": postgres.check(settings, is_embedded=is_embedded),
        "monitor's role": postgres.check_monitor(settings),
        "Redis": redis.check(settings),
        "machine": asyncio.to_thread(lambda: list(machine.check(settings, catalog, os.environ))),
    }
    seen = await asyncio.gather(*(_whatever_happens(name, look) for name, look in looks.items()))
    return [*found, *(each for some in seen for each in some)]


async def _whatever_happens(name: str, look: Awaitable[Findings]) -> Findings:
    """One look that goes wrong must not hide what the others find."""
    try:
        return await look
    except Exception as error:
        return [fail(name, f"the look at it went wrong: {type_and_places(error)}", "this is a bug of Longhaul's")]
