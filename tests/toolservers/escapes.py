"""Ways out of the python tool's sandbox, each as code that tries it and prints what it got."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mcp import Client

from config.process import CHECKOUT
from tests.support.python_server import CellResult, PythonServer, notebook, run
from tests.support.waiting import until

OPTIONS = ("--cpu-seconds", "60", "--memory", "256MiB", "--disk", "16MiB", "--output", "16KiB")
SECONDS = {"timeout": "1"}
"""Deadlines of calls that must take too long. All others have `PATIENCE`: the machine may be busy."""
PATIENCE = "100"

AT_ONCE = 4
"""Sessions at once: their endless loops share this machine."""


@dataclass(frozen=True, slots=True)
class Escape:
    """`got` is a pattern that the text of the result must match; `killed` is the value that it must have."""

    area: str
    attempt: str
    code: str
    got: str
    killed: str | None = None


PRELUDE = """
import ctypes, os, platform, signal, socket, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
X86 = platform.machine() == "x86_64"

def syscall(x86, arm, *arguments):
    libc.syscall.restype = ctypes.c_long
    result = libc.syscall(x86 if X86 else arm, *arguments)
    print("returned", result) if result != -1 else print(os.strerror(ctypes.get_errno()))

def attempt(work):
    try:
        print("got", work())
    except OSError as error:
        print(f"{type(error).__name__}: {error.strerror or error}")

def open_descriptors():
    for name in os.listdir("/proc/self/fd"):
        try:
            yield os.readlink(f"/proc/self/fd/{name}").split(":")[0]
        except OSError:
            pass  # the list's own

def of_status(prefix):
    return {int(line.split()[1], 16) for line in open("/proc/self/status") if line.startswith(prefix)}
"""
"""Code that runs before every attempt."""

_EPERM = r"Operation not permitted|Permission denied"
_ENOSYS = r"Function not implemented"
_REFUSED = rf"^({_EPERM}|{_ENOSYS})$"
_ABSENT = r"^FileNotFoundError"

NETWORK = (
    ("TCP to a server on this machine", 'attempt(lambda: socket.create_connection(("127.0.0.1", LISTENER)))', _EPERM),
    ("UDP to the world", "attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))", _EPERM),
    ("IPv6", "attempt(lambda: socket.socket(socket.AF_INET6))", _EPERM),
    ("DNS", 'attempt(lambda: socket.getaddrinfo("example.com", 443))', r"gaierror"),
    ("raw packets", "attempt(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))", _EPERM),
    ("netlink", "attempt(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))", _EPERM),
    (
        "an abstract Unix socket of the host",
        'attempt(lambda: socket.socket(socket.AF_UNIX).connect("\\0longhaul-escape"))',
        r"ConnectionRefusedError",
    ),
    ("io_uring, which has sockets of its own", "syscall(425, 425, 8, ctypes.create_string_buffer(256))", _REFUSED),
)
FILES = (
    ("/etc/shadow", 'attempt(lambda: open("/etc/shadow").read())', _ABSENT),
    ("the repository", 'attempt(lambda: os.listdir(CHECKOUT + "/app"))', _ABSENT),
    (
        "/home, /root, /var, /sys, /boot",
        'print([f for f in ("/home", "/var", "/sys", "/boot", "/root/.bashrc") if os.path.exists(f)])',
        r"^\[\]$",
    ),
    ("a file in the host's /tmp", "attempt(lambda: open(SECRET).read())", _ABSENT),
    ("the server's environment", "print(sorted(os.environ))", r"^\['HOME', 'LANG', 'MKL_NUM_THREADS', 'MPL"),
    ("the environment of pid 1", 'attempt(lambda: open("/proc/1/environ").read())', rf"{_EPERM}|^got $"),
    (
        "out through /proc/self/root and cwd",
        'print(os.path.exists("/proc/self/root/etc/shadow"), os.path.exists("/proc/1/cwd/../app"))',
        r"^False False$",
    ),
    (
        "open descriptors of the server",
        "print(sorted(set(open_descriptors())))",
        r"^\['/dev/null', ('/proc/\d+/fd', )?'pipe'\]$",
    ),
    ("writing to /usr/lib", 'attempt(lambda: open("/usr/lib/x", "w"))', r"Read-only file system|Permission denied"),
    (
        "writing to the Python it runs in",
        'attempt(lambda: open(os.__file__, "a"))',
        r"Read-only file system|Permission denied",
    ),
    ("writing to its root folder", 'attempt(lambda: open("/x", "w"))', r"Read-only file system|Permission denied"),
    ("a disk of the host (mknod)", 'attempt(lambda: os.mknod("/tmp/disk", 0o60600, os.makedev(254, 0)))', _ENOSYS),
    ("a file by its handle", 'syscall(304, 265, -100, b"x" * 16, 0)', _REFUSED),
    ("chroot", 'attempt(lambda: os.chroot("/tmp"))', _ENOSYS),
)
PARENT = (
    (
        "other processes in /proc",
        'print(sorted(int(name) for name in os.listdir("/proc") if name.isdigit()) == [1, os.getpid()])',
        r"^True$",
    ),
    ("memory of pid 1", 'attempt(lambda: open("/proc/1/mem", "rb").read(1))', _EPERM),
    ("ptrace of pid 1", "syscall(101, 117, 16, 1, 0, 0)", _REFUSED),
    ("process_vm_readv of pid 1", "syscall(310, 270, 1, 0, 0, 0, 0, 0)", _REFUSED),
    (
        "killing pid 1 and the parent",
        'os.kill(1, 9); os.kill(os.getppid(), 15); attempt(lambda: os.kill(-1, 9)); print("alive")',
        r"^alive$",
    ),
    ("killing the server by its number", "attempt(lambda: os.kill(SERVER, 9))", r"ProcessLookupError"),
    ("limits of pid 1 (prlimit)", "syscall(302, 261, 1, 9, b'\\0' * 16, 0)", _REFUSED),
    ("more CPU than others (nice)", "attempt(lambda: os.nice(-20))", _ENOSYS),
)
RIGHTS = (
    ("setuid 0", "attempt(lambda: os.setuid(0))", _ENOSYS),
    ("another user", "attempt(lambda: os.setresuid(1, 1, 1))", _ENOSYS),
    ("a set-uid program", 'print([line for line in open("/proc/self/mountinfo") if "nosuid" not in line])', r"^\[\]$"),
    ("capabilities", 'print(of_status("Cap"), of_status("NoNewPrivs"))', r"^\{0\} \{1\}$"),
    ("mount", 'syscall(165, 40, b"none", b"/tmp", b"tmpfs", 0, 0)', _REFUSED),
    ("umount", 'syscall(166, 39, b"/usr/lib", 2)', _REFUSED),
    ("new mount API", 'syscall(430, 430, b"tmpfs", 0)', _REFUSED),
    ("pivot_root", 'syscall(155, 41, b".", b".")', _REFUSED),
    ("unshare: a new user namespace", "syscall(272, 97, 0x10000000)", _REFUSED),
    ("clone: a new user namespace", "syscall(56, 220, 0x10000011, 0, 0, 0, 0)", _REFUSED),
    ("clone3", "syscall(435, 435, b'\\0' * 88, 88)", _REFUSED),
    ("setns", "syscall(308, 268, 0, 0)", _REFUSED),
    ("keyctl", "syscall(250, 219, 0, -4, 0)", _REFUSED),
    ("bpf", "syscall(321, 280, 0, b'\\0' * 64, 64)", _REFUSED),
    ("perf_event_open", "syscall(298, 241, b'\\0' * 128, 0, -1, -1, 0)", _REFUSED),
    ("userfaultfd", "syscall(323, 282, 0)", _REFUSED),
    ("kexec_load", "syscall(246, 104, 0, 0, 0, 0)", _REFUSED),
    ("a kernel module", "syscall(175, 105, b'x', 1, b'')", _REFUSED),
    ("reboot", "syscall(169, 142, 0xfee1dead, 672274793, 0x89abcdef, 0)", _REFUSED),
    ("memory that no limit counts: memfd", "syscall(319, 279, b'x', 0)", _REFUSED),
    ("memory that no limit counts: System V", "syscall(29, 194, 0, 1 << 30, 0o600)", _REFUSED),
    ("a system call no kernel has yet", "syscall(999, 999)", _REFUSED),
    (
        "system calls of another architecture",
        """
