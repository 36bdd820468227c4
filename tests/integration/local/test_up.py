"""`longhaul up`: real processes, every way to stop them, and starts that are refused."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from urllib.parse import parse_qs

import asyncpg
import psutil
import pytest

from app.local.home import Home
from app.local.ports import free_port
from config.settings import load_settings
from tests.support import forks
from tests.support.clusters import add_cluster
from tests.support.forks import Forked
from tests.support.processes import alive
from tests.support.scripted import models_of
from tests.support.services import open_folder
from tests.support.upping import LONGHAUL, NAMED_SERVICES, Up, kill, longhaul, one_line
from tests.support.waiting import until, until_sync

SLEEPER = "echo $$ > {0}.tmp; mv {0}.tmp {0}.pid; exec sleep 1000"
"""Writes its process id and keeps running."""
STUBBORN = "sh -c 'trap \"\" TERM HUP INT; echo $$ > {0}.pid; while :; do sleep 1000; done' & sleep 1000"
"""Leaves a grandchild that ignores every signal but SIGKILL."""


def sleeper(folder: Path, name: str) -> str:
    return f"{name}: " + SLEEPER.format(folder / name) + "\n"


def everything(folder: Path) -> str:
    """A Procfile with one ordinary process, and one whose grandchild ignores signals."""
    return sleeper(folder, "calm") + f"wild: {STUBBORN.format(folder / 'wild')}\n"


def started(up: Up) -> set[int]:
    """Waits until services and processes of `everything` run."""
    calm, wild = int(up.written("calm.pid")), int(up.written("wild.pid"))
    seen = up.look()
    assert {calm, wild} <= seen
    assert "Postgres runs" in up.output
    assert "Valkey runs" in up.output
    return seen


class ForkedUp(Forked):
    """What `Up` uses of a `subprocess.Popen` without a terminal: its imports would take half of a start's CPU."""

    def __init__(self, command: list[str], **options: Any) -> None:
        reading, self._writing = os.pipe()
        self.stdout = os.fdopen(reading, "rb")
        pipe = Path(f"/proc/{os.getpid()}/fd/{self._writing}")
        super().__init__(forks.LONGHAUL, command[len(LONGHAUL) :], options["env"], pipe)

    def poll(self) -> int | None:
        status = super().poll()
        if status is not None and self._writing >= 0:
            os.close(self._writing)
            self._writing = -1
        return status

    def wait(self, timeout: float | None = None) -> int:
        status = super().wait(timeout)
        self.poll()
        return status


@pytest.fixture(scope="module", autouse=True)
def _forked() -> Iterator[None]:
    def start(command: list[str], **options: Any) -> Any:
        return (ForkedUp if options["stdin"] == subprocess.DEVNULL else subprocess.Popen)(command, **options)

    with patch("tests.support.upping.subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": start})):
        yield


@pytest.fixture
def used_folder(folder: Path) -> Path:
    """A folder in which `longhaul up` ran before: a first start takes a second of CPU more."""
    add_cluster(folder / "home")
    return folder


READY_API = """
from http.server import BaseHTTPRequestHandler, HTTPServer

class Ready(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path.startswith("/health/ready") else 404)
        self.end_headers()

HTTPServer(("127.0.0.1", {port}), Ready).serve_forever()
"""


def ready_api(folder: Path, port: int) -> str:
    """An API that is ready at once."""
    (folder / "ready.py").write_text(READY_API.format(port=port))
    return f"api: python {folder}/ready.py\n"


@pytest.fixture(scope="module")
def running() -> Iterator[Up]:
    """For tests that end nothing but what starts again: two models with two workers each, and no services."""
    port = free_port()
    env = {**NAMED_SERVICES, "LONGHAUL_PORT": str(port), "LONGHAUL_FLOWER_PORT": str(free_port())}
    with open_folder() as folder:
        procfile = (
            ready_api(folder, port)
            + sleeper(folder, "calm")
            + f'urls: echo "port=$LONGHAUL_PORT&db=$DATABASE_URL&redis=$REDIS_URL" > {folder}/urls; exec sleep 1000\n'
            f"worker: echo $$ $LONGHAUL_MODEL >> {folder}/served; exec sleep 1000\n"
        )
        with Up(folder, procfile, "--workers", "2", env=env, models=("org/One", "two")) as up:
            yield up
            assert up.process.poll() is None


def served(up: Up, count: int) -> list[list[str]]:
    """Waits until so many workers have started; the process id and the model of each."""
    until_sync(lambda: len(up.written("served").splitlines()) >= count)
    up.look()
    return [line.split() for line in up.written("served").splitlines()]


def ends_and_leaves_nothing(up: Up, status: int = 0) -> None:
    assert up.ended() == status
    assert not any(map(alive, up.look()))


