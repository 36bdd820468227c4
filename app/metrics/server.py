"""`/metrics` of one process, on a port of its own and in threads of its own.

A scrape never waits for the process' event loop, but for what a collector asks of it, which has a time limit.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hmac import compare_digest
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from config.settings import Settings

log = logging.getLogger("longhaul.metrics")

CLIENT_SECONDS = 10.0
"""How long a client may take for its request, and for each piece of the answer."""
STOP_SECONDS = 0.1
"""How long a stop may wait for the server's thread."""
SCRAPES = 4
"""Scrapes at once; more get 503."""
CONNECTIONS = 32
"""At once, with a thread each; more are closed."""


class _All(Collector):
    """The metrics of several registries."""

    def __init__(self, registries: Sequence[Collector]) -> None:
        self._registries = registries

    def collect(self) -> Iterator[Metric]:
        for registry in self._registries:
            yield from registry.collect()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 16

    def __init__(self, address: tuple[Any, ...], family: int, registry: Collector, token: str | None) -> None:
        self.address_family = family
        self.registry = registry
        self.token = token
        self.scrapes = threading.BoundedSemaphore(SCRAPES)
        self._connections = threading.BoundedSemaphore(CONNECTIONS)
        super().__init__(address[:2], _Handler)

    def server_bind(self) -> None:
        """As HTTPServer, without its look-up of the host's name, which may take seconds."""
        socket.socket.setsockopt(self.socket, socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._connections.acquire(blocking=False):
            return self.shutdown_request(request)
        try:
            super().process_request(request, client_address)
        except BaseException:  # No thread can be started.
            self._connections.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a scrape from %s broke", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = CLIENT_SECONDS
    server_version, sys_version = "longhaul", ""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            return self._answer(HTTPStatus.NOT_FOUND, b"/metrics is here\n")
        if not self._is_allowed():
            return self._answer(HTTPStatus.UNAUTHORIZED, b"LONGHAUL_METRICS_TOKEN as a bearer token is needed\n")
        if not self.server.scrapes.acquire(blocking=False):
            return self._answer(HTTPStatus.SERVICE_UNAVAILABLE, b"too many scrapes at once\n")
        try:
            encode, kind = _encoder(self.headers.get("accept", ""))
            body = encode(self.server.registry)
        finally:
            self.server.scrapes.release()
        return self._answer(HTTPStatus.OK, body, kind)

    def _is_allowed(self) -> bool:
        token = self.server.token
        if token is None:
            return True
        scheme, _, sent = self.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and compare_digest(sent.strip().encode(), token.encode())

    def _answer(self, status: HTTPStatus, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        if status == HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)


def _encoder(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    """Returns what writes metrics in a form that the client accepts, and its content type."""
    try:
        return choose_encoder(accept)
    except (TypeError, ValueError):  # A version that is none.
        return choose_encoder("")


@contextmanager
def serving(settings: Settings, registry: CollectorRegistry, ports: int = 1) -> Iterator[int | None]:
    """Serves the registry, and what libraries register by themselves, while the block lasts; yields the port.

    It takes the first free of `ports` ports from LONGHAUL_METRICS_PORT on. Yields None if that is not set, or if none
    is free: then an error is logged, and the process works on.
    """
    server = _listening(settings, _All((registry, REGISTRY)), ports) if settings.metrics_port is not None else None
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


def _listening(settings: Settings, registry: Collector, ports: int) -> _Server | None:
    assert settings.metrics_port is not None
    host, token, failure = settings.metrics_host, settings.metrics_token, OSError()
    for port in range(settings.metrics_port, settings.metrics_port + ports):
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            return _Server(address, family, registry, token)
        except OSError as error:
            failure = error
    log.error("no metrics are served: port %d of %s: %s", settings.metrics_port, host, failure.strerror)
    return None
