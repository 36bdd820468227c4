"""The jailer of one sandbox: makes it, watches its memory, and ends it. It runs outside, as a child of the server.

The first line of stdin is the specification; after it each byte is a command for `init.py`. The sandbox ends when stdin
does. On stdout the jailer writes messages, a line of JSON each:

* `{"ready": true}` or `{"failed": "why"}`;
* `{"paused": true}` whenever every process inside has been stopped;
* at the end, `{"ended": STATUS, "memory": BOOLEAN}`: the exit status of init, and whether it used too much memory.

No process is left behind, whichever dies: the kernel kills the jailer with the server, init with the jailer, and every
other process of the namespace with init.
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
from workers.toolservers.python.jail import namespaces

WATCH_SECONDS = 0.05
READY_SECONDS = 20.0
NICENESS = 10
ERROR_BYTES = 4096


def main() -> None:
    """The whole life of a jailer."""
    spec = json.loads(sys.stdin.buffer.readline())
    try:
        die_with_parent(spec["parent"], strict=True)
        child, control, proc = _start(spec)
    except OSError as error:
        _send({"failed": _reason(error)})
        return
    _send({"ready": True})
    status, memory = _watch(child, control, proc, spec["memory_bytes"])
    _send({"ended": status, "memory": memory})


def _send(message: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(1, json.dumps(message).encode() + b"\n")


def _reason(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)


def _start(spec: dict[str, Any]) -> tuple[int, socket.socket, int]:
    """Starts init: its process id, the socket to it, and its /proc. Raises OSError, whose strerror is the reason."""
    namespaces.enter(spec)
    set_parent_death_signal()  # new namespaces may have cleared the request
    ours, theirs = socket.socketpair()
    errors, write = os.pipe()
    child = os.fork()
    if child == 0:
        _become_init(spec, theirs, write)
    theirs.close()
    os.close(write)
    for descriptor in spec["descriptors"]:
        os.close(descriptor)
    ours.settimeout(READY_SECONDS)
    with contextlib.suppress(OSError):
        _, received, _, _ = socket.recv_fds(ours, 1, 1)
        if received and ours.recv(1) == b"!":
            ours.setblocking(False)
            return child, ours, received[0]
    _end(child)
    reason = os.read(errors, ERROR_BYTES).decode(errors="replace").strip()
    raise OSError(0, reason.rpartition("\n")[2] or "the sandbox's first process ended at once")


def _become_init(spec: dict[str, Any], control: socket.socket, errors: int) -> None:
    try:
        set_parent_death_signal()
        os.nice(NICENESS)
        os.umask(0o022)
        with open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123 (killed first if memory is short)
            file.write("1000")
        os.dup2(errors, 2)
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(0, 1)
        for descriptor in (control.fileno(), *spec["descriptors"]):
            os.set_inheritable(descriptor, True)
        spec["argv"].append(str(control.fileno()))
        namespaces.build(spec)
        set_parent_death_signal()  # the change of user cleared the request
        os.execve(spec["argv"][0], spec["argv"], {})
    except OSError as error:
        os.write(errors, _reason(error).encode())
    finally:
        os._exit(1)


def _watch(child: int, control: socket.socket, proc: int, max_memory: int) -> tuple[int, bool]:
    """Passes commands on and watches the memory until the sandbox ends; exit status, whether for its memory."""
    wakeup, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    paused = False
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), False
        ready, _, _ = select.select([0, wakeup, control.fileno()], [], [], None if paused else WATCH_SECONDS)
        if wakeup in ready:
            os.read(wakeup, 64)
        if 0 in ready:
            commands = os.read(0, 64)
            if not commands:
                return _end(child), False
            paused = commands[-1:] == b"s"
            with contextlib.suppress(OSError):  # init is ending
                control.send(commands)
        if control.fileno() in ready:
            with contextlib.suppress(OSError):
                if control.recv(64):  # else init has ended
                    _send({"paused": True})
        if memory_of(proc, max_memory) > max_memory:
            return _end(child), True


def _end(child: int) -> int:
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def memory_of(proc: int, limit: int) -> int:
    """Bytes of all processes in the /proc folder that `proc` is a descriptor of, in memory or swapped out.

    0 if within `limit`. The quick sum counts a page once for every process that shares it. Only beyond `limit` a slower
    sum counts it once.
    """
    try:
        pids = [name for name in os.listdir(proc) if name.isdigit()]
    except OSError:
        return 0  # all processes are gone
    if sum(_held(proc, pid) for pid in pids) <= limit:
        return 0
    return sum(_own_share(proc, pid) for pid in pids)


def _held(proc: int, pid: str) -> int:
    return _sum_of(_read(proc, f"{pid}/status"), b"VmRSS:", b"VmSwap:")


def _own_share(proc: int, pid: str) -> int:
    """What is held, each shared page divided by its users; undivided if the process hides its smaps, as it can."""
    return _sum_of(_read(proc, f"{pid}/smaps_rollup"), b"Pss:", b"SwapPss:") or _held(proc, pid)


def _sum_of(text: bytes, *fields: bytes) -> int:
    """The sum of these fields, which are in KiB, in bytes."""
    lines = (line.split() for line in text.splitlines())
    return sum(int(line[1]) * 1024 for line in lines if line and line[0] in fields)


def _read(folder: int, name: str) -> bytes:
    with contextlib.suppress(OSError), os.fdopen(os.open(name, os.O_RDONLY, dir_fd=folder), "rb", 0) as file:
        return file.read(4096)
    return b""


if __name__ == "__main__":
    main()