# Every way to stop it. Each needs a start of its own.


def test_killed_services_are_restarted_and_sigterm_ends_everything_and_leaves_nothing(folder: Path) -> None:
    """The first start in its folder, which makes the cluster."""
    with Up(folder, everything(folder)) as up:
        started(up)
        for server, name in (("postgres", "Postgres"), ("valkey-server", "Valkey")):
            kill(servers(up, server)[0])
            up.wait_for_output(f"{name} ended with SIGKILL; starting again")
            until_sync(lambda server=server: len(servers(up, server)) == 1)  # type: ignore[misc]
        up.process.terminate()
        ends_and_leaves_nothing(up)
        assert not list((folder / "home" / "run").iterdir())


@asynccontextmanager
async def endless(url: str) -> AsyncIterator[int]:
    """The process id of a session that is within a statement, which never ends by itself."""
    busy = await asyncpg.connect(url)
    session = busy.get_server_pid()
    statement = busy.execute("SELECT count(*) FROM generate_series(1, 1e15) n, generate_series(1, 1e3)")
    running = asyncio.create_task(statement)
    watching = await asyncpg.connect(url)
    await until(lambda: watching.fetchval("SELECT state = 'active' FROM pg_stat_activity WHERE pid = $1", session))
    await watching.close()
    yield session
    with pytest.raises((asyncpg.PostgresConnectionError, asyncpg.AdminShutdownError)):
        await running


async def test_a_session_within_a_statement_outlives_neither_postgres_nor_the_runner(used_folder: Path) -> None:
    procfile = f"calm: echo $DATABASE_URL > {used_folder}/url; exec sleep 1000\n"
    with Up(used_folder, procfile) as up:
        url = up.written("url")

        async def is_back() -> bool:
            with contextlib.suppress(OSError, asyncpg.CannotConnectNowError):
                await (await asyncpg.connect(url)).close()
                return True
            return False

        async with endless(url) as session:
            [server] = servers(up, "postgres")
            kill(server)
            until_sync(lambda: not alive(server))
            await until(is_back, what=lambda: up.output)
            assert not alive(session)
        async with endless(url) as session:
            assert session in up.look()
            up.process.kill()
            up.ended()
            with Up(used_folder, procfile) as again:
                again.wait_for_output("Postgres runs")
                assert not any(map(alive, up.look()))


def servers(up: Up, server: str) -> list[int]:
    """The running main processes of a server: their parents are no such server."""
    found = []
    for pid in filter(alive, up.look()):
        with contextlib.suppress(OSError, psutil.Error):
            parent = psutil.Process(pid).ppid()
            if executable(pid).name == server and executable(parent).name != server:
                found.append(pid)
    return found


def executable(pid: int) -> Path:
    return Path(f"/proc/{pid}/exe").readlink()


@pytest.mark.parametrize("how", ["Ctrl-C", "closed"])
def test_ctrl_c_in_a_terminal_and_a_closed_one_end_longhaul_up_and_leave_nothing(used_folder: Path, how: str) -> None:
    with Up(used_folder, everything(used_folder), terminal=True) as up:
        started(up)
        if how == "Ctrl-C":
            up.type(b"\x03")
        else:
            up.close_terminal()
        ends_and_leaves_nothing(up)


def draining_api(folder: Path) -> str:
    """An API that takes its time after the first stop signal, until the file `answered` is there."""
    (folder / "api.sh").write_text(
        f"trap 'touch {folder}/draining' TERM\necho $$ > {folder}/api.pid\n"
        f"while [ ! -e {folder}/answered ]; do sleep 0.05; done\n"
    )
    return f"api: sh {folder}/api.sh\n"


def test_kill_9_of_the_runner_ends_its_programs_and_the_next_start_waits_for_them(used_folder: Path) -> None:
    calm = sleeper(used_folder, "calm")
    with Up(used_folder, calm + draining_api(used_folder)) as up:
        up.written("calm.pid")
        up.written("api.pid")
        up.look()
        up.process.kill()
        up.ended()
        until_sync((used_folder / "draining").exists)
        (used_folder / "calm.pid").unlink()
        with Up(used_folder, calm) as again:
            again.wait_for_output("waiting for its programs to end")
            (used_folder / "answered").touch()
            again.written("calm.pid")
            assert not any(alive(pid) for pid in up.look())


DRAINING = {**NAMED_SERVICES, "LONGHAUL_API_GRACE_SECONDS": "1000"}


