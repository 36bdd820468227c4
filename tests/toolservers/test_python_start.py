"""When the python tool starts, when it does not, and its message then."""

from __future__ import annotations

import asyncio
import os
import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.local.commands import tools
from config.process import CHECKOUT
from tests.support.python_server import PROGRAM
from tests.support.unprivileged import command
from workers.toolservers.python import sandbox as sandbox_module
from workers.toolservers.python import selftest
from workers.toolservers.python.answer import StopReason
from workers.toolservers.python.errors import SandboxError
from workers.toolservers.python.jail.seccomp import Machine, filter_for
from workers.toolservers.python.limits import Limits
from workers.toolservers.python.sandbox import Sandbox
from workers.toolservers.python.spec import SandboxSpec, default_executable, examine

LONGHAUL = str(Path(sys.executable).with_name("longhaul"))


def started(*program: str, **environment: str) -> tuple[int, str]:
    """Exit status and stderr of a start that must fail."""
    done = subprocess.run(
        program, cwd=CHECKOUT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stderr


def without_namespaces(*program: str) -> list[str]:
    """`program` where no user namespace can be made, as in many containers."""
    limit = "/proc/sys/user/max_user_namespaces"
    inner = 'echo 0 > "$0" && exec "$@"'
    return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", inner, limit, *program]


def test_the_command_passes_all_arguments_to_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[list[str]] = []
    monkeypatch.setattr(os, "execve", lambda _path, argv, _env: became.append(argv))
    monkeypatch.setattr(os, "umask", lambda _mask: 0)
    for name in ("python", "browser"):
        tools.commands([name, "--port", "0", "--help", "--", "x"], standalone_mode=False)
        assert became.pop() == [
            *(sys.executable, "-P", "-m", f"workers.toolservers.{name}"),
            *("--port", "0", "--help", "--", "x"),
        ]


def test_the_command_shows_the_server_s_help(tmp_path: Path) -> None:
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / "__init__.py").write_text("raise SystemExit('not ours')")
    done = subprocess.run([LONGHAUL, "tools", "python", "--help"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for option in ("--seconds", "--memory", "--stdio", "LONGHAUL_TOOLS_TOKEN"):
        assert option in done.stdout


def test_an_invalid_python_is_one_line_and_a_host_that_others_reach_requires_a_token() -> None:
    assert started(*PROGRAM, "--python", "/bin/true") == (
        os.EX_CONFIG,
        "longhaul tools python: --python /bin/true: is no Python that runs\n",
    )
    status, stderr = started(*PROGRAM, "--host", "0.0.0.0", "--port", "0")
    assert (status, stderr.count("\n")) == (os.EX_CONFIG, 1)
    assert stderr.startswith("longhaul tools python: --host 0.0.0.0: ") and "LONGHAUL_TOOLS_TOKEN" in stderr


@pytest.mark.root
def test_without_namespaces_the_server_does_not_start() -> None:
    status, stderr = started(*without_namespaces(*command(*PROGRAM)[:1], "-c", "pass"))
    assert status == 0, f"this machine cannot take namespaces away: {stderr}"
    status, stderr = started(*without_namespaces(*PROGRAM, "--port", "0"))
    assert (status, stderr.count("\n")) == (os.EX_CONFIG, 1)
    assert stderr.startswith("longhaul tools python: no sandbox here: ")
    assert stderr.endswith("; the python tool stays off\n")


def sandbox_spec(syscall_filter: bytes, limits: Limits | None = None) -> SandboxSpec:
    return SandboxSpec(examine(default_executable()), limits or Limits(), syscall_filter)


ALLOW_ALL = bytes.fromhex("06000000 0000ff7f".replace(" ", ""))
"""One instruction: SECCOMP_RET_ALLOW."""


async def test_the_self_test_detects_a_sandbox_that_does_not_isolate() -> None:
    with pytest.raises(SandboxError, match=r"^the sandbox does not hold here: a network socket can be opened$"):
        await selftest.check(sandbox_spec(ALLOW_ALL))


async def test_a_filter_that_linux_refuses_makes_no_sandbox() -> None:
    with pytest.raises(SandboxError, match=r"^no sandbox here: OSError: \[Errno 22\] prctl 22$"):
        await selftest.check(sandbox_spec(b"\0" * 8))


def only_one_in(folder: Path) -> Path:
    [found] = folder.iterdir()
    return found


async def test_a_sandbox_is_in_its_cgroup_before_it_begins_and_dies_there_of_memory(tmp_path: Path) -> None:
    spec = replace(sandbox_spec(filter_for(Machine(platform.machine()))), cgroups=tmp_path)
    sandbox = await Sandbox.start(spec)
    cgroup = only_one_in(tmp_path)
    assert (cgroup / "cgroup.procs").read_text() == str(sandbox.pid)
    (cgroup / "memory.events").write_text("oom_kill 1\n")
    outcome = await sandbox.run("import os\nos.kill(os.getpid(), 9)", asyncio.Event())
    await sandbox.close()
    assert outcome.killed is StopReason.MEMORY


async def test_a_sandbox_that_is_given_up_while_it_starts_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    jailers: list[asyncio.subprocess.Process] = []
    begin = Sandbox._begin

    async def watched(self: Sandbox, spec: dict[str, Any]) -> None:
        jailers.append(self._jailer)
        await begin(self, spec)

    monkeypatch.setattr(Sandbox, "_begin", watched)
    monkeypatch.setattr(sandbox_module, "END_SECONDS", 60)  # until the kill
    starting = asyncio.create_task(Sandbox.start(sandbox_spec(filter_for(Machine(platform.machine())))))
    child = None
    while child is None:  # without a pause: it has to be stopped before it has begun
        await asyncio.sleep(0)
        child = next(iter(psutil.Process(jailers[0].pid).children()), None) if jailers else None
    child.suspend()
    starting.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    child.resume()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert jailers[0].returncode == 0  # not killed


def test_packages_of_a_virtual_environment_are_available_inside() -> None:
    interpreter = examine(Path(sys.executable))
    assert interpreter.executable == Path(sys.executable)
    assert Path(sys.prefix) / "pyvenv.cfg" in interpreter.paths
    assert Path(sys.prefix) / "lib" in interpreter.paths


def test_nothing_of_longhaul_is_visible_by_default() -> None:
    shown = examine(default_executable()).paths
    assert not any(path.is_relative_to(CHECKOUT) for path in shown)
