"""The first process of a sandbox (pid 1): limits itself and all its children, then starts the interpreter.

    python init.py CONTROL     CONTROL: descriptor of the socket to the jailer; init.json has everything else

It is a script of its own: nothing of Longhaul is inside a sandbox but this file and kernel.py.

Commands from the jailer are a byte each: `s` stops every other process, and init answers with a byte once they are
stopped; `c` continues them; `i` sends Ctrl-C to the interpreter. When the interpreter ends, init ends with its exit
status (128 plus the number of a signal). The kernel then kills every other process of the sandbox.
"""

from __future__ import annotations

import binascii
import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys
from typing import Any

PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2
CPU_GRACE = 5
"""CPU seconds between SIGXCPU and the kernel's SIGKILL."""


class Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def prctl(option: int, value: Any, more: Any = 0) -> None:
    """Calls prctl(2). Raises OSError. `config.process` has one, too, but nothing of Longhaul's is inside a sandbox."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, more, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def main() -> None:
    """The whole life of a sandbox's first process."""
    with open(os.path.join(os.path.dirname(__file__), "init.json"), encoding="utf-8") as file:  # noqa: PTH118, PTH120, PTH123
        spec = json.load(file)
    control = socket.socket(fileno=int(sys.argv[1]))
    prctl(PR_SET_DUMPABLE, 0)  # no process inside may trace or read this one
    for folder in spec["folders"]:
        os.mkdir(folder)  # noqa: PTH102
    processes = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    socket.send_fds(control, [b"p"], [processes])
    os.close(processes)
    limit(spec["limits"], binascii.a2b_base64(spec["filter"]))
    wakeup = handle_signals()
    interpreter = os.fork()
    if interpreter == 0:
        become_interpreter(spec)
    for descriptor in spec["descriptors"].values():
        os.close(descriptor)
    os.dup2(os.open(os.devnull, os.O_RDWR), 2)
    control.send(b"!")
    sys.exit(serve(interpreter, control, wakeup))


def limit(limits: dict[str, Any], program: bytes) -> None:
    """Limits this process and all its children, for ever: resources and system calls. Raises OSError."""
    cpu, memory, disk = limits["cpu_seconds"], limits["memory"], limits["disk"]
    for kind, soft, hard in (
        (resource.RLIMIT_AS, memory, memory),
        (resource.RLIMIT_CPU, cpu, cpu + CPU_GRACE),
        (resource.RLIMIT_FSIZE, disk, disk),
        (resource.RLIMIT_NPROC, limits["processes"], limits["processes"]),
        (resource.RLIMIT_NOFILE, limits["open_files"], limits["open_files"]),
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_MEMLOCK, 0, 0),
        (resource.RLIMIT_MSGQUEUE, 0, 0),
        (resource.RLIMIT_RTPRIO, 0, 0),
        (resource.RLIMIT_NICE, 0, 0),
        (resource.RLIMIT_SIGPENDING, 256, 256),
    ):
        resource.setrlimit(kind, (soft, hard))
    filter_of_calls = Program(len(program) // 8, program)
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(filter_of_calls))


def handle_signals() -> int:
    """Sets the handlers; returns a descriptor that is readable whenever a child has ended."""
    wakeup, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return wakeup


def become_interpreter(spec: dict[str, Any]) -> None:
    """Sets up the child's stdin, stdout, stderr and the pipes of requests and answers, then runs the interpreter."""
    try:
        descriptors = spec["descriptors"]
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(descriptors["stdout"], 1)
        os.dup2(descriptors["stderr"], 2)
        os.chdir(spec["environment"]["HOME"])
        kept = {descriptors["requests"], descriptors["answers"]}
        for descriptor in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                os.set_inheritable(descriptor, descriptor in kept or descriptor < 3)
        argv = [*spec["argv"], str(descriptors["requests"]), str(descriptors["answers"])]
        argv.append(str(spec["limits"]["output"]))
        os.execve(argv[0], argv, spec["environment"])
    finally:
        os._exit(127)


def serve(interpreter: int, control: socket.socket, wakeup: int) -> int:
    """Obeys commands and collects ended children until the interpreter or the jailer is gone; the exit status."""
    while True:
        status = reap(interpreter)
        if status is not None:
            return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
        ready, _, _ = select.select([control.fileno(), wakeup], [], [])
        if wakeup in ready:
            os.read(wakeup, 4096)
        if control.fileno() in ready:
            commands = control.recv(64)
            if not commands:
                return 1
            for command in commands:
                obey(command, interpreter, control)


def reap(interpreter: int) -> int | None:
    """Collects every child that has ended; returns the interpreter's wait status if it is among them."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return 0
        if pid == interpreter:
            return status
        if pid == 0:
            return None


def obey(command: int, interpreter: int, control: socket.socket) -> None:
    """Carries out one command of the jailer."""
    with contextlib.suppress(ProcessLookupError):
        if command == ord("s"):
            os.kill(-1, signal.SIGSTOP)
            control.send(b"s")
        elif command == ord("c"):
            os.kill(-1, signal.SIGCONT)
        elif command == ord("i"):
            os.kill(interpreter, signal.SIGINT)


if __name__ == "__main__":
    main()
