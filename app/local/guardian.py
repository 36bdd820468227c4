"""Runs one program and answers for its whole tree: `python guardian.py OPTIONS -- PROGRAM ARG...`.

A script of its own, with the standard library alone, because it must be able to outlive the runner. Between
the runner and each program stands one guardian:

* The **lifeline** is a pipe whose other end the runner holds. When it breaks (the runner ended, `kill -9`
  included), or when the guardian gets SIGTERM, the program's main process alone gets the stop signal.
* After `--grace` seconds (at once on SIGUSR1), or once the main process has ended, whatever is left of its
  tree gets SIGKILL: the guardian is a subreaper, so orphans of any session come back to it.
* If the guardian itself is killed, the kernel sends the program its stop signal (PR_SET_PDEATHSIG; the
  guardian has one thread and forks from it).

It ends with the program's exit status, and as the program was killed where a signal ended it.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import resource
import select
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
CANNOT_RUN = 127
"""Exit status where the program could not be started; the reason is on stderr."""
HANDLED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD)
IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE)
"""Ctrl-C and a closed terminal are the runner's business."""


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


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _become(program: list[str], user: str | None, stop: int, guardian: int) -> None:
    """In the child: own session, dropped rights, tied to the guardian, then the program itself."""
    try:
        os.setsid()
        if user:
            uid, gid = map(int, user.split(":"))
            os.setgroups([])
            os.setgid(gid)
            os.setuid(uid)
        _prctl(PR_SET_PDEATHSIG, stop)  # after setuid, which clears it
        if os.getppid() != guardian:
            os._exit(CANNOT_RUN)
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
    """Collects every ended child; the wait status of `main` where it is among them."""
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
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 (keeps the imports few)
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def _kill_tree(main: int) -> None:
    """SIGKILL to the main process's group and to every child, adopted orphans too, until none is left."""
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
    """Waits for the end of the main process; passes the stop signal on, once. Returns the wait status."""
    deadline: float | None = None
    watched = [lifeline, wakeup]
    while (status := _reap(main)) is None:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select(watched, [], [], left)
        numbers = os.read(wakeup, 4096) if wakeup in ready else b""
        if lifeline in ready:
            watched.remove(lifeline)
        if deadline is None and (lifeline in ready or signal.SIGTERM in numbers):
            os.kill(main, stop)
            deadline = time.monotonic() + grace
        if signal.SIGUSR1 in numbers or (deadline is not None and time.monotonic() >= deadline):
            os.kill(main, signal.SIGKILL)
            deadline = time.monotonic() + 1.0
    return status


def _listen() -> int:
    """Signals become bytes in a pipe, from the fork on; returns its read end."""
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
    import shutil  # slow to import, and rarely wanted

    shutil.rmtree(folder, ignore_errors=True)


def _leave(status: int) -> None:
    """Ends as the program ended."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    sys.exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 1)


def main() -> None:
    options = _options()
    for descriptor in (options.lifeline, *options.hold):
        os.set_inheritable(descriptor, False)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    wakeup = _listen()
    guardian = os.getpid()
    child = os.fork()
    if child == 0:
        _become(options.program, options.user, options.stop, guardian)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
    status = _watch(child, options.lifeline, wakeup, options.stop, options.grace)
    _kill_tree(child)
    for folder in options.remove:
        _remove(folder)
    _leave(status)


if __name__ == "__main__":
    main()
