"""`longhaul tools browser`: chooses its back end, then serves."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from concurrent.futures import ThreadPoolExecutor

from app.fetching.egress import EgressPolicy
from app.fetching.fetcher import Fetcher
from workers.toolservers.browser.backends.exa import URL as EXA_URL
from workers.toolservers.browser.backends.exa import Exa
from workers.toolservers.browser.backends.folder import Folder
from workers.toolservers.browser.backends.searxng import Searxng
from workers.toolservers.browser.pages import Backend
from workers.toolservers.browser.server import CALLS_AT_ONCE, build_server
from workers.toolservers.browser.settings import BrowserSettings
from workers.toolservers.serving import run, serve
from workers.toolservers.settings import StartError

log = logging.getLogger("longhaul.tools.browser")

EXA_KEY = "EXA_API_KEY"


def backend_of(settings: BrowserSettings) -> Backend:
    """The back end that the settings choose. Raises StartError if a secret is missing."""
    if settings.backend == "folder":
        assert settings.folder is not None
        return Folder(settings.folder, settings.max_page_bytes, settings.max_page_characters)
    if settings.backend == "exa":
        if not (key := os.environ.get(EXA_KEY)):
            raise StartError(f"{EXA_KEY}: is not set, and --backend exa needs it")
        return Exa(key, settings.seconds, settings.url or EXA_URL)
    assert settings.url is not None
    egress = EgressPolicy(settings.allow_network, frozenset(settings.ports))
    fetcher = Fetcher(lambda host, port: egress, settings.max_page_bytes, settings.seconds)
    return Searxng(settings.url, settings.seconds, fetcher)


async def serve_browser(settings: BrowserSettings) -> None:
    """Serves until SIGTERM, SIGINT or the end of stdin. Raises StartError."""
    backend = backend_of(settings)
    if isinstance(backend, Folder):
        log.info("%s pages in the folder", await asyncio.to_thread(backend.refresh))
    # Enough threads that slow DNS look-ups do not keep other pages from being read.
    threads = ThreadPoolExecutor(2 * CALLS_AT_ONCE, "browser")
    asyncio.get_running_loop().set_default_executor(threads)
    await serve(build_server(backend, settings.limits()), settings, settings.max_sessions)


if __name__ == "__main__":
    sys.exit(run(BrowserSettings, serve_browser))
