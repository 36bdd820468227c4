"""`/metrics` of one process: who may read it, and what happens where it cannot be served."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter

from app.local.ports import free_port
from app.metrics.server import CONNECTIONS, serving
from config.settings import ConfigError, Settings
from tests.support.waiting import until_sync

TOKEN = "0123456789abcdef"


def counting() -> CollectorRegistry:
    registry = CollectorRegistry()
    Counter("longhaul_things", "Things.", registry=registry).inc(3)
    return registry


def test_a_process_without_a_port_serves_nothing() -> None:
    with serving(Settings(), counting()) as port:
        assert port is None


def test_each_process_of_several_takes_a_port_of_its_own() -> None:
    settings = Settings(metrics_port=free_port())
    with serving(settings, counting(), 20) as first, serving(settings, counting(), 20) as second:
        assert first is not None
        assert second is not None
        assert first != second
        assert httpx.get(f"http://127.0.0.1:{second}/metrics").status_code == 200


def test_a_port_that_is_taken_stops_no_process(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with serving(Settings(metrics_port=taken.getsockname()[1]), counting()) as port:
            assert port is None
    assert "no metrics are served" in caplog.text


def test_metrics_that_other_machines_reach_need_a_token() -> None:
    for host in ("0.0.0.0", "10.0.0.1", "::"):
        with pytest.raises(ConfigError, match=r"LONGHAUL_METRICS_HOST.*LONGHAUL_METRICS_TOKEN"):
            Settings(metrics_port=9400, metrics_host=host).check_metrics()
        Settings(metrics_port=9400, metrics_host=host, metrics_token=TOKEN).check_metrics()
        Settings(metrics_host=host).check_metrics()
    Settings(metrics_port=9400).check_metrics()


OPEN_METRICS = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3"


def test_a_scrape_is_in_a_form_that_the_client_accepts_and_nothing_else_is_there() -> None:
    with serving(Settings(metrics_port=free_port()), counting()) as port:
        url = f"http://127.0.0.1:{port}/metrics"
        for accept, kind in (
            (OPEN_METRICS, "application/openmetrics"),
            ("application/json", "text/plain"),
        ):
            answer = httpx.get(url, headers={"accept": accept})
            assert (answer.status_code, answer.headers["content-type"].startswith(kind)) == (200, True), accept
            assert "longhaul_things_total 3.0" in answer.text and "process_resident_memory_bytes" in answer.text
        assert httpx.get(f"http://127.0.0.1:{port}/").status_code == 404
        assert httpx.post(url).status_code == 405


def test_a_scrape_needs_the_token_if_there_is_one() -> None:
    with serving(Settings(metrics_port=free_port(), metrics_token=TOKEN), counting()) as port:
        for sent in (None, "Bearer wrong", f"Basic {TOKEN}", "Bearer", f"Bearer {TOKEN}x", f"bearer {TOKEN}"):
            headers = {} if sent is None else {"authorization": sent}
            answer = httpx.get(f"http://127.0.0.1:{port}/metrics", headers=headers)
            if sent == f"bearer {TOKEN}":
                assert answer.status_code == 200
            else:
                assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), sent
                assert "longhaul_things" not in answer.text


def test_connections_that_send_nothing_get_so_many_threads_and_no_more() -> None:
    with serving(Settings(metrics_port=free_port()), counting()) as port, ExitStack() as stack:
        before = threading.active_count()
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", port or 0))) for _ in range(CONNECTIONS)]
        until_sync(lambda: threading.active_count() == before + CONNECTIONS)
        more = stack.enter_context(socket.create_connection(("127.0.0.1", port or 0)))
        assert more.recv(1) == b""
        assert threading.active_count() == before + CONNECTIONS
        silent[0].close()
        until_sync(lambda: threading.active_count() < before + CONNECTIONS)
        assert httpx.get(f"http://127.0.0.1:{port}/metrics").status_code == 200
