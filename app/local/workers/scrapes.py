"""The ports of `/metrics` of one `longhaul up`: each process that serves metrics has its own, for all of its lives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from app.local.errors import LocalError
from app.local.home import Home
from app.local.ports import local_host
from app.local.procfile import Process
from config.hosts import in_url
from config.settings import Settings

_SERVING = ("api", "maintenance", "worker")
"""Commands of `longhaul` that serve metrics."""


class Scrapes:
    """Gives out the ports from LONGHAUL_METRICS_PORT on, and keeps the file by which Prometheus finds them."""

    def __init__(self, settings: Settings, home: Home, log: Callable[[str], None]) -> None:
        self._log = log
        self._first = settings.metrics_port
        self._api_processes = settings.api_processes
        self._host = local_host(settings.metrics_host)
        self._home = home
        self._ports: dict[str, range] = {}

    @contextmanager
    def port(self, process: Process) -> Iterator[Process]:
        """Within it, the process with a port of its own, if it serves metrics and LONGHAUL_METRICS_PORT is set.

        A file that cannot be written is logged, and stops nothing.
        """
        command = process.longhaul_command
        if self._first is None or command not in _SERVING:
            yield process
            return
        ports = self._free(self._api_processes if command == "api" else 1)
        self._ports[process.name] = ports
        self._show()
        try:
            yield replace(process, env={**process.env, "LONGHAUL_METRICS_PORT": str(ports.start)})
        finally:
            del self._ports[process.name]
            self._show()

    def _free(self, count: int) -> range:
        assert self._first is not None
        taken = {port for ports in self._ports.values() for port in ports}
        start = self._first
        while taken.intersection(range(start, start + count)):
            start += 1
        return range(start, start + count)

    def _show(self) -> None:
        host = in_url(self._host)
        try:
            self._home.show_scrapes({name: [f"{host}:{port}" for port in ports] for name, ports in self._ports.items()})
        except LocalError as error:
            self._log(str(error))
