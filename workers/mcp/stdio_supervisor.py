"""Runs one tool server that talks on stdin and stdout: `python keeper.py PARENT BYTES COMMAND...`.

A script of its own, with the standard library alone: it stands between a worker and a server that the worker started,
leads their process group, and kills all of that group

* when the worker (PARENT) dies, `kill -9` included. The kernel says so (PR_SET_PDEATHSIG), and means the *thread* that
  started this: start it on one that lives as long as the worker;
* when the server has ended: whatever it started goes with it;
* when the server writes a line of more than BYTES: a line is a message, which the worker has to hold as a whole.

A keeper that is killed takes the server along.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys

PR_SET_PDEATHSIG = 1
CANNOT_RUN = 127
"""Exit status where the server could not be started; the reason is on stderr."""
PART_BYTES = 65536
DEFAULTS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ)
"""What Python or this script handles, and the server must not inherit."""


def _die_with(parent: int, number: int) -> None:
    """Has the kernel send this process `number` when its parent dies; ends it where that has happened."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(CANNOT_RUN)


def _kill_group(*_: object) -> None:
    os.killpg(0, signal.SIGKILL)


def _listen() -> int:
    """A file descriptor that is readable once a child may have ended."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: None)  # the group gets it: the server may take its leave
    signal.signal(signal.SIGUSR1, _kill_group)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # whatever the worker's thread blocks
    return reading


def _become(command: list[str], keeper: int, writing: int) -> None:
    """In the child: tied to the keeper, then the server itself."""
    try:
        _die_with(keeper, signal.SIGKILL)
        os.dup2(writing, 1)
        for number in DEFAULTS:
            signal.signal(number, signal.SIG_DFL)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(CANNOT_RUN)


def _pass_on(reading: int, wakeup: int, child: int, most: int) -> None:
    """Returns once the server has ended and all is said, or a line is too long. Raises OSError: nobody listens."""
    watched, size = [reading, wakeup], 0
    while True:
        ready, _, _ = select.select(watched, [], [])
        if reading not in ready:
            os.read(wakeup, PART_BYTES)
            if os.waitpid(child, os.WNOHANG)[0]:
                return
        elif not (data := os.read(reading, PART_BYTES)):
            watched.remove(reading)
            os.close(1)
        else:
            end = data.rfind(b"\n") + 1
            size = len(data) - end + (0 if end else size)
            if size > most:
                return
            while data:
                data = data[os.write(1, data) :]


def main() -> None:
    parent, most, *command = sys.argv[1:]
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    wakeup = _listen()
    _die_with(int(parent), signal.SIGUSR1)
    reading, writing = os.pipe()
    keeper = os.getpid()
    child = os.fork()
    if child == 0:
        _become(command, keeper, writing)
    os.close(writing)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    with contextlib.suppress(OSError):
        _pass_on(reading, wakeup, child, int(most))
    _kill_group()


if __name__ == "__main__":
    main()