def test_a_second_ctrl_c_ends_longhaul_up_without_grace_and_waits_for_no_answer(folder: Path) -> None:
    deaf = f"deaf: trap '' TERM; echo $$ > {folder}/deaf.pid; while :; do sleep 1; done\n"
    env = DRAINING | {"LONGHAUL_SHUTDOWN_GRACE_SECONDS": "1000"}
    with Up(folder, draining_api(folder) + deaf, env=env, terminal=True) as up:
        up.written("api.pid")
        up.written("deaf.pid")
        up.look()

        def ended() -> bool:
            with contextlib.suppress(OSError):
                up.type(b"\x03")
            return up.process.poll() is not None

        until_sync(ended)
        ends_and_leaves_nothing(up)


def test_what_the_answers_of_the_api_need_runs_until_it_has_drained(folder: Path) -> None:
    with Up(folder, draining_api(folder) + sleeper(folder, "calm"), env=DRAINING) as up:
        up.written("api.pid")
        calm = int(up.written("calm.pid"))
        up.look()
        up.process.terminate()
        until_sync((folder / "draining").exists)
        kill(calm)
        (folder / "calm.pid").unlink()
        assert alive(int(up.written("calm.pid"))), "it is restarted even now"
        up.wait_for_output("api ends its foreground answers, for 1000 s at most")
        up.look()
        (folder / "answered").touch()
        ends_and_leaves_nothing(up)


def test_after_a_failure_nobody_waits_for_answers_that_cannot_come(folder: Path) -> None:
    (folder / "api.sh").write_text(f"echo $$ > {folder}/api.pid\nexec sleep 1000\n")
    procfile = f"api: sh {folder}/api.sh\nother: while [ ! -e {folder}/api.pid ]; do sleep 0.05; done; exit 78\n"
    with Up(folder, procfile, env=DRAINING) as up:
        assert up.ended() == 1
        assert "ends its foreground answers" not in up.output


def test_sigterm_while_starting_leaves_nothing(used_folder: Path) -> None:
    with Up(used_folder, "release: echo releasing; sleep 1000\n" + sleeper(used_folder, "calm")) as up:
        up.wait_for_output("release")
        up.look()
        up.process.terminate()
        ends_and_leaves_nothing(up)
        assert not (used_folder / "calm.pid").exists()


# What runs


def test_every_model_gets_its_workers_and_a_killed_one_is_restarted(running: Up) -> None:
    first = served(running, 4)
    assert sorted(model for _, model in first) == ["org/One", "org/One", "two", "two"]
    kill(int(first[0][0]))
    again = served(running, 5)[4]
    assert again[1] == first[0][1] and alive(int(again[0]))
    running.wait_for_output("ended with SIGKILL; starting again in 0 s")


def test_named_services_are_used_and_left_alone(running: Up) -> None:
    told = parse_qs(running.written("urls"))
    assert [told["db"], told["redis"]] == [[url] for url in NAMED_SERVICES.values()]
    assert not list((running.folder / "home").glob("postgres-*"))
    assert not (running.folder / "home" / "valkey.conf").exists()


def test_a_second_start_on_the_same_data_is_refused(running: Up) -> None:
    result = longhaul("up", env={**NAMED_SERVICES, "LONGHAUL_HOME": f"{running.folder}/home"})
    assert result.returncode == 1
    assert f"already runs on {running.folder}/home (process {running.pid})" in result.stderr


def test_data_survive_a_restart_and_an_interrupted_first_start(used_folder: Path) -> None:
    data = next((used_folder / "home").glob("postgres-*/data"))
    identity = (data / "global" / "pg_control").read_bytes()[:8]
    shutil.copytree(data / "base", data.with_name("new") / "base")
    with Up(used_folder, sleeper(used_folder, "calm")) as up:
        up.wait_for_output("Valkey runs")
    assert (data / "global" / "pg_control").read_bytes()[:8] == identity


def test_a_failed_release_starts_nothing(folder: Path) -> None:
    procfile = "release: echo no schema; exit 1\n" + sleeper(folder, "calm")
    with Up(folder, procfile, env=NAMED_SERVICES) as up:
        assert up.ended() == 1
        assert "longhaul: release ended with status 1: no schema" in up.output
        assert not (folder / "calm.pid").exists()


@pytest.mark.parametrize(
    ("model", "models", "served"),
    [
        ("two", ("one", "two"), "two of {folder}/models.toml:"),
        ("Qwen/Qwen3-8B", ("demo",), '[[models]]\nname = "Qwen/Qwen3-8B"\npath = "Qwen/Qwen3-8B"'),
    ],
    ids=["one of the file", "by its hub id, which gets a models file"],
)
def test_a_model_can_be_chosen(folder: Path, model: str, models: tuple[str, ...], served: str) -> None:
    procfile = (
        f"worker: echo $LONGHAUL_MODEL of $LONGHAUL_MODELS: > {folder}/served.new; "
        f"cat $LONGHAUL_MODELS >> {folder}/served.new; mv {folder}/served.new {folder}/served; exec sleep 1000\n"
    )
    with Up(folder, procfile, "--model", model, env=NAMED_SERVICES, models=models) as up:
        assert served.format(folder=folder) in up.written("served")


