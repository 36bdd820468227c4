"""All checks of an installation, as one process of it sees it: with the settings that this command has."""

from __future__ import annotations

import asyncio
import os

from app.local.doctor import machine, postgres, redis
from app.local.doctor.finding import Findings, of_error
from app.local.home import with_running_services
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
    served = [] if catalog is None else [model.name for model in catalog.models]
    looks = await asyncio.gather(
        postgres.check(settings, served, is_embedded=is_embedded),
        postgres.check_monitor(settings),
        redis.check(settings),
    )
    of_machine = await asyncio.to_thread(lambda: list(machine.check(settings, catalog, os.environ)))
    return [*found, *(each for look in looks for each in look), *of_machine]
