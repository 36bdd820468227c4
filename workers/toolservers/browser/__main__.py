"""`longhaul tools browser`: reads its options, then serves. Exit status 78 means a wrong option or variable."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import sys
from concurrent.futures import ThreadPoolExecutor

from workers.toolservers.browser.backends.exa import URL as EXA_URL
from workers.toolservers.browser.backends.exa import Exa
from workers.toolservers.browser.backends.folder import Folder
from workers.toolservers.browser.backends.searxng import Searxng
from workers.toolservers.browser.browser import Limits
from workers.toolservers.browser.fetching.egress import EgressPolicy
from workers.toolservers.browser.fetching.fetcher import Fetcher, FetchLimits
from workers.toolservers.browser.pages import Backend
from workers.toolservers.browser.server import build_server
from workers.toolservers.browser.settings import BrowserSettings
from workers.toolservers.serving import (
    Endpoint,
    ServingError,
    log_to_stderr,
    serve_http,
    serve_stdio,
    token_of_environment,
)
from workers.toolservers.settings import load

log = logging.getLogger("longhaul.tools.browser")

EXA_KEY = "EXA_API_KEY"


def backend_of(settings: BrowserSettings) -> Backend:
    """The back end that the settings choose. Raises ServingError if a secret is missing."""
    if settings.backend == "folder":
        assert settings.folder is not None
        return Folder(settings.folder, settings.max_page_bytes, settings.max_page_characters)
    if settings.backend == "exa":
        if not (key := os.environ.get(EXA_KEY)):
            raise ServingError(f"{EXA_KEY}: is not set, and --backend exa needs it")
        return Exa(key, settings.seconds, settings.url or EXA_URL)
    assert settings.url is not None
    networks = tuple(ipaddress.ip_network(network) for network in settings.allow_network)
    egress = EgressPolicy(settings.allow_private, networks, frozenset(int(port) for port in settings.ports))
    limits = FetchLimits(settings.max_page_bytes, settings.max_redirects, settings.seconds)
    return Searxng(settings.url, settings.seconds, Fetcher(egress, limits))


async def serve(settings: BrowserSettings) -> None:
    """Serves until SIGTERM, SIGINT or the end of stdin. Raises ServingError."""
    limits = Limits(
        settings.seconds,
        settings.max_results,
        settings.max_pages,
        settings.max_page_characters,
        settings.view_bytes,
    )
    backend = backend_of(settings)
    if isinstance(backend, Folder):
        log.info("%s pages in the folder", await asyncio.to_thread(backend.refresh))
    server = build_server(backend, limits, settings.max_calls)
    # Enough threads that slow DNS look-ups do not keep other pages from being read.
    threads = ThreadPoolExecutor(2 * settings.max_calls, "browser")
    asyncio.get_running_loop().set_default_executor(threads)
    if settings.stdio:
        await serve_stdio(server)
    else:
        token = token_of_environment()
        endpoint = Endpoint(settings.port, settings.host, token, settings.idle_seconds, settings.max_sessions)
        await serve_http(server, endpoint)


def main() -> int:
    """Runs the server; returns the exit status."""
    try:
        settings = load(BrowserSettings, sys.argv[1:])
        log_to_stderr(settings.log_level)
        asyncio.run(serve(settings))
    except ServingError as error:
        sys.stderr.write(f"longhaul tools browser: {error}\n")
        return os.EX_CONFIG
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
