"""The python tool as a client sees it: results, sessions, limits, and access."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import psutil
import pytest
import pytest_asyncio
from mcp import Client
from mcp.shared.exceptions import MCPError

from tests.support.processes import alive
from tests.support.python_server import CellResult, PythonServer, notebook, python_server, run
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PythonServer]:
    limits = ("--seconds", "100000", "--output", "4KiB", "--sessions", "8")
    with python_server(tmp_path_factory.mktemp("python") / "log", *limits, "--log-level", "DEBUG") as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(server: PythonServer) -> AsyncIterator[Client]:
    """One session for all tests that need no names, files or processes of their own."""
    opened, closing = asyncio.get_running_loop().create_future(), asyncio.Event()

    async def hold() -> None:  # the task that opened the client must close it
        async with notebook(server) as client:
            opened.set_result(client)
            await closing.wait()

    holder = asyncio.create_task(hold())
    yield await opened
    closing.set()
    await holder


async def test_there_is_one_tool_named_python_with_one_argument(client: Client) -> None:
    (tool,) = (await client.list_tools()).tools
    assert tool.name == "python"
    assert tool.input_schema["required"] == ["code"]
    assert list(tool.input_schema["properties"]) == ["code"]
    assert tool.meta == {"include_in_prompt": False}


async def test_output_then_the_value_of_the_last_expression_as_a_notebook_shows_it(client: Client) -> None:
    ran = await run(client, "import sys\nprint('out')\nprint('err', file=sys.stderr)\n6 * 7")
    assert ran.text == "out\nerr\n42"
    assert (ran.stdout, ran.stderr, ran.result, ran.error, ran.killed) == ("out\n", "err\n", "42", None, None)
    assert not ran.failed


CELLS = {
    "": "",
    "x = 1": "",
    "None": "",
    "40 + 2;": "",
    "if True:\n    3": "",
    "'a\\nb'": "'a\\nb'",
    "1\n2\n3": "3",
    "print('no line end', end='')\n5": "no line end\n5",
    "_ = 0": "",
    "5\n_ + 1": "1",
    "display([1])": "[1]\n",
    "# nothing": "",
    "'é' * 3 + '\\ud800'": "'ééé\\ud800'",
    "import asyncio\nawait asyncio.sleep(0, 'slept')": "'slept'",
    "x = await asyncio.gather(asyncio.sleep(0, 1))\nx": "[1]",
}


async def test_a_cell_shows_what_a_notebook_shows_and_may_await(server: PythonServer) -> None:
    async with notebook(server) as client:
        for code, text in CELLS.items():
            assert (await run(client, code)).text == text, code


async def test_names_stay_from_call_to_call(client: Client) -> None:
    await run(client, "import math\nx = 20\ndef twice(n):\n    return 2 * n")
    assert (await run(client, "twice(x) + math.floor(2.5)")).result == "42"
    assert (await run(client, "_")).result == "42"


async def test_files_stay_from_call_to_call(client: Client) -> None:
    await run(client, "open('notes.txt', 'w').write('kept')\nopen('mine.py', 'w').write('answer = 42')")
    assert (await run(client, "import mine\nopen('/mnt/data/notes.txt').read(), mine.answer")).result == "('kept', 42)"


async def test_two_sessions_share_nothing(server: PythonServer) -> None:
    async with notebook(server) as first, notebook(server) as second:
        await run(first, "x = 1\nopen('f', 'w').write('mine')\nopen('/tmp/g', 'w').write('mine')")
        assert "NameError" in (await run(second, "x")).text
        assert (
            await run(second, "import os\nos.path.exists('f'), os.path.exists('/tmp/g')")
        ).result == "(False, False)"
        assert (await run(second, "sorted(int(n) for n in os.listdir('/proc') if n.isdigit())")).result == "[1, 2]"


async def test_an_exception_is_a_result_and_no_failure(client: Client) -> None:
    ran = await run(client, "def f(n):\n    return 1 / n\nf(0)")
    assert not ran.failed
    assert ran.killed is None
    assert ran.last_line == "ZeroDivisionError: division by zero"
    assert re.search(r'File "<cell \d+>", line 3, in <module>\n    f\(0\)\n', ran.text)
    assert "kernel.py" not in ran.text


ERRORS = {
    "1 +": "SyntaxError: invalid syntax",
    "input()": "EOFError: EOF when reading a line",
    "raise KeyboardInterrupt": "KeyboardInterrupt",
    "'\\0' + chr(0)\nfoo": "NameError: name 'foo' is not defined",
    "class X:\n    def __repr__(self): raise ValueError('no')\nX()": "ValueError: no",
    "class E(Exception):\n    def __str__(self): raise ValueError\nraise E": "E: <exception str() failed>",
    "exit()": "SystemExit: None",  # the last one: it closes stdin
}


async def test_an_error_leaves_the_interpreter_unchanged(client: Client) -> None:
    await run(client, "before = 1")
    for code, last_line in ERRORS.items():
        ran = await run(client, code)
        assert ran.last_line.endswith(last_line) and not ran.failed, code
        assert (await run(client, "before")).result == "1", code


async def test_output_of_subprocesses_and_of_the_c_library_is_captured(client: Client) -> None:
    code = "import subprocess, sys, os\nos.write(2, b'raw ')\nsubprocess.run([sys.executable, '-c', 'print(6*7)']);"
    ran = await run(client, code)
    assert (ran.stdout, ran.stderr) == ("42\n", "raw ")


async def test_processes_of_multiprocessing_work_and_stay(server: PythonServer) -> None:
    code = "import multiprocessing\ndef f(n): return n * n\npool = multiprocessing.Pool(2)\npool.map(f, [1, 2, 3])"
    async with notebook(server) as client:
        assert (await run(client, code)).result == "[1, 4, 9]"
        assert (await run(client, "pool.map(f, [4])")).result == "[16]"


FORK = "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\n'child' if not pid else 'parent'"


async def test_a_forked_child_that_reaches_the_end_of_the_cell_answers_nothing(client: Client) -> None:
    assert (await run(client, FORK)).result == "'parent'"
    assert (await run(client, "1 + 1")).result == "2"


async def test_a_child_forked_at_once_is_not_left_stopped(server: PythonServer) -> None:
    for _ in range(12):  # one in eight stops before a first cell was late and caught the fork
        async with notebook(server) as client:
            assert (await run(client, FORK)).result == "'parent'"


FIGURES = """
import sys, types
pyplot = types.ModuleType("matplotlib.pyplot")
pyplot.numbers = [1, 2]
pyplot.get_fignums = lambda: pyplot.numbers
pyplot.figure = lambda number: types.SimpleNamespace(savefig=lambda file, format: file.write(b"png%d" % number))
pyplot.close = lambda which: pyplot.numbers.clear()
sys.modules["matplotlib.pyplot"] = pyplot
print("plotted")
"""


async def test_figures_come_as_images(client: Client) -> None:
    result = await client.call_tool("python", {"code": FIGURES})
    text, *images = result.content
    assert text.type == "text" and text.text == "plotted\n"
    assert [(image.type, image.mime_type) for image in images] == [("image", "image/png")] * 2
    assert [base64.b64decode(image.data) for image in images] == [b"png1", b"png2"]
    assert len((await client.call_tool("python", {"code": "1"})).content) == 1


async def test_long_text_loses_its_middle_with_a_note(client: Client) -> None:
    ran = await run(client, "print('a' + 'x' * 100_000 + 'z')")
    assert len(ran.text) < 4200
    assert ran.text.startswith("axx") and ran.text.endswith("xz\n")
    assert "\n[... 95907 bytes left out ...]\n" in ran.text
    assert not ran.failed
    long_value = await run(client, "'ü' * 100_000")
    assert long_value.result is not None and len(long_value.result.encode()) < 4200
    assert "left out" in long_value.text


async def test_calls_of_one_session_run_one_after_the_other(client: Client) -> None:
    await run(client, "import time\nlog = []")
    cell = "log.append('in')\ntime.sleep(0.05)\nlog.append('out')"
    await asyncio.gather(*(run(client, cell) for _ in range(4)))
    assert (await run(client, "log")).result == str(["in", "out"] * 4)


async def test_calls_of_two_sessions_run_at_the_same_time(server: PythonServer, client: Client) -> None:
    async with notebook(server) as first:
        slow = asyncio.create_task(run(first, "import time\ntime.sleep(100000)"))
        for _ in range(3):
            assert (await run(client, "1 + 1")).result == "2"
        assert not slow.done()
        slow.cancel()


async def alone(server: PythonServer) -> list[psutil.Process]:
    """Waits until only the shared session is left; returns its processes."""
    await until(lambda: len(server.jailers()) <= 1, what="the sandboxes of earlier tests are gone")
    return server.process_tree()


async def test_threads_left_by_a_cell_are_stopped_until_the_next_call(server: PythonServer) -> None:
    others = await alone(server)
    start = "import threading, time\nn = 0\ndef count():\n    global n\n    while True:\n        n += 1\n"
    async with notebook(server) as client:
        await run(client, start + "threading.Thread(target=count, daemon=True).start()")
        (interpreter,) = [each for each in server.interpreters() if each not in others]
        await until(lambda: interpreter.status() == psutil.STATUS_STOPPED, what="its threads stand still")
        await run(client, "m = n\nwhile n == m: time.sleep(0.01)")
        await until(lambda: interpreter.status() == psutil.STATUS_STOPPED, what="its threads stand still again")


async def test_the_model_is_told_of_invalid_arguments(client: Client) -> None:
    for arguments, message in (
        ({}, "code: is missing"),
        ({"code": 1}, "code: must be a string"),
        ({"code": None}, "code: must be a string"),
        ({"code": "1", "language": "c"}, "language: unknown argument; there is only 'code'"),
        ({"code": "x" * 1_100_000}, "code: must be at most 1048576 characters"),
    ):
        result = await client.call_tool("python", arguments)
        (content,) = result.content
        assert result.is_error and content.type == "text" and content.text == message


async def test_a_long_cell_runs(client: Client) -> None:
    assert (await run(client, "x = '" + "y" * 900_000 + "'\nlen(x)")).result == "900000"


async def test_a_call_of_another_tool_is_a_protocol_error(client: Client) -> None:
    with pytest.raises(MCPError, match="there is only 'python'"):
        await client.session.call_tool("bash", {"code": "ls"})


async def test_a_call_beyond_the_limit_of_interpreters_is_refused_and_the_log_has_no_code(tmp_path: Path) -> None:
    with python_server(tmp_path / "log", "--sessions", "1") as server:
        async with notebook(server) as second:
            async with notebook(server) as first:
                await run(first, "print('sec' + 'ret-output')\nraise ValueError('secret-error')  # secret-code")
                await run(first, "import os; os._exit(1)  # secret-code")
                await first.call_tool("python", {"secret-code": "secret-code"})
                await run(first, "1")
                refused = await run(second, "1")
                assert refused.failed
                assert "all 1 interpreters of this server are in use" in refused.text

            async def served() -> CellResult | None:
                ran = await run(second, "1")
                return None if ran.failed else ran

            # The server frees the place of the first session a moment after the last process of it is gone.
            assert (await until(served, what="the second session is served")).result == "1"
    assert "secret" not in (tmp_path / "log").read_text()


async def test_deleting_a_session_ends_its_interpreter_also_during_a_call(server: PythonServer) -> None:
    for busy in (False, True):
        others = await alone(server)
        async with notebook(server) as client:
            await run(client, "import time")
            (interpreter,) = [each for each in server.interpreters() if each not in others]
            if busy:
                running = asyncio.create_task(run(client, "open('started', 'w')\nwhile True: time.sleep(1)"))
                await until(started_in(interpreter).exists, what="the call runs")
                running.cancel()
        await until(lambda each=interpreter: not alive(each), what="the sandbox is gone")


def started_in(interpreter: psutil.Process) -> Path:
    """A file that a cell makes there by the name `started`."""
    return Path(f"/proc/{interpreter.pid}/root/tmp/home/started")


async def test_a_cancelled_call_stops_and_names_stay(server: PythonServer) -> None:
    others = await alone(server)
    async with notebook(server) as client:
        await run(client, "x = 1")
        calling = asyncio.create_task(run(client, "open('started', 'w')\nwhile True: pass"))
        (interpreter,) = [each for each in server.interpreters() if each not in others]
        await until(started_in(interpreter).exists, what="the call runs")
        calling.cancel()
        assert (await run(client, "x")).text == "1"


async def test_a_page_in_a_browser_cannot_call_the_tool(server: PythonServer) -> None:
    async with httpx.AsyncClient() as http:
        answer = await http.post(server.url, json={}, headers={"origin": "http://example.com"})
        assert answer.status_code == 403
