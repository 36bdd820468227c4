"""A program: output, exit statuses, and the end of its process group."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from app.local.children import MAX_LINE_BYTES, Child, Program, run
from app.local.services.service_account import ServiceFolders, choose_account
from tests.support.processes import alive, descendants
from tests.support.upping import kill
from tests.support.waiting import until, until_sync

DEAF_TREE = "trap '' TERM; sh -c 'trap \"\" TERM; echo up; while :; do sleep 1; done' & while :; do sleep 1; done"


RUNNER = """
import asyncio, sys
from pathlib import Path
from app.local.children import Program, run
program = Program(("/bin/sh", "-c", sys.argv[1]), {}, Path("/"), user=sys.argv[2])
asyncio.run(run(program, lambda line: print(line, flush=True)))
"""


def shell(command: str, **more: object) -> Program:
    return Program(("/bin/sh", "-c", command), dict(os.environ), Path("/"), **more)  # type: ignore[arg-type]


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def running(command: str, lines: list[str], **more: object) -> tuple[Child, list[int]]:
    """The child after its first output, and its processes, the program first."""
    child = await Child.start(shell(command, **more), lines.append)
    await until(lambda: lines)
    return child, [child.pid, *descendants(child.pid)]


async def test_status_and_last_line_come_through() -> None:
    assert await run(shell("echo one; echo two >&2; echo; exit 3"), lambda _: None) == (3, "two")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
async def test_a_death_by_signal_has_a_negative_status(number: signal.Signals) -> None:
    assert await run(shell(f"kill -{number.name[3:]} $$"), lambda _: None) == (-number, "")


async def test_a_missing_program_is_reported() -> None:
    program = Program(("/nowhere/at/all",), {}, Path("/"))
    assert await run(program, lambda _: None) == (127, "/nowhere/at/all: No such file or directory")


async def test_the_stop_signal_reaches_the_main_process_alone(tmp_path: Path) -> None:
    """Its child ends some time after the main process got the signal."""
    lines: list[str] = []
    stopped = tmp_path / "stopped"
    pauses = f"while ! [ -e {stopped} ]; do sleep 0.1; done; sleep 0.2"
    child_program = f"sh -c 'trap \"echo child got TERM\" TERM; echo up; {pauses}; echo child ended'"
    command = f"trap 'touch {stopped}; wait; exit 5' TERM; {child_program} & wait; wait"
    child, _ = await running(command, lines)
    assert await child.stop_and_wait() == 5
    assert lines == ["up", "child ended"]


@pytest.mark.parametrize("end", [Child.stop, lambda child: kill(child.pid)], ids=["its grace is over", "it is killed"])
async def test_a_group_does_not_outlive_its_program(end: Callable[[Child], None]) -> None:
    child, tree = await running(DEAF_TREE, [], grace=0.1)
    assert len(tree) >= 3
    end(child)
    assert await child.wait() == -signal.SIGKILL
    await until(lambda: not any(map(alive, tree)))


async def test_stop_at_any_moment_of_the_start_ends_it() -> None:
    for pause in range(20):
        child = await Child.start(shell("sleep 1000", grace=1000), lambda _: None)
        for _ in range(pause):
            await until(lambda: True)
        child.stop()
        assert await child.wait() == -signal.SIGTERM


async def test_a_lock_is_held_until_the_program_is_gone(tmp_path: Path) -> None:
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    lines: list[str] = []
    child, _ = await running("echo up; exec sleep 1000", lines, hold=(lock,))
    os.close(lock)
    again = os.open(tmp_path / "lock", os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    # The program has its three streams and the lock. While it starts, it opens its libraries.
    await until(lambda: descriptors(child.pid) == 4)
    await child.stop_and_wait()
    fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(again)


async def test_long_lines_and_broken_text_come_in_pieces() -> None:
    lines: list[str] = []
    await run(shell(f"head -c {MAX_LINE_BYTES + 10} /dev/zero | tr '\\0' x; echo; printf '\\377ab'"), lines.append)
    assert sum(line.count("x") for line in lines) == MAX_LINE_BYTES + 10
    assert lines[-1] == "\ufffdab"


@pytest.mark.root
def test_as_root_a_program_runs_as_the_account_and_dies_with_its_runner() -> None:
    account = choose_account()
    assert account is not None
    command = [sys.executable, "-c", RUNNER, "id -u; id -g; id -G; echo $$; exec sleep 1000", account.ids]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as runner:
        assert runner.stdout is not None
        lines = [runner.stdout.readline().strip() for _ in range(4)]
        assert lines[:3] == [str(account.uid), str(account.gid), str(account.gid)]
        runner.kill()
        until_sync(lambda: not alive(int(lines[3])))


async def test_a_program_whose_output_a_daemon_keeps_ends_all_the_same() -> None:
    """The daemon has left its group."""
    lines: list[str] = []
    child = await Child.start(shell("setsid sh -c 'echo $$; exec sleep 1000' & wait; exit 3"), lines.append)
    await until(lambda: lines)
    kill(child.pid)
    assert await child.wait() == -signal.SIGKILL
    kill(int(lines[0]))


@pytest.mark.root
def test_as_root_binaries_in_a_closed_folder_are_copied_once(tmp_path: Path) -> None:
    closed = tmp_path / "closed" / "package"
    closed.mkdir(parents=True)
    closed.parent.chmod(0o700)
    (closed / "server").write_text("#!/bin/sh\n")
    (closed / "server").chmod(0o700)
    ours = tmp_path / "ours"
    ours.mkdir()
    folders = ServiceFolders(ours, choose_account())
    site = folders.binaries(closed, version="1")
    assert site == ours / "package-1"
    assert (site / "package" / "server").stat().st_mode & 0o777 == 0o755
    (site / "package" / "server").write_text("kept")
    assert folders.binaries(closed, version="1") == site
    assert (site / "package" / "server").read_text() == "kept"
    assert [entry.name for entry in ours.iterdir()] == ["package-1"]


@pytest.mark.root
def test_as_root_a_link_in_place_of_a_service_s_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "valkey").symlink_to("elsewhere")
    with pytest.raises(Exception, match="is not a folder of Longhaul's"):
        ServiceFolders(tmp_path, choose_account()).subfolder("valkey")
    assert (tmp_path / "elsewhere").stat().st_uid == 0
