"""The ports of `/metrics` that `longhaul up` gives out, and the file by which Prometheus finds them."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from app.local.home import Home
from app.local.procfile import Process
from app.local.workers.scrapes import Scrapes
from config.settings import Settings

API = Process("api", "longhaul api")
WORKER = Process("worker.1", "nice longhaul worker", {"LONGHAUL_MODEL": "m"})
OTHER = Process("worker.2", "longhaul worker", {"LONGHAUL_MODEL": "m"})
FLOWER = Process("flower", "longhaul flower")
LOGGED: list[str] = []


def scrapes(folder: Path, **settings: Any) -> Scrapes:
    return Scrapes(Settings(**settings), Home.prepare(folder), LOGGED.append)


def shown(folder: Path) -> dict[str, list[str]]:
    return {each["labels"]["process"]: each["targets"] for each in json.loads((folder / "metrics.json").read_text())}


def port_of(process: Process) -> str | None:
    return process.env.get("LONGHAUL_METRICS_PORT")


def test_without_a_port_nobody_gets_one_and_there_is_no_file(tmp_path: Path) -> None:
    with scrapes(tmp_path).port(API) as process:
        assert process == API
    assert not (tmp_path / "metrics.json").exists()


def test_each_process_gets_the_next_port_and_an_api_as_many_as_it_has_processes(tmp_path: Path) -> None:
    given = scrapes(tmp_path, metrics_port=9400, api_processes=3)
    with given.port(API) as api, given.port(FLOWER) as flower, given.port(WORKER) as worker:
        assert (port_of(api), port_of(flower), port_of(worker)) == ("9400", None, "9403")
        assert worker.env["LONGHAUL_MODEL"] == "m"
        assert shown(tmp_path) == {
            "api": ["127.0.0.1:9400", "127.0.0.1:9401", "127.0.0.1:9402"],
            "worker.1": ["127.0.0.1:9403"],
        }
    assert shown(tmp_path) == {}


def test_the_port_of_a_worker_that_was_stopped_is_free_for_the_next_one(tmp_path: Path) -> None:
    given = scrapes(tmp_path, metrics_port=9400)
    with ExitStack() as later:
        with given.port(WORKER):
            later.enter_context(given.port(API))
        with given.port(OTHER) as other:
            assert port_of(other) == "9400"
            assert shown(tmp_path) == {"api": ["127.0.0.1:9401"], "worker.2": ["127.0.0.1:9400"]}


def test_the_file_has_addresses_that_this_machine_reaches(tmp_path: Path) -> None:
    for host, address in (("0.0.0.0", "127.0.0.1:9400"), ("::", "[::1]:9400"), ("10.0.0.7", "10.0.0.7:9400")):
        with scrapes(tmp_path, metrics_port=9400, metrics_host=host).port(API):
            assert shown(tmp_path) == {"api": [address]}


def test_a_file_that_cannot_be_written_is_logged_and_the_process_has_its_port_all_the_same(tmp_path: Path) -> None:
    given = scrapes(tmp_path, metrics_port=9400)
    (tmp_path / "metrics.json").mkdir()
    with given.port(WORKER) as process:
        assert port_of(process) == "9400"
    assert all("cannot write" in line and "metrics.json" in line for line in LOGGED[-2:])
