"""A real web server on a loopback address. A test sets its answers and reads the requests that it got."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that the server got; `path` has its query."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "text/html; charset=utf-8"})


def page(html: str) -> Answer:
    return Answer(html.encode())


def redirect(location: str) -> Answer:
    return Answer(status=302, headers={"Location": location})


class LittleWeb:
    """Runs inside `with`. `answers` maps a path without its query to an answer, or to a function of the request."""

    def __init__(self, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None, port: int = 0) -> None:
        self.answers: dict[str, Answer | Callable[[Asked], Answer]] = {}
        self.asked: list[Asked] = []
        self._server = _Server((host, port), _handler_of(self))
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.host = host
        self.port: int = self._server.server_address[1]
        self.url = f"{'http' if tls is None else 'https'}://{host}:{self.port}"

    def __enter__(self) -> LittleWeb:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, asked: Asked) -> Answer:
        self.asked.append(asked)
        found = self.answers.get(asked.path.partition("?")[0], Answer(b"<p>Nothing here", 404))
        return found if isinstance(found, Answer) else found(asked)


class _Server(ThreadingHTTPServer):
    daemon_threads = False

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients may disconnect or refuse the certificate: the test checks that itself."""


def _handler_of(web: LittleWeb) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            answer = web.answer(Asked(self.command, self.path, dict(self.headers), body))
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler
