"""The interpreter inside a sandbox. It runs one cell after the other, as in a notebook: names stay from cell to cell,
the value of the last expression is the result, and an error ends its cell alone. It is a script of its own:

    python kernel.py REQUESTS ANSWERS MAX_BYTES     two descriptors, and the most bytes of a result or an error

Requests are {"id", "code"}, answers {"id", "result", "error", "images"}: a line of JSON each.

Code can do with this process what it likes, so `answer.py` trusts no answer.
"""

from __future__ import annotations

import ast
import binascii
import contextlib
import io
import json
import linecache
import os
import signal
import sys
import traceback
import types
from typing import Any

MAX_IMAGE_BYTES = 2 * 1024 * 1024
CO_COROUTINE = 0x80  # inspect.CO_COROUTINE; importing inspect is slow


class Kernel:
    """Runs cells in one namespace."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes  # of a result or an error
        self._own_pid = os.getpid()
        self._cells = 0
        self._loop: Any = None
        self._main = types.ModuleType("__main__")
        self._main.__dict__["display"] = display
        sys.modules["__main__"] = self._main

    def run(self, code: str) -> dict[str, Any]:
        """Runs a cell; returns its answer. stdout and stderr are not part of it."""
        answer: dict[str, Any] = {"result": None, "error": None, "images": []}
        signal.signal(signal.SIGINT, signal.default_int_handler)  # an earlier cell may have changed it
        try:
            value = self._evaluate(code)
            if value is not None:
                self._main.__dict__["_"] = value
                answer["result"] = self._truncate(repr(value))
            answer["images"] = figures()
        except BaseException as error:
            answer["error"] = self._describe(error)
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            flush()
        if os.getpid() != self._own_pid:
            os._exit(0)  # a forked child that reached the end of the cell
        return answer

    def _evaluate(self, code: str) -> Any:
        self._cells += 1
        name = f"<cell {self._cells}>"
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        tree = ast.parse(code, name)
        last = tree.body[-1] if tree.body else None
        if not isinstance(last, ast.Expr):
            return self._execute(tree, name, "exec")
        if tree.body[:-1]:
            self._execute(ast.Module(tree.body[:-1], []), name, "exec")
        value = self._execute(ast.Expression(last.value), name, "eval")
        return None if code.rstrip().endswith(";") else value

    def _execute(self, tree: Any, name: str, mode: str) -> Any:
        code = compile(tree, name, mode, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        value = eval(code, self._main.__dict__)
        if not code.co_flags & CO_COROUTINE:
            return value
        if self._loop is None:
            import asyncio

            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(value)

    def _describe(self, error: BaseException) -> str:
        trace = error.__traceback__
        while trace is not None and not trace.tb_frame.f_code.co_filename.startswith("<cell "):
            trace = trace.tb_next
        try:
            return self._truncate("".join(traceback.format_exception(type(error), error, trace)))
        except BaseException:
            return type(error).__name__

    def _truncate(self, text: str) -> str:
        """The beginning and the end of a text, with a note about what is left out."""
        data, half = text.encode(errors="backslashreplace"), self._max_bytes // 2
        missing = len(data) - 2 * half
        if missing <= 0:
            return data.decode()
        first, last = (part.decode(errors="replace") for part in (data[:half], data[-half:]))
        return f"{first}\n[... {missing} bytes left out ...]\n{last}"


def display(*values: Any) -> None:
    """Prints values as the result of a cell is shown."""
    for value in values:
        sys.stdout.write(f"{value!r}\n")


def flush() -> None:
    """Flushes the streams, even if code replaced or broke them."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(Exception):
            stream.flush()  # type: ignore[union-attr]  # code may set it to None


def figures() -> list[str]:
    """Closes matplotlib's open figures; returns them as PNG in base64."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return []
    images: list[str] = []
    for number in pyplot.get_fignums():
        file = io.BytesIO()
        pyplot.figure(number).savefig(file, format="png")
        images.append(binascii.b2a_base64(file.getvalue(), newline=False).decode())
    pyplot.close("all")
    if sum(map(len, images)) > MAX_IMAGE_BYTES:
        sys.stderr.write("[figures left out: they are too large]\n")
        return []
    return images


def write_all(descriptor: int, data: bytes) -> None:
    """Writes all of `data`, at once if the pipe has room."""
    while data:
        data = data[os.write(descriptor, data) :]


def main() -> None:
    """Answers requests until the pipe ends."""
    requests, answers, max_bytes = map(int, sys.argv[1:4])
    for descriptor in (requests, answers):
        os.set_inheritable(descriptor, False)
    sys.argv = [""]
    sys.path.append("")
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # keeps the output of a killed cell
    kernel = Kernel(max_bytes)
    write_all(answers, b'{"id": 0}\n')
    with os.fdopen(requests, "rb") as file:
        for line in file:
            request = json.loads(line)
            try:
                answer = kernel.run(request["code"])
            except KeyboardInterrupt:  # in the few instructions around the cell
                answer = {"result": None, "error": "KeyboardInterrupt", "images": []}
            write_all(
                answers,
                json.dumps({"id": request["id"], **answer}, ensure_ascii=False).encode() + b"\n",
            )


if __name__ == "__main__":
    main()
