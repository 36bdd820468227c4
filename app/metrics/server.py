"""`/metrics` of one process, on a port of its own and in threads of its own.

A scrape never waits for the process' event loop, but for what a collector asks of it, which has a time limit.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hmac import compare_digest
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import REGISTRY, CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from config.settings import Settings

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

log = logging.getLogger("longhaul.metrics")

CLIENT_SECONDS = 10.0
"""How long a client may take for its request, and for each piece of the answer."""
STOP_SECONDS = 0.1
"""How long a stop may wait for the server's thread."""
CONNECTIONS = 32
"""Connections at once, with a thread each; more are closed."""


class _Server(ThreadingWSGIServer):
    request_queue_size = 16

    def __init__(self, *args: Any) -> None:
        self._connections = threading.BoundedSemaphore(CONNECTIONS)
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._connections.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a scrape from %s broke", client_address, exc_info=True)


class _Handler(WSGIRequestHandler):
    timeout = CLIENT_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)


def _application(registry: CollectorRegistry, token: str | None) -> WSGIApplication:
    """Shows the registry, and what libraries register by themselves, to those who have the token."""
    every = CollectorRegistry()
    every.register(registry)
    every.register(REGISTRY)
    metrics = make_wsgi_app(every)

    def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        scheme, _, sent = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
        if environ["PATH_INFO"] != "/metrics":
            start_response("404 Not Found", [])
            return [b"/metrics is here\n"]
        if token and not (scheme.lower() == "bearer" and compare_digest(sent.strip().encode(), token.encode())):
            start_response("401 Unauthorized", [("WWW-Authenticate", "Bearer")])
            return [b"LONGHAUL_METRICS_TOKEN as a bearer token is needed\n"]
        answer: Iterable[bytes] = metrics(environ, start_response)
        return answer

    return application


@contextmanager
def serving(settings: Settings, registry: CollectorRegistry, ports: int = 1) -> Iterator[int | None]:
    """Serves the registry, and what libraries register by themselves, while the block lasts; yields the port.

    It takes the first free of `ports` ports from LONGHAUL_METRICS_PORT on. Yields None if that is not set, or if none
    is free: then an error is logged, and the process works on.
    """
    server = None
    if settings.metrics_port is not None:
        ports_left = range(settings.metrics_port, settings.metrics_port + ports)
        server = _listening(settings.metrics_host, ports_left, _application(registry, settings.metrics_token))
    if server is None:
        yield None
        return
    thread = threading.Thread(target=server.serve_forever, args=(STOP_SECONDS,), name="metrics", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _listening(host: str, ports: range, application: WSGIApplication) -> _Server | None:
    failure = OSError()
    for port in ports:
        try:
            found, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]

            class Server(_Server):
                address_family = found

            return make_server(str(address[0]), port, application, Server, _Handler)
        except OSError as error:
            failure = error
    log.error("no metrics are served: port %d of %s: %s", ports.start, host, failure.strerror)
    return None
