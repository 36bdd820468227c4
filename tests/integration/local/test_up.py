"""`longhaul up`: real processes, every way to stop them, and starts that are refused."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from app.local.ports import free_port
from tests.support.clusters import add_cluster
from tests.support.scripted import models_of
from tests.support.upping import NAMED_SERVICES, Up, alive, kill, longhaul
from tests.support.waiting import until_sync

SLEEPER = "echo $$ > {0}.tmp; mv {0}.tmp {0}.pid; exec sleep 1000"
"""Writes its process id and keeps running."""
STUBBORN = "setsid sh -c 'trap \"\" TERM HUP INT; echo $$ > {0}.pid; while :; do sleep 1000; done' & sleep 1000"
"""Leaves a grandchild in its own session that ignores every signal but SIGKILL."""


def sleeper(folder: Path, name: str) -> str:
    return f"{name}: " + SLEEPER.format(folder / name) + "\n"


def one_line(result: subprocess.CompletedProcess[str]) -> str:
    assert "Traceback" not in result.stderr
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    return lines[0]


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


@pytest.fixture
def used_folder(folder: Path) -> Path:
    """A folder in which `longhaul up` ran before: a first start takes a second of CPU more."""
    add_cluster(folder / "home")
    return folder


def test_sigterm_ends_longhaul_up_and_leaves_nothing(folder: Path) -> None:
    with Up(folder, everything(folder)) as up:
        started(up)
        up.process.terminate()
        assert up.ended() == 0
        assert not any(map(alive, up.look()))
        assert not list((folder / "home" / "run").iterdir())


def test_ctrl_c_in_a_terminal_ends_longhaul_up_and_leaves_nothing(used_folder: Path) -> None:
    with Up(used_folder, everything(used_folder), terminal=True) as up:
        started(up)
        up.type(b"\x03")
        assert up.ended() == 0
        assert not any(map(alive, up.look()))


def test_a_closed_terminal_ends_longhaul_up_and_leaves_nothing(used_folder: Path) -> None:
    with Up(used_folder, everything(used_folder), terminal=True) as up:
        started(up)
        up.close_terminal()
        assert up.ended() == 0
        assert not any(map(alive, up.look()))


def test_kill_9_of_the_runner_leaves_nothing_and_the_next_start_waits_for_that(used_folder: Path) -> None:
    with Up(used_folder, everything(used_folder)) as up:
        started(up)
        wild = int(up.written("wild.pid"))
        os.kill(wild, signal.SIGSTOP)
        up.process.kill()
        up.ended()
        (used_folder / "calm.pid").unlink()
        (used_folder / "wild.pid").unlink()
        with Up(used_folder, everything(used_folder)) as again:
            started(again)
            assert not any(alive(pid) for pid in up.look())


def test_kill_9_of_a_guardian_ends_its_program(folder: Path) -> None:
    with Up(folder, sleeper(folder, "calm"), env=NAMED_SERVICES) as up:
        calm = int(up.written("calm.pid"))
        up.look()
        guardian = int(Path(f"/proc/{calm}/stat").read_text().split()[3])
        assert guardian != up.pid
        kill(guardian)
        until_sync(lambda: not alive(calm))


def test_an_ignored_hangup_stays_ignored(folder: Path) -> None:
    with Up(folder, sleeper(folder, "calm"), env=NAMED_SERVICES, ignore_hangup=True) as up:
        calm = int(up.written("calm.pid"))
        os.kill(up.pid, signal.SIGHUP)
        kill(calm)
        up.wait_for_output("calm ended with SIGKILL")


def press_ctrl_c_until_it_has_ended(up: Up) -> None:
    def ended() -> bool:
        with contextlib.suppress(OSError):
            up.type(b"\x03")
        return up.process.poll() is not None

    until_sync(ended)
    assert up.ended() == 0
    assert not any(map(alive, up.look()))


def test_a_second_ctrl_c_ends_longhaul_up_without_grace(folder: Path) -> None:
    env = NAMED_SERVICES | {"LONGHAUL_SHUTDOWN_GRACE_SECONDS": "1000"}
    with Up(
        folder, f"deaf: trap '' TERM; echo $$ > {folder}/pid; while :; do sleep 1; done\n", env=env, terminal=True
    ) as up:
        up.written("pid")
        up.look()
        press_ctrl_c_until_it_has_ended(up)


def draining_api(folder: Path) -> str:
    """An API that takes its time after the first stop signal, until the file `answered` is there."""
    (folder / "api.sh").write_text(
        f"trap 'touch {folder}/draining' TERM\necho $$ > {folder}/api.pid\n"
        f"while [ ! -e {folder}/answered ]; do sleep 0.05; done\n"
    )
    return f"api: sh {folder}/api.sh\n"


DRAINING = {**NAMED_SERVICES, "LONGHAUL_API_GRACE_SECONDS": "1000"}


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
        assert up.ended() == 0
        assert not any(map(alive, up.look()))


def test_a_second_ctrl_c_waits_for_no_answer(folder: Path) -> None:
    with Up(folder, draining_api(folder) + sleeper(folder, "calm"), env=DRAINING, terminal=True) as up:
        up.written("api.pid")
        up.written("calm.pid")
        up.look()
        press_ctrl_c_until_it_has_ended(up)


def test_after_a_failure_nobody_waits_for_answers_that_cannot_come(folder: Path) -> None:
    (folder / "api.sh").write_text(f"echo $$ > {folder}/api.pid\nexec sleep 1000\n")
    procfile = f"api: sh {folder}/api.sh\nother: while [ ! -e {folder}/api.pid ]; do sleep 0.05; done; exit 78\n"
    with Up(folder, procfile, env=DRAINING) as up:
        assert up.ended() == 1
        assert "ends its foreground answers" not in up.output


@pytest.mark.parametrize("moment", ["Postgres runs", "release"])
def test_sigterm_while_starting_leaves_nothing(folder: Path, moment: str) -> None:
    with Up(folder, "release: echo releasing; sleep 1000\n" + sleeper(folder, "calm")) as up:
        up.wait_for_output(moment)
        up.look()
        up.process.terminate()
        assert up.ended() == 0
        assert not any(map(alive, up.look()))
        assert not (folder / "calm.pid").exists()


def test_a_second_start_on_the_same_data_is_refused(folder: Path) -> None:
    with Up(folder, sleeper(folder, "calm"), env=NAMED_SERVICES) as up:
        up.written("calm.pid")
        with Up(folder, sleeper(folder, "calm"), env=NAMED_SERVICES) as second:
            assert second.ended() == 1
            assert f"already runs on {folder}/home (process {up.pid})" in second.output
        assert up.process.poll() is None


def test_data_survive_a_restart_and_an_interrupted_first_start(folder: Path) -> None:
    with Up(folder, sleeper(folder, "calm")) as up:
        up.written("calm.pid")
    data = next((folder / "home").glob("postgres-*/data"))
    identity = (data / "global" / "pg_control").read_bytes()[:8]
    shutil.copytree(data / "base", data.with_name("new") / "base")
    with Up(folder, sleeper(folder, "calm")) as again:
        again.wait_for_output("Valkey runs")
    assert (data / "global" / "pg_control").read_bytes()[:8] == identity


def test_a_killed_worker_is_restarted(folder: Path) -> None:
    procfile = f"worker: echo $$ >> {folder}/pids; exec sleep 1000\n"
    with Up(folder, procfile, env=NAMED_SERVICES) as up:
        kill(int(up.written("pids").split()[-1]))
        up.wait_for_output("worker ended with SIGKILL; starting again in 0 s")
        until_sync(lambda: len(up.written("pids").split()) == 2)
        up.look()
        assert alive(int(up.written("pids").split()[-1]))


@pytest.mark.parametrize("server", ["postgres", "valkey-server"])
def test_a_killed_service_is_restarted(used_folder: Path, server: str) -> None:
    with Up(used_folder, sleeper(used_folder, "calm")) as up:
        up.written("calm.pid")
        name = "Postgres" if server == "postgres" else "Valkey"
        pid = next(pid for pid in sorted(up.look()) if executable(pid).name == server)
        kill(pid)
        up.wait_for_output(f"{name} ended with SIGKILL; starting again")
        until_sync(lambda: len(servers(up, server)) == 1)


def executable(pid: int) -> Path:
    return Path(f"/proc/{pid}/exe").readlink()


def servers(up: Up, server: str) -> list[int]:
    """The running main processes of a server: their parents are no such server."""
    found = []
    for pid in filter(alive, up.look()):
        with contextlib.suppress(OSError):
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            if executable(pid).name == server and executable(parent).name != server:
                found.append(pid)
    return found


@pytest.mark.parametrize("status", [3, 78])
def test_a_worker_that_cannot_run_waits_and_everything_else_runs_on(folder: Path, status: int) -> None:
    procfile = sleeper(folder, "calm") + f"worker: echo the device is on fire; exit {status}\n"
    with Up(folder, procfile, env=NAMED_SERVICES) as up:
        calm = int(up.written("calm.pid"))
        up.wait_for_output(f"worker ended with status {status}: the device is on fire; starting again in 0 s")
        up.wait_for_output(f"worker ended with status {status} again; starting again in 4 s")
        assert alive(calm)
        assert up.process.poll() is None
        assert up.output.count("worker   | the device is on fire") == (1 if status == 78 else 5)


@pytest.mark.parametrize("status", [78, 127])
def test_a_wrong_configuration_ends_everything_at_once(folder: Path, status: int) -> None:
    procfile = sleeper(folder, "calm") + f"api: echo LONGHAUL_X: no; exit {status}\n"
    with Up(folder, procfile, env=NAMED_SERVICES | {"LONGHAUL_PORT": str(free_port())}) as up:
        assert up.ended() == 1
        assert f"longhaul: api ended with status {status}: LONGHAUL_X: no" in up.output
        assert up.output.count("| LONGHAUL_X: no") == 1


def test_a_failed_release_starts_nothing(used_folder: Path) -> None:
    with Up(used_folder, "release: echo no schema; exit 1\n" + sleeper(used_folder, "calm")) as up:
        assert up.ended() == 1
        assert "longhaul: release ended with status 1: no schema" in up.output
        assert not (used_folder / "calm.pid").exists()


def test_every_model_gets_its_workers(folder: Path) -> None:
    procfile = f"worker: echo $LONGHAUL_MODEL >> {folder}/served; exec sleep 1000\n"
    with Up(folder, procfile, "--workers", "2", env=NAMED_SERVICES, models=("org/One", "two")) as up:
        until_sync(lambda: len(up.written("served").split()) == 4)
        assert sorted(up.written("served").split()) == ["org/One", "org/One", "two", "two"]


def test_one_model_of_the_file_can_be_chosen(folder: Path) -> None:
    procfile = f"worker: echo $LONGHAUL_MODEL of $LONGHAUL_MODELS > {folder}/served; exec sleep 1000\n"
    with Up(folder, procfile, "--model", "two", env=NAMED_SERVICES, models=("one", "two")) as up:
        assert up.written("served") == f"two of {folder}/models.toml"


def test_a_model_by_its_hub_id_gets_a_models_file(folder: Path) -> None:
    procfile = f"worker: cat $LONGHAUL_MODELS > {folder}/served; exec sleep 1000\n"
    with Up(folder, procfile, "--model", "Qwen/Qwen3-8B", env=NAMED_SERVICES) as up:
        assert up.written("served") == '[[models]]\nname = "Qwen/Qwen3-8B"\npath = "Qwen/Qwen3-8B"'


def test_named_services_are_used_and_left_alone(folder: Path) -> None:
    procfile = f"calm: echo $DATABASE_URL $REDIS_URL > {folder}/urls; exec sleep 1000\n"
    with Up(folder, procfile, env=NAMED_SERVICES) as up:
        assert up.written("urls").split() == list(NAMED_SERVICES.values())
        assert not list((folder / "home").glob("postgres-*"))
        assert not (folder / "home" / "valkey").exists()


def test_a_data_folder_too_deep_for_a_socket_works(folder: Path) -> None:
    home = folder / ("deep" * 20) / ("er" * 20)
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


@pytest.mark.parametrize(("process", "variable"), [("api", "LONGHAUL_PORT"), ("flower", "LONGHAUL_FLOWER_PORT")])
def test_a_port_in_use_is_named(folder: Path, process: str, variable: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        with Up(folder, sleeper(folder, process), env={**NAMED_SERVICES, variable: port}) as up:
            assert up.ended() == 2
            assert up.output == f"longhaul: {variable}: port {port} of 127.0.0.1 is already in use\n"


def test_a_folder_with_other_files_is_refused_and_untouched(folder: Path) -> None:
    home = folder / "thesis"
    home.mkdir()
    (home / "chapter1.txt").write_text("It was a dark night.")
    result = longhaul("up", env={"LONGHAUL_HOME": str(home)})
    assert result.returncode == 1
    assert one_line(result) == (
        f"longhaul: LONGHAUL_HOME: {home} is not Longhaul's data folder; name a new or an empty folder"
    )
    assert [entry.name for entry in home.iterdir()] == ["chapter1.txt"]


def test_a_file_in_place_of_the_folder_is_refused(folder: Path) -> None:
    (folder / "home").write_text("a file")
    result = longhaul("up", env={"LONGHAUL_HOME": str(folder / "home")})
    assert result.returncode == 1
    assert "LONGHAUL_HOME" in one_line(result)


def test_data_of_another_postgres_are_refused(folder: Path) -> None:
    home = folder / "home"
    (home / "postgres-9").mkdir(parents=True)
    (home / "longhaul.id").write_text("0123456789ab\n")
    with Up(folder, sleeper(folder, "calm")) as up:
        assert up.ended() == 1
        assert "was written by Postgres 9" in up.output


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
    (folder / "models.toml").write_text(models_of("demo"))
    base = {"LONGHAUL_HOME": str(folder / "home"), "LONGHAUL_MODELS": str(folder / "models.toml")}
    result = longhaul("up", env={**base, **env})
    assert result.returncode == 2
    assert one_line(result).startswith(f"longhaul: {text}")
    assert "secret" not in result.stderr


def test_a_missing_model_folder_is_named(folder: Path) -> None:
    result = longhaul("up", "--model", "./nowhere", env={"LONGHAUL_HOME": str(folder / "home")})
    assert result.returncode == 2
    assert one_line(result) == "longhaul: --model: './nowhere' is not a folder"


# Output


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


def test_up_prints_all_addresses_once_the_api_is_ready(folder: Path) -> None:
    port = free_port()
    env = {**NAMED_SERVICES, "LONGHAUL_PORT": str(port), "LONGHAUL_FLOWER_PORT": str(free_port())}
    with Up(folder, ready_api(folder, port), env=env) as up:
        output = up.wait_for_output("ready after")
        assert f"curl -s http://127.0.0.1:{port}/v1/responses" in output
        assert f'OpenAI(base_url="http://127.0.0.1:{port}/v1"' in output
        assert '"model": "demo"' in output
        password = (folder / "home" / "flower-auth").read_text().strip().partition(":")[2]
        assert password not in output  # without a terminal, stdout may be a log file
        assert f"password in {folder}/home/flower-auth" in output
        assert (folder / "home" / "flower-auth").stat().st_mode & 0o777 == 0o600


def test_a_terminal_shows_the_same_password_each_time(folder: Path) -> None:
    port = free_port()
    env = {**NAMED_SERVICES, "LONGHAUL_FLOWER_PORT": str(free_port())}
    seen = set()
    for _ in range(2):
        with Up(folder, ready_api(folder, port), "--port", str(port), env=env, terminal=True) as up:
            output = up.wait_for_output("ready after")
            seen.add(output.partition("password ")[2].partition(")")[0])
    assert seen == {(folder / "home" / "flower-auth").read_text().strip().partition(":")[2]}
