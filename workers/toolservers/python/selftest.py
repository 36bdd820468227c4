"""Checks from inside that the sandbox isolates on this machine, before any other code runs in it."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

from config.settings import CHECKOUT
from workers.toolservers.python.errors import SandboxError
from workers.toolservers.python.sandbox import Sandbox
from workers.toolservers.python.spec import SandboxSpec

_PROBES = """
import ctypes, json, os, socket, sys

libc = ctypes.CDLL(None, use_errno=True)
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
found = []

def refused(what, attempt):
    try:
        attempt()
    except OSError:
        return
    found.append(what)

def call(name, *arguments):
    if getattr(libc, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno())

def fork_all():
    children = []
    try:
        for _ in range(PROCESSES + 1):
            child = os.fork()
            if child == 0:
                import signal
                signal.pause()
            children.append(child)
    finally:
        for child in children:
            os.kill(child, 9)
            os.waitpid(child, 0)

def allocate():
    try:
        bytearray(MEMORY)
    except MemoryError:
        raise OSError

refused("a network socket can be opened", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
refused("a second user namespace can be made", lambda: call("unshare", 0x10000000))
refused("a file system can be mounted", lambda: call("mount", b"none", b"/tmp", b"tmpfs", 0, None))
refused("another process can be traced", lambda: call("ptrace", 16, 1, 0, 0))
refused("libraries can be written", lambda: open("/usr/lib/.longhaul", "w"))
refused("its root folder can be written", lambda: open("/.longhaul", "w"))
refused("more processes than allowed can be made", fork_all)
refused("more memory than allowed can be had", allocate)
found += [f"{path} can be seen" for path in HIDDEN if os.path.lexists(path)]
found += [f"the environment has {name}" for name in os.environ if name in FOREIGN]
if os.getppid() != 1 or len([name for name in os.listdir("/proc") if name.isdigit()]) != 2:
    found.append("other processes can be seen")
if 0 in os.getresuid() or 0 in os.getresgid():
    found.append("it runs as root")
if any(int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")):
    found.append("it has capabilities")
if status["NoNewPrivs"] != "1" or status["Seccomp"] != "2":
    found.append("it can get new rights, or its system calls are not filtered")
print(json.dumps(found))
"""


async def check(spec: SandboxSpec) -> None:
    """Raises SandboxError, which names what is not isolated, or why no sandbox could be made."""
    sandbox = await Sandbox.start(spec)
    try:
        outcome = await sandbox.run(_code(spec), asyncio.Event())
    finally:
        await sandbox.close()
    try:
        found = json.loads(outcome.stdout)
    except ValueError:
        reason = (outcome.error or outcome.stderr).strip().rpartition("\n")[2]
        raise SandboxError(f"no sandbox here: its self-test did not come through ({reason})") from None
    if found:
        raise SandboxError(f"the sandbox does not hold here: {found[0]}")


def _code(spec: SandboxSpec) -> str:
    limits = spec.limits
    hidden = [str(path) for path in _paths_to_hide() if not any(map(path.is_relative_to, spec.interpreter.paths))]
    values = {"PROCESSES": limits.processes, "MEMORY": limits.memory, "HIDDEN": hidden}
    values["FOREIGN"] = ["LONGHAUL_TOOLS_TOKEN", "DATABASE_URL", "REDIS_URL", "LONGHAUL_HOME"]
    return "".join(f"{name} = {value!r}\n" for name, value in values.items()) + _PROBES


def _paths_to_hide() -> list[Path]:
    paths = [Path("/etc/shadow"), Path("/sys"), Path("/boot"), CHECKOUT / "config", CHECKOUT / "app"]
    paths += [Path("/usr/bin/env"), Path("/var/lib"), Path("/root/.bashrc")]
    return [path for path in paths if os.access(path, os.F_OK)]  # what this user cannot see, the sandbox cannot
