"""The interpreter that code runs in, one cell after the other, as in a notebook: names stay, the value of the last
expression is shown, an error ends the cell alone. A script that stands alone, run inside the sandbox:

    python kernel.py REQUESTS ANSWERS LONGEST     descriptors, and bytes of a text

A line of JSON each: {"id", "code"} in, {"id", "result", "error", "images"} out.

It trusts nobody to keep it whole: code can do with this process what it likes. The one who asks knows that.
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

MOST_IMAGE_BYTES = 2 * 1024 * 1024
CO_COROUTINE = 0x80  # inspect's; modules that take long to import are imported where they are wanted


class Kernel:
    """Runs cells in one namespace."""

    def __init__(self, longest: int) -> None:
        self._longest = longest  # bytes of a result or an error; nobody wants more
        self._own_pid = os.getpid()
        self._cells = 0
        self._loop: Any = None
        self._main = types.ModuleType("__main__")
        self._main.__dict__["display"] = display
        sys.modules["__main__"] = self._main

    def run(self, code: str) -> dict[str, Any]:
        """What the cell came to. stdout and stderr went their own way."""
        answer: dict[str, Any] = {"result": None, "error": None, "images": []}
        signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever earlier cells made of it
        try:
            value = self._evaluate(code)
            if value is not None:
                self._main.__dict__["_"] = value
                answer["result"] = self._cut(repr(value))
            answer["images"] = figures()
        except BaseException as error:
            answer["error"] = self._describe(error)
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            flush()
        if os.getpid() != self._own_pid:
            os._exit(0)  # a fork of ours that came to the end of the cell
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
            return self._cut("".join(traceback.format_exception(type(error), error, trace)))
        except BaseException:
            return type(error).__name__

    def _cut(self, text: str) -> str:
        """The beginning and the end; a note where something is left out between them."""
        data, half = text.encode(errors="backslashreplace"), self._longest // 2
        missing = len(data) - 2 * half
        if missing <= 0:
            return data.decode()
        first, last = (part.decode(errors="replace") for part in (data[:half], data[-half:]))
        return f"{first}\n[... {missing} bytes left out ...]\n{last}"


def display(*values: Any) -> None:
    """Shows values as the end of a cell shows one."""
    for value in values:
        sys.stdout.write(f"{value!r}\n")


def flush() -> None:
    """Whatever code made of the streams."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(Exception):
            stream.flush()  # type: ignore[union-attr]  # None where code says so


def figures() -> list[str]:
    """What matplotlib holds, as PNG in base64; closes it."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return []
    images: list[str] = []
    for number in pyplot.get_fignums():
        file = io.BytesIO()
        pyplot.figure(number).savefig(file, format="png")
        images.append(binascii.b2a_base64(file.getvalue(), newline=False).decode())
    pyplot.close("all")
    if sum(map(len, images)) > MOST_IMAGE_BYTES:
        sys.stderr.write("[figures left out: they are too large]\n")
        return []
    return images


def write_all(descriptor: int, data: bytes) -> None:
    """Writes all of it, in one piece where it fits."""
    while data:
        data = data[os.write(descriptor, data) :]


def main() -> None:
    """Answers requests until there are no more."""
    requests, answers, longest = map(int, sys.argv[1:4])
    for descriptor in (requests, answers):
        os.set_inheritable(descriptor, False)
    sys.argv = [""]
    sys.path.append("")
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # so that a killed cell's output is not lost
    kernel = Kernel(longest)
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
