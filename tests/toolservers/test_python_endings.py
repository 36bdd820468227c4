"""Processes that die in any order: callers get an error, and no process is left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.python_server import PROGRAM, PythonServer, gone, notebook, python_server, run, runs
from tests.support.tool_process import CHECKOUT
from tests.support.waiting import until, until_sync

FRESH = "[The interpreter was started anew: names of earlier calls are lost.]"


@pytest.fixture(
    params=[
        pytest.param(False, id="by-root", marks=[pytest.mark.root, pytest.mark.long]),
        pytest.param(True, id="by-nobody"),
    ],
)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PythonServer]:
    with python_server(tmp_path / "log", "--seconds", "100", as_nobody=request.param) as running:
        yield running


async def test_interpreters_killed_between_calls_are_replaced_and_their_sessions_informed(server: PythonServer) -> None:
    async with notebook(server) as one, notebook(server) as two, notebook(server) as three, notebook(server) as other:
        await run(other, "x = 1")
        spared, pipes = server.interpreters(), server.pipes()
        for client in (one, two, three):
            await run(client, "x = 1")
        victims = [each for each in server.interpreters() if each not in spared]
        assert (len(spared), len(victims)) == (1, 3)
        for victim in victims:
            victim.kill()
        await until(lambda: server.pipes() == pipes, what="the server knows")
        for client in (one, two, three):
            ran = await run(client, "print('x' in dir())")
            assert (ran.text, ran.failed) == (f"{FRESH}\nFalse\n", False)
            assert (await run(client, "1")).text == "1"
        assert (await run(other, "x")).text == "1"


@pytest.mark.parametrize("whom", ["interpreter", "first process inside", "jailer"])
async def test_a_kill_during_a_call_fails_the_call_and_reports_lost_state(server: PythonServer, whom: str) -> None:
    async with notebook(server) as client:
        await run(client, "import time\nprint('started')")
        calling = asyncio.create_task(run(client, "time.sleep(60)"))
        (jailer,) = server.jailers()
        (inside,) = jailer.children()
        (interpreter,) = inside.children()
        await until(lambda: interpreter.status() == psutil.STATUS_SLEEPING, what="the call runs")
        {"interpreter": interpreter, "first process inside": inside, "jailer": jailer}[whom].kill()
        ran = await calling
        assert (ran.failed, ran.killed, ran.state_lost) == (True, "died", True)
        assert "the interpreter ended. Its names are lost" in ran.text
        gone([jailer, inside, interpreter])
        assert (await run(client, "1 + 1")).text == f"{FRESH}\n2"


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "in-a-call"])
async def test_a_server_that_is_killed_leaves_nothing(server: PythonServer, busy: bool) -> None:
    orphan = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(600)"
    with pytest.raises(BaseException):  # noqa: B017 (the SDK's: the connection broke)
        async with notebook(server) as client:
            await run(client, orphan)
            calling = asyncio.create_task(run(client, "while True: pass")) if busy else None
            tree = server.process_tree()
            assert len(tree) >= 4  # jailer, first process, interpreter, the hidden process
            server.process.kill()
            gone(tree)
            if calling is not None:
                await calling
            raise ConnectionError


async def test_a_server_that_gets_sigterm_leaves_nothing(server: PythonServer) -> None:
    async with notebook(server) as client:
        await run(client, "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'while True: pass'])")
        tree = server.process_tree()
        assert len(tree) == 4
        server.process.terminate()
        until_sync(lambda: server.process.poll() is not None, what="the server has stopped")
        gone(tree)


async def test_processes_left_by_a_cell_are_stopped_and_end_with_the_session(server: PythonServer) -> None:
    async with notebook(server) as client:
        await run(client, "import os\nif os.fork() == 0:\n    os.setsid()\n    while True: pass")
        tree = server.process_tree()
        (left,) = server.interpreters()  # the deepest one: a fork of the interpreter
        await until(lambda: left.status() == psutil.STATUS_STOPPED, what="it stands still")
    gone(tree)


async def test_a_session_that_used_its_cpu_time_gets_a_new_interpreter(tmp_path: Path) -> None:
    with python_server(tmp_path / "log", "--cpu-seconds", "1", "--seconds", "60") as server:
        async with notebook(server) as client:
            ran = await run(client, "while True: pass")
            assert (ran.failed, ran.killed, ran.state_lost) == (True, "cpu", True)
            assert "a process used more than 1 s of CPU time" in ran.text
            assert (await run(client, "1")).text == f"{FRESH}\n1"


async def test_memory_that_processes_share_counts_once(tmp_path: Path) -> None:
    code = (
        "import os, time\nshared = bytearray(os.urandom(1) * (100 * 2**20))\nchildren = []\n"
        "for _ in range(8):\n    child = os.fork()\n    if child == 0:\n        time.sleep(1)\n        os._exit(0)\n"
        "    children.append(child)\n[os.waitpid(child, 0)[1] for child in children]"
    )
    with python_server(tmp_path / "log", "--memory", "256MiB") as server:
        async with notebook(server) as client:
            assert (await run(client, code)).result == str([0] * 8)


def test_a_closed_stdin_ends_a_server_of_one_session(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*PROGRAM, "--stdio"], cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdin is not None and process.stdout is not None
    call = (
        b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},'
        b'"clientInfo":{"name":"t","version":"1"}}}\n{"jsonrpc":"2.0","method":"notifications/initialized"}\n'
        b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"python","arguments":{"code":"6*7"}}}\n'
    )
    process.stdin.write(call)
    process.stdin.flush()
    assert b'"id":1' in process.stdout.readline()
    assert b'"text":"42"' in process.stdout.readline()
    tree = psutil.Process(process.pid).children(recursive=True)
    assert len(tree) == 3
    process.stdin.close()
    assert process.wait(30) == 0
    process.stdout.close()
    assert not any(map(runs, tree))


async def test_ctrl_c_stops_a_server_without_output(tmp_path: Path) -> None:
    with python_server(tmp_path / "log") as server:
        async with notebook(server) as client:
            await run(client, "1")
        os.kill(server.process.pid, signal.SIGINT)
        until_sync(lambda: server.process.poll() is not None)
    assert "Traceback" not in (tmp_path / "log").read_text()