def test_a_data_folder_too_deep_for_a_socket_works(folder: Path) -> None:
    home = folder / ("deep" * 20) / ("er" * 20)
    add_cluster(home)
    procfile = f"calm: echo $DATABASE_URL > {folder}/urls; exec sleep 1000\n"
    with Up(folder, procfile, env={"LONGHAUL_HOME": str(home)}) as up:
        sockets = Path(up.written("urls").partition("host=")[2])
        assert sockets.is_dir()
        up.look()
    assert not sockets.exists()


@pytest.mark.root
def test_as_root_behind_a_closed_folder_the_data_go_to_a_system_folder(folder: Path) -> None:
    folder.chmod(0o700)
    with Up(folder, sleeper(folder, "calm")) as up:
        up.written("calm.pid")
        identity = (folder / "home" / "longhaul.id").read_text().strip()
        system = Path("/var/lib") / f"longhaul-{identity}"
        try:
            assert f"are in {system}" in up.output
            assert next(system.glob("postgres-*/data")).is_dir()
            assert system.stat().st_uid == 0
            up.process.terminate()
            assert up.ended() == 0
        finally:
            shutil.rmtree(system)
    assert folder.stat().st_mode & 0o777 == 0o700


# Starts that are refused


def refused(folder: Path, *args: str, **env: str) -> tuple[int, str]:
    """The exit status of a start that ends at once, and its only line."""
    (folder / "Procfile").write_text("api: exit 1\nflower: exit 1\n")
    (folder / "models.toml").write_text(models_of("demo"))
    own = {"LONGHAUL_HOME": str(folder / "home"), "LONGHAUL_MODELS": str(folder / "models.toml")}
    result = longhaul("up", "--procfile", str(folder / "Procfile"), *args, env={**own, **env})
    return result.returncode, one_line(result)


def test_data_of_another_postgres_are_refused(folder: Path) -> None:
    (folder / "home" / "postgres-9").mkdir(parents=True)
    (folder / "home" / "longhaul.id").write_text("0123456789ab\n")
    status, line = refused(folder)
    assert status == 1 and "was written by Postgres 9" in line


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ({"LONGHAUL_PORT": "eighty"}, "LONGHAUL_PORT: "),
        (
            {"LONGHAUL_HOST": "203.0.113.7", "LONGHAUL_AUTH": "keys"},
            "LONGHAUL_HOST: 203.0.113.7 is not an address of this machine",
        ),
        (
            {"LONGHAUL_HOST": "0.0.0.0"},
            "LONGHAUL_HOST: with '0.0.0.0' other machines reach the API, and it asks nobody for a key",
        ),
        ({"DATABASE_URL": "mysql://root:secret@db/x"}, "DATABASE_URL: must be a URL that starts with postgresql://"),
        ({"LONGHAUL_MODELS": "/nowhere.toml"}, "LONGHAUL_MODELS: cannot read /nowhere.toml: No such file or directory"),
    ],
)
def test_a_bad_setting_is_one_line_that_names_it(folder: Path, env: dict[str, str], text: str) -> None:
    status, line = refused(folder, **env)
    assert status == 2 and line.startswith(f"longhaul: {text}") and "secret" not in line


def test_a_missing_model_folder_is_named(folder: Path) -> None:
    assert refused(folder, "--model", "./nowhere") == (2, "longhaul: --model: './nowhere' is not a folder")


# Output


def test_up_prints_all_addresses_once_the_api_is_ready_and_no_password_outside_of_a_terminal(running: Up) -> None:
    output = running.wait_for_output("ready after")
    port = parse_qs(running.written("urls"))["port"][0]
    assert f"curl -s http://127.0.0.1:{port}/v1/responses" in output
    assert f'OpenAI(base_url="http://127.0.0.1:{port}/v1"' in output
    assert '"model": "org/One"' in output
    file = running.folder / "home" / "flower-auth"
    assert file.read_text().strip().partition(":")[2] not in output  # stdout may be a log file
    assert f"password in {file}" in output
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_terminal_shows_the_password_of_the_start_before(folder: Path) -> None:
    Home.prepare(folder / "home").flower_auth(load_settings())
    known = (folder / "home" / "flower-auth").read_text().strip().partition(":")[2]
    port = free_port()
    env = {**NAMED_SERVICES, "LONGHAUL_FLOWER_PORT": str(free_port())}
    with Up(folder, ready_api(folder, port), "--port", str(port), env=env, terminal=True) as up:
        assert up.wait_for_output("ready after").partition("password ")[2].partition(")")[0] == known
