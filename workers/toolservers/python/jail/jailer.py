"""The jailer of one sandbox: makes it, watches over its memory, ends it. It runs outside, as the server's child.

Line one of its stdin is the plan; then each byte is a command (`Command`), and the end of stdin is the end of the
sandbox. It says on stdout, a line of JSON each, `{"ready": true}` or `{"failed": "why"}`, `{"still": true}` whenever it
has stopped all that runs inside, and at the end
`{"ended": exit status of the first process inside, "memory": whether that was for its memory}`.

Whatever dies, nothing is left: the kernel kills the jailer with the server, the first process inside with the jailer,
and with that one every other process of its namespace.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
from typing import Any

from config.process import die_with_parent, set_parent_death_signal
from workers.toolservers.python.jail import bubblewrap, namespaces

WATCH_SECONDS = 0.05
READY_SECONDS = 20.0
NICENESS = 10
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TROUBLE_BYTES = 4096
HANDLED = (signal.SIGCHLD, signal.SIGTERM)


def main() -> None:
    """The whole life of a jailer."""
    plan = json.loads(sys.stdin.buffer.readline())
    try:
        signal.signal(signal.SIGTERM, lambda *_: None)
        die_with_parent(plan["parent"])
        child, control, processes = _start(plan)
    except OSError as error:
        _say({"failed": _why(error)})
        return
    _say({"ready": True})
    status, memory = _watch(child, control, processes, plan["memory_bytes"])
    _say({"ended": status, "memory": memory})


def _say(message: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(1, json.dumps(message).encode() + b"\n")


def _why(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)


def _start(plan: dict[str, Any]) -> tuple[int, socket.socket, int]:
    """The first process, the socket to it, and its /proc. Raises OSError, whose strerror says what is missing."""
    if plan["bubblewrap"] is None:
        namespaces.enter(plan)
        set_parent_death_signal()  # where new rights cleared it
    ours, theirs = socket.socketpair()
    trouble, write = os.pipe()
    child = os.fork()
    if child == 0:
        _become_inside(plan, theirs, write)
    theirs.close()
    os.close(write)
    for descriptor in plan["descriptors"]:
        os.close(descriptor)
    ours.settimeout(READY_SECONDS)
    with contextlib.suppress(OSError):
        _, received, _, _ = socket.recv_fds(ours, 1, 1)
        if received and ours.recv(1) == b"!":
            ours.setblocking(False)
            return child, ours, received[0]
    _end(child)
    reason = os.read(trouble, TROUBLE_BYTES).decode(errors="replace").strip()
    raise OSError(0, reason.rpartition("\n")[2] or "the sandbox's first process ended at once")


def _become_inside(plan: dict[str, Any], control: socket.socket, trouble: int) -> None:
    try:
        set_parent_death_signal()
        os.nice(NICENESS)
        os.umask(0o022)
        with open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123 (it is to go first where memory is short)
            file.write("1000")
        os.dup2(trouble, 2)
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(0, 1)
        for descriptor in (control.fileno(), *plan["descriptors"]):
            os.set_inheritable(descriptor, True)
        plan["argv"].append(str(control.fileno()))
        if plan["bubblewrap"] is None:
            namespaces.build(plan)
            argv = plan["argv"]
        else:
            argv = bubblewrap.command(plan)
        set_parent_death_signal()  # setting the user cleared it
        os.execve(argv[0], argv, {})
    except OSError as error:
        os.write(trouble, _why(error).encode())
    finally:
        os._exit(1)


def _watch(child: int, control: socket.socket, processes: int, most: int) -> tuple[int, bool]:
    """Passes commands on and looks at memory until the sandbox ends; (exit status, whether for its memory)."""
    wakeup, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in HANDLED:
        signal.signal(number, lambda *_: None)
    frozen = False
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), False
        ready, _, _ = select.select([0, wakeup, control.fileno()], [], [], None if frozen else WATCH_SECONDS)
        commands = os.read(0, 64) if 0 in ready else b"-"
        if not commands or (wakeup in ready and signal.SIGTERM in os.read(wakeup, 64)):
            return _end(child), False
        if 0 in ready:
            frozen = commands[-1:] == b"s"
            with contextlib.suppress(OSError):  # it is about to end
                control.send(commands)
        if control.fileno() in ready:
            with contextlib.suppress(OSError):
                if control.recv(64):  # else it has ended
                    _say({"still": True})
        if memory_of(processes, most) > most:
            return _end(child), True


def _end(child: int) -> int:
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def memory_of(processes: int, enough: int) -> int:
    """Resident bytes of all processes in the /proc that `processes` is a descriptor of.

    What several share, after a fork, counts once for each of them; beyond `enough` bytes it is looked at closely, which
    takes longer, and counts once.
    """
    try:
        pids = [name for name in os.listdir(processes) if name.isdigit()]
    except OSError:
        return 0  # all are gone
    if sum(_resident(processes, pid) for pid in pids) <= enough:
        return 0
    return sum(_own_share(processes, pid) for pid in pids)


def _resident(processes: int, pid: str) -> int:
    fields = _read(processes, f"{pid}/statm").split()
    return int(fields[1]) * PAGE_BYTES if fields else 0


def _own_share(processes: int, pid: str) -> int:
    """Resident bytes with shared pages divided by who shares them; undivided where the process hides, as it can."""
    for line in _read(processes, f"{pid}/smaps_rollup").splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024
    return _resident(processes, pid)  # now: it may be gone


def _read(folder: int, name: str) -> bytes:
    try:
        descriptor = os.open(name, os.O_RDONLY, dir_fd=folder)
    except OSError:
        return b""
    try:
        return os.read(descriptor, 4096)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    main()
