"""Runs one program and ends its whole process tree; arguments: OPTIONS -- PROGRAM ARG...

A program of its own, because it must outlive the runner (`longhaul up`). It uses `config.process` and the standard
library alone. Between the runner and each program stands one guardian:

* The **lifeline** is a pipe whose other end the runner holds. It breaks when the runner ends, even by `kill -9`.
  Then, or on SIGTERM, the guardian sends the stop signal to the program's main process alone.
* On SIGUSR2 it sends the stop signal, too, and sets no deadline: the program may take its own time.
* After `--grace` seconds (at once on SIGUSR1), or once the main process has ended, the guardian kills the rest of
  the tree. It is a subreaper, so orphans of any session become its children.
* If the guardian itself is killed, the kernel sends the program its stop signal.

The guardian ends as the program ended: with its exit status, or by the same signal.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import select
import signal
import sys
import time

from config.process import PR_SET_CHILD_SUBREAPER, die_with_parent, prctl

CANNOT_RUN = 127
"""Exit status if the program could not be started; the reason is on stderr."""
HANDLED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD)
IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE)
"""The runner handles Ctrl-C and a closed terminal."""


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lifeline", type=int, required=True, help="file descriptor, readable when the runner ends")
    parser.add_argument("--hold", type=int, action="append", default=[], help="file descriptor to keep open (a lock)")
    parser.add_argument("--stop", type=int, default=signal.SIGTERM, help="stop signal")
    parser.add_argument("--grace", type=float, default=10.0, help="seconds from the stop signal to SIGKILL")
    parser.add_argument("--user", help="UID:GID the program runs as")
    parser.add_argument("--remove", action="append", default=[], help="folder to remove at the end")
    parser.add_argument("program", nargs="+")
    return parser.parse_args()


def _become_program(program: list[str], user: str | None, stop: int, guardian: int) -> None:
    """In the child: starts a session, drops rights, ties it to the guardian, and runs the program in its place."""
    try:
        os.setsid()
        if user:
            uid, gid = map(int, user.split(":"))
            os.setgroups([])
            os.setgid(gid)
            os.setuid(uid)
        die_with_parent(guardian, stop)  # after setuid, which clears the request
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number in (*HANDLED, *IGNORED):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
        os.execvpe(program[0], program, os.environ)
    except OSError as error:
        os.write(2, f"{program[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(CANNOT_RUN)


def _reap(main: int) -> int | None:
    """Collects every child that has ended; returns the wait status of `main` if it is among them."""
    status = None
    while True:
        try:
            pid, result = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if pid == 0:
            return status
        if pid == main:
            status = result


def _parent(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def _kill_tree(main: int) -> None:
    """Sends SIGKILL to the main process's group and to every child, orphans included, until none is left."""
    own = os.getpid()
    while True:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(main, signal.SIGKILL)
        if sys.platform == "linux":
            for pid in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208
                if _parent(pid) == own:
                    os.kill(int(pid), signal.SIGKILL)
        _reap(0)
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        time.sleep(0.02)


def _watch(main: int, lifeline: int, wakeup: int, stop: int, grace: float) -> int:
    """Waits until the main process ends, and returns its wait status."""
    deadline: float | None = None
    watched = [lifeline, wakeup]
    while (status := _reap(main)) is None:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select(watched, [], [], left)
        numbers = os.read(wakeup, 4096) if wakeup in ready else b""
        if lifeline in ready:
            watched.remove(lifeline)
        if signal.SIGUSR2 in numbers:
            os.kill(main, stop)
        if deadline is None and (lifeline in ready or signal.SIGTERM in numbers):
            os.kill(main, stop)
            deadline = time.monotonic() + grace
        if signal.SIGUSR1 in numbers or (deadline is not None and time.monotonic() >= deadline):
            os.kill(main, signal.SIGKILL)
            deadline = time.monotonic() + 1.0
    return status


def _handle_signals() -> int:
    """Makes each signal a byte in a pipe, once the fork is done; returns the read end."""
    wakeup, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    for number in HANDLED:
        signal.signal(number, lambda *_: None)
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    return wakeup


def _remove(folder: str) -> None:
    import shutil  # slow to import, and rarely needed

    shutil.rmtree(folder, ignore_errors=True)


def _exit_like(status: int) -> None:
    """Ends this process as the program ended."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    sys.exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 1)


def main() -> None:
    """The whole life of a guardian."""
    options = _options()
    for descriptor in (options.lifeline, *options.hold):
        os.set_inheritable(descriptor, False)
    with contextlib.suppress(OSError):  # a container may forbid it; then only direct children are found
        prctl(PR_SET_CHILD_SUBREAPER, 1)
    wakeup = _handle_signals()
    guardian = os.getpid()
    child = os.fork()
    if child == 0:
        _become_program(options.program, options.user, options.stop, guardian)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
    status = _watch(child, options.lifeline, wakeup, options.stop, options.grace)
    _kill_tree(child)
    for folder in options.remove:
        _remove(folder)
    _exit_like(status)


if __name__ == "__main__":
    main()
