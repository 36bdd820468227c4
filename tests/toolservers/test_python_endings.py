"""Processes that die in any order: callers get an error, and no process is left."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from config.process import CHECKOUT
from tests.support.processes import alive
from tests.support.python_server import PROGRAM, PythonServer, gone, notebook, python_server, run
from tests.support.waiting import until, until_sync

FRESH = "[The interpreter was started anew: names of earlier calls are lost.]"
by_root_and_by_nobody = pytest.mark.parametrize(
    "server",
    [pytest.param(False, id="by-root", marks=[pytest.mark.root, pytest.mark.long]), pytest.param(True, id="by-nobody")],
    indirect=True,
)


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PythonServer]:
    with python_server(tmp_path / "log", "--seconds", "100", as_nobody=request.param) as running:
        yield running


@by_root_and_by_nobody
async def test_a_kill_between_calls_or_during_one_informs_its_session_and_spares_the_others(
    server: PythonServer,
) -> None:
    async with notebook(server) as client, notebook(server) as other:
        await run(other, "x = 1")
        spared, pipes = server.process_tree(), server.pipes()
        for victim in (0, 1, 2):  # the jailer, the first process inside, the interpreter
            await run(client, "import time\nx = 2")
            calling = asyncio.create_task(run(client, "time.sleep(60)"))
            (jailer,) = [each for each in server.jailers() if each not in spared]
            (inside,) = jailer.children()
            (interpreter,) = inside.children()
            await until(lambda each=interpreter: each.status() == psutil.STATUS_SLEEPING, what="the call runs")
            processes = [jailer, inside, interpreter]
            processes[victim].kill()
            ran = await calling
            assert (ran.failed, ran.killed, ran.state_lost) == (True, "died", True)
            assert "the interpreter ended. Its names are lost" in ran.text
            gone(processes)
            assert (await run(client, "'x' in dir()")).text == f"{FRESH}\nFalse"
        (interpreter,) = [each for each in server.interpreters() if each not in spared]
        interpreter.kill()
        await until(lambda: server.pipes() == pipes, what="the server knows")
        ran = await run(client, "print('x' in dir())")
        assert (ran.text, ran.failed) == (f"{FRESH}\nFalse\n", False)
        assert (await run(client, "1")).text == "1"
        assert (await run(other, "x")).text == "1"


@by_root_and_by_nobody
async def test_a_server_that_is_killed_leaves_nothing_of_its_idle_and_busy_sessions(server: PythonServer) -> None:
    orphan = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(600)"
    with pytest.raises(BaseException):  # noqa: B017 (the SDK's: the connection broke)
        async with notebook(server) as idle, notebook(server) as busy:
            await run(idle, orphan)
            await run(busy, orphan)
            calling = asyncio.create_task(run(busy, "while True: pass"))
            tree = server.process_tree()
            assert len(tree) >= 8  # of each: jailer, first process, interpreter, the hidden process
            server.process.kill()
            gone(tree)
            await calling
            raise ConnectionError


@by_root_and_by_nobody
async def test_processes_left_by_a_cell_stand_still_and_end_with_the_session_or_a_signal(server: PythonServer) -> None:
    async with notebook(server) as client:
        await run(client, "import os\nif os.fork() == 0:\n    os.setsid()\n    while True: pass")
        tree = server.process_tree()
        (left,) = server.interpreters()  # the deepest one: a fork of the interpreter
        await until(lambda: left.status() == psutil.STATUS_STOPPED, what="it stands still")
    gone(tree)
    async with notebook(server) as client:
        await run(client, "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'while True: pass'])")
        tree = server.process_tree()
        assert len(tree) == 4
        server.process.terminate()
        until_sync(lambda: server.process.poll() is not None, what="the server has stopped")
        gone(tree)


async def test_a_session_that_used_its_cpu_time_gets_a_new_interpreter_and_shared_memory_counts_once(
    tmp_path: Path,
) -> None:
    shared = (
        "import os, time\nshared = bytearray(os.urandom(1) * (100 * 2**20))\nchildren = []\n"
        "for _ in range(8):\n    child = os.fork()\n    if child == 0:\n        time.sleep(1)\n        os._exit(0)\n"
        "    children.append(child)\n[os.waitpid(child, 0)[1] for child in children]"
    )
    with python_server(tmp_path / "log", "--cpu-seconds", "1", "--seconds", "60", "--memory", "256MiB") as server:
        async with notebook(server) as client:
            ran = await run(client, "while True: pass")
            assert (ran.failed, ran.killed, ran.state_lost) == (True, "cpu", True)
            assert "a process used more than 1 s of CPU time" in ran.text
            assert (await run(client, "1")).text == f"{FRESH}\n1"
            assert (await run(client, shared)).result == str([0] * 8)
            server.process.send_signal(signal.SIGINT)
            until_sync(lambda: server.process.poll() is not None, what="Ctrl-C has stopped it")
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_over_stdin_and_stdout_there_is_one_session_and_a_closed_stdin_ends_it(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*PROGRAM, "--stdio"], cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdin is not None and process.stdout is not None
    start = (
        b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},'
        b'"clientInfo":{"name":"t","version":"1"}}}\n{"jsonrpc":"2.0","method":"notifications/initialized"}\n'
    )
    call = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"python","arguments":{"code":"%s"}}}\n'
    for sent, received in (
        (start, b'"id":0'),
        (call % (1, b"x = 41"), b'"id":1'),
        (call % (2, b"x + 1"), b'"text":"42"'),
    ):
        process.stdin.write(sent)
        process.stdin.flush()
        assert received in process.stdout.readline()
    tree = psutil.Process(process.pid).children(recursive=True)
    assert len(tree) == 3
    process.stdin.close()
    assert process.wait(30) == 0
    process.stdout.close()
    assert not any(map(alive, tree))
