"""Supervises one MCP server that speaks on stdin and stdout; arguments: PARENT MAX_BYTES COMMAND...

A program of its own, which uses `config.process`, `answers.py` and the standard library alone. It stands between a
worker and the server that the worker started, leads their process group, and kills the whole group

* when the worker (process id PARENT) dies, even by `kill -9`: the kernel then sends SIGUSR1;
* when the server has ended: its children end with it;
* when the server writes a line longer than MAX_BYTES: a line is a message, and somebody must hold it in memory.

It shortens long answers (`answers.py`), so that the worker, which has others to serve, never reads them.

If the supervisor itself is killed, the kernel kills the server.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys

from config.process import die_with_parent
from workers.mcp.answers import shortened

CANNOT_RUN = 127
"""Exit status if the server could not be started; the reason is on stderr."""
READ_BYTES = 65536
RESET_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python or this program handles or ignores; the server starts with their defaults."""


def _kill_group(*_: object) -> None:
    os.killpg(0, signal.SIGKILL)


def _handle_signals() -> int:
    """Sets the handlers; returns a file descriptor that is readable once a child may have ended."""
    wakeup, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: None)  # the whole group gets it: the server may end in order
    signal.signal(signal.SIGUSR1, _kill_group)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # undo what the worker's thread blocks
    return wakeup


def _become_server(command: list[str], supervisor: int, stdout: int) -> None:
    """Ties this child to the supervisor, then runs the server in its place."""
    try:
        die_with_parent(supervisor)
        os.dup2(stdout, 1)
        for number in RESET_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(CANNOT_RUN)


def _forward_output(output: int, wakeup: int, server: int, max_bytes: int) -> None:
    """Copies the server's output to stdout, line by line, until the server has ended, or a line is too long.

    Raises OSError if nobody reads stdout.
    """
    watched, held = [output, wakeup], bytearray()
    while True:
        ready, _, _ = select.select(watched, [], [])
        if output not in ready:
            os.read(wakeup, READ_BYTES)
            if os.waitpid(server, os.WNOHANG)[0]:
                return
        elif not (data := os.read(output, READ_BYTES)):
            watched.remove(output)
            _write(held)
            os.close(1)
        else:
            held += data
            if b"\n" in data:
                *lines, held = held.split(b"\n")
                _write(b"".join((shortened(line) if len(line) > READ_BYTES else line) + b"\n" for line in lines))
            if len(held) > max_bytes:
                return


def _write(data: bytes | bytearray) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(1, rest) :]


def main() -> None:
    """The whole life of a supervisor."""
    parent, max_bytes, *command = sys.argv[1:]
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    wakeup = _handle_signals()
    die_with_parent(int(parent), signal.SIGUSR1)
    output, write = os.pipe()
    supervisor = os.getpid()
    server = os.fork()
    if server == 0:
        _become_server(command, supervisor, write)
    os.close(write)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    with contextlib.suppress(OSError):
        _forward_output(output, wakeup, server, int(max_bytes))
    _kill_group()


if __name__ == "__main__":
    main()