import mmap
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(b"\\xb8\\x14\\0\\0\\0\\xcd\\x80\\xc3")  # getpid by int 0x80
getpid = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
child = os.fork()
if child == 0:
    getpid() if X86 else os.kill(os.getpid(), signal.SIGSYS)
    os._exit(0)
print("ended by", signal.Signals(os.WTERMSIG(os.waitpid(child, 0)[1])).name)
""",
        r"^ended by SIGSYS$",
    ),
)
HOARDERS = """
for _ in range(6):
    if os.fork() == 0:
        hoard = bytearray(os.urandom(1) * (120 * 2**20))
        time.sleep(60)
time.sleep(60)
"""
BOMB = """
while True:
    try:
        os.fork()
    except BaseException:
        pass
"""
THREADS = """
import threading
for _ in range(1000):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
"""
GARBAGE = """
for name in os.listdir("/proc/self/fd"):
    try:
        if "pipe" in os.readlink(f"/proc/self/fd/{name}") and int(name) > 2:
            for _ in range(10**5):
                os.write(int(name), b'{"id": 1, "result": {}}\\n' * 1000)
    except OSError:
        pass
"""
MORE_RESOURCES = (
    ("memory of one process", "hoard = bytearray(2**40)", r"MemoryError"),
    ("a file of a terabyte", "with open('f', 'wb') as f:\n    f.truncate(2**40)", r"\[Errno 27\] File too large"),
    ("open files", "kept = [open('/dev/null') for _ in range(10**4)]", r"\[Errno 24\] Too many open files"),
    ("a larger pipe", "import fcntl\nattempt(lambda: fcntl.fcntl(os.pipe()[1], 1031, 2**20))", _EPERM),
    ("larger socket buffers", "attempt(lambda: socket.socketpair()[0].setsockopt(1, 7, 2**22))", _EPERM),
    ("an endless answer", "class X:\n    def __repr__(self): return 'x' * 10**8\nX()", r"left out|MemoryError"),
    ("recursion", "def f(): f()\nf()", r"RecursionError"),
    (
        "memory as shared memory",
        'attempt(lambda: open("/dev/shm/x", "wb").write(bytes(17 * 2**20)))',
        r"No space left|File too large",
    ),
)
"""Attempts that fail at once and leave nothing behind, so they may share a session."""
RESOURCES = (
    ("endless loop", "while True:\n    pass", r"KeyboardInterrupt", "timeout"),
    (
        "endless loop that catches everything",
        "while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass",
        r"took longer than 1 s\. Its names are lost",
        "timeout",
    ),
    (
        "stopping itself",
        "os.kill(os.getpid(), signal.SIGSTOP)",
        r"took longer than 1 s\. Its names are lost",
        "timeout",
    ),
    (
        "endless CPU in a child",
        "for _ in range(9):\n    subprocess.run([sys.executable, '-c', 'while 1: pass'])",
        r"Stopped: it took",
        "timeout",
    ),
    (
        "endless output",
        "while True:\n    print('spam' * 1000)",
        r"bytes left out[\s\S]*printed more than 4\.0MiB",
        "output",
    ),
    (
        "endless output of a child",
        "subprocess.run([sys.executable, '-c', 'while 1: print(\"spam\" * 1000)'])",
        r"printed more than 4\.0MiB",
        "output",
    ),
    ("memory, slowly", "hoard = []\nwhile True:\n    hoard.append(bytearray(10**6))", r"MemoryError"),
    ("memory of many processes", HOARDERS, r"more than 256\.0MiB of memory\. Its names are lost", "memory"),
    ("fork bomb", "while True:\n    os.fork()", r"BlockingIOError: \[Errno 11\]"),
    ("fork bomb that never gives up", BOMB, r"took longer than 1 s", "timeout"),
    ("thread bomb", THREADS, r"can't start new thread"),
    (
        "filling the disk",
        "for n in range(99):\n    open(f'f{n}', 'wb').write(bytes(2**20))",
        r"\[Errno 28\] No space left",
    ),
    ("a million files", "for n in range(10**6):\n    open(f'f{n}', 'w').close()", r"\[Errno 28\] No space left"),
    ("nonsense to the server in place of an answer", GARBAGE, r"printed more than", "output"),
    (
        "a crash of the interpreter",
        "ctypes.string_at(0)",
        r"Stopped: the interpreter ended\. Its names are lost",
        "died",
    ),
)


def _all() -> list[Escape]:
    groups: Sequence[tuple[str, Sequence[tuple[str, ...]]]] = (
        ("network", NETWORK),
        ("files", FILES),
        ("parent", PARENT),
        ("rights", RIGHTS),
        ("more resources", MORE_RESOURCES),
        ("resources", RESOURCES),
    )
    return [Escape(area, *row) for area, rows in groups for row in rows]


ESCAPES = _all()


def wrong_with(escape: Escape, ran: CellResult) -> str | None:
    """How the result differs from the expected one; None if it does not."""
    if re.search(escape.got, ran.text, re.MULTILINE) is None:
        return f"{escape.attempt}: expected {escape.got!r}, got {ran.text!r}"
    if ran.killed != escape.killed:
        return f"{escape.attempt}: killed is {ran.killed!r}: {ran.text!r}"
    return None


async def attempts(server: PythonServer, escapes: Sequence[Escape], folder: Path) -> list[tuple[Escape, CellResult]]:
    """Tries the escapes: those of the area `resources` in one session each, all others in one session."""
    alone = [[escape] for escape in escapes if escape.area == "resources"]
    together = [escape for escape in escapes if escape.area != "resources"]
    gate = asyncio.Semaphore(AT_ONCE)
    secret = folder / "secret"
    secret.write_text("secret")
    secret.chmod(0o644)
    values = {"CHECKOUT": str(CHECKOUT), "SECRET": str(secret), "SERVER": server.process.pid}

    async def prepared(client: Client) -> bool:
        named = "".join(f"{name} = {value!r}\n" for name, value in values.items())
        return not (await run(client, PRELUDE + named)).failed

    async def tried(some: Sequence[Escape]) -> list[tuple[Escape, CellResult]]:
        async with gate, notebook(server) as client:
            await until(lambda: prepared(client), what="the prelude")  # its imports may take as long as a call may
            return [(escape, await run(client, escape.code)) for escape in some]

    with socket.socket(socket.AF_UNIX) as there, socket.create_server(("127.0.0.1", 0)) as listener:
        there.bind("\0longhaul-escape")
        there.listen()
        values["LISTENER"] = listener.getsockname()[1]
        groups = await asyncio.gather(*(tried(some) for some in [together, *alone] if some))
    return [pair for group in groups for pair in group]


def seconds_for(escape: Escape) -> str:
    """The deadline of calls that an attempt needs."""
    return SECONDS.get(escape.killed or "", PATIENCE)
