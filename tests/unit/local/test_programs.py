"""The programs of the Procfile's commands: arguments, variables, and errors before the start."""

from __future__ import annotations

import os
import re
import resource
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.local import programs
from app.local.ports import free_port
from config.settings import CHECKOUT, ConfigError, Settings, load_settings
from tests.support.scripted import models_of

MODELS = models_of("Org/One", "two") + 'queue = "q2"\n'


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    (tmp_path / "models.toml").write_text(MODELS)
    monkeypatch.setenv("DATABASE_URL", "postgresql://u:hunter2@db/x")
    monkeypatch.setenv("REDIS_URL", "redis://:hunter2@r/0")
    monkeypatch.setenv("LONGHAUL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LONGHAUL_MODELS", str(tmp_path / "models.toml"))
    monkeypatch.setenv("LONGHAUL_PORT", str(free_port()))
    monkeypatch.setenv("LONGHAUL_FLOWER_PORT", str(free_port()))
    return load_settings()


def option(launch: programs.Launch, name: str) -> str:
    return launch.argv[launch.argv.index(name) + 1]


@pytest.mark.parametrize("name", ["api", "worker", "maintenance"])
def test_a_process_whose_metrics_anybody_could_read_or_nobody_could_serve_does_not_start(
    settings: Settings, name: str
) -> None:
    more: dict[str, Any] = {"metrics_port": free_port(), "model": "two"}
    getattr(programs, name)(settings.model_copy(update=more))
    with pytest.raises(ConfigError, match="LONGHAUL_METRICS_TOKEN"):
        getattr(programs, name)(settings.model_copy(update={**more, "metrics_host": "0.0.0.0"}))
    in_use = pytest.raises(ConfigError, match=r"LONGHAUL_METRICS_PORT: port .* is already in use")
    with socket.create_server(("127.0.0.1", more["metrics_port"])), in_use:
        getattr(programs, name)(settings.model_copy(update=more))


def test_a_worker_consumes_the_queue_of_its_model_under_a_name_of_its_own(settings: Settings) -> None:
    launch = programs.worker(settings.model_copy(update={"model": "Org/One"}))
    assert option(launch, "--queues") == "model.Org/One"
    assert launch.env["LONGHAUL_MODEL"] == "Org/One"
    assert re.fullmatch(rf"One-[0-9a-f]{{8}}@{re.escape(socket.gethostname())}", option(launch, "--hostname"))
    assert launch.argv != programs.worker(settings.model_copy(update={"model": "Org/One"})).argv
    assert option(programs.worker(settings.model_copy(update={"model": "two"})), "--queues") == "q2"
    pool = "workers.celery_host.pool:TaskPool"
    assert (option(launch, "--pool"), launch.env["CELERY_CUSTOM_WORKER_POOL"]) == ("custom", pool)


def test_the_api_pings_websockets_and_receives_oversized_frames_to_answer_them(settings: Settings) -> None:
    launch = programs.api(settings.model_copy(update={"max_body_bytes": 5000, "keepalive_seconds": 7.0}))
    assert option(launch, "--ws-max-size") == "10000"
    assert option(launch, "--ws-ping-interval") == "7.0"
    assert float(option(launch, "--ws-ping-timeout")) > 0


def test_the_api_may_open_as_many_files_as_it_may_have_connections(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[tuple[int, int]] = [(1024, 5000)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: limits.append(limit))
    programs.api(settings.model_copy(update={"max_connections": 2000}))
    programs.api(settings.model_copy(update={"max_connections": 1000}))
    assert limits[1:] == [(2000 + programs.OTHER_FILES, 5000)]
    programs.api(settings.model_copy(update={"max_connections": 9000}))
    assert limits[2:] == [(5000, 5000)]


@pytest.mark.parametrize("program", [programs.api, programs.maintenance, programs.flower])
def test_no_secret_is_an_argument(settings: Settings, program: object) -> None:
    assert callable(program)
    assert "hunter2" not in " ".join(program(settings).argv)


def test_the_api_needs_both_services(settings: Settings) -> None:
    with pytest.raises(ConfigError, match="DATABASE_URL is not set"):
        programs.api(settings.model_copy(update={"database_url": None}))
    with pytest.raises(ConfigError, match="REDIS_URL is not set"):
        programs.api(settings.model_copy(update={"redis_url": None}))


def test_a_port_in_use_is_one_line(settings: Settings) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", settings.port))
        taken.listen()
        with pytest.raises(ConfigError, match=rf"^LONGHAUL_PORT: port {settings.port} of 127.0.0.1 is already in use$"):
            programs.api(settings)


def test_flower_listens_where_its_setting_says_with_a_lasting_password(settings: Settings) -> None:
    env = programs.flower(settings).env
    assert env["FLOWER_ADDRESS"] == "127.0.0.1"
    assert env["FLOWER_BASIC_AUTH"].startswith("longhaul:") and len(env["FLOWER_BASIC_AUTH"]) > 20
    everywhere = programs.flower(settings.model_copy(update={"flower_host": "0.0.0.0"})).env
    assert (everywhere["FLOWER_ADDRESS"], everywhere["FLOWER_BASIC_AUTH"]) == ("0.0.0.0", env["FLOWER_BASIC_AUTH"])
    with pytest.raises(ConfigError, match=r"^LONGHAUL_FLOWER_HOST: 203.0.113.7 is not an address of this machine"):
        programs.flower(settings.model_copy(update={"flower_host": "203.0.113.7"}))


def test_flower_s_own_variables_are_used_or_refused(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWER_MAX_TASKS", "77")
    assert programs.flower(settings).env["FLOWER_MAX_TASKS"] == "77"
    for name, value, instead in (("BASIC_AUTH", "me:hunter2", "AUTH"), ("ADDRESS", "0.0.0.0", "HOST")):
        monkeypatch.setenv(f"FLOWER_{name}", value)
        with pytest.raises(ConfigError, match=f"^FLOWER_{name} is not read here; set LONGHAUL_FLOWER_{instead}$"):
            programs.flower(settings)
        monkeypatch.delenv(f"FLOWER_{name}")


def test_a_program_runs_in_the_project_with_absolute_paths(tmp_path: Path) -> None:
    """In a process of its own: the program becomes the main module of it."""
    (tmp_path / "shown.py").write_text(
        "import os, sys; mask = os.umask(0)\n"
        "print(__name__, sys.argv[1:], sys.path[0], os.getcwd(), os.environ['LONGHAUL_HOME'], os.environ['MORE'], mask)"
    )
    code = (
        "from app.local.programs import Launch; from config.settings import load_settings; "
        "Launch(('-m', 'shown', '--loud'), {'MORE': '1'}).become(load_settings())"
    )
    env = {**os.environ, "LONGHAUL_HOME": "here", "PYTHONPATH": f"{CHECKOUT}{os.pathsep}{tmp_path}"}
    shown = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    assert shown.stdout == f"__main__ ['--loud'] {CHECKOUT} {CHECKOUT} {tmp_path / 'here'} 1 {0o077}\n"


def test_a_free_port_is_outside_the_range_that_the_kernel_assigns() -> None:
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(1024 < free_port() < first for _ in range(50))


def test_processes_get_the_link_to_a_models_file_which_may_lead_elsewhere_later(
    settings: Settings, tmp_path: Path
) -> None:
    link = tmp_path / "link.toml"
    link.symlink_to(settings.models)
    assert programs.absolute_paths(settings.model_copy(update={"models": link}))["LONGHAUL_MODELS"] == str(link)
