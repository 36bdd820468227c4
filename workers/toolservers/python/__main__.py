"""`longhaul tools python`: checks that its sandbox isolates, then serves."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import shutil
import sys
from pathlib import Path

from workers.toolservers.python import selftest
from workers.toolservers.python.errors import SandboxError
from workers.toolservers.python.interpreter import examine
from workers.toolservers.python.jail.cgroups import delegated
from workers.toolservers.python.jail.seccomp import filter_for
from workers.toolservers.python.jail.syscalls import Machine
from workers.toolservers.python.session import SandboxPool
from workers.toolservers.python.settings import PythonSettings
from workers.toolservers.python.spec import Isolation, SandboxSpec
from workers.toolservers.python.tool import make_server
from workers.toolservers.serving import (
    Endpoint,
    ServingError,
    log_to_stderr,
    serve_http,
    serve_stdio,
    token_of_environment,
)
from workers.toolservers.settings import load

log = logging.getLogger("longhaul.tools.python")

MCP_SESSIONS = 16
"""Open MCP sessions per interpreter: many clients open a session only to list the tools."""


async def serve(settings: PythonSettings) -> None:
    """Serves until SIGTERM, SIGINT or the end of stdin. Raises SandboxError, ServingError."""
    token = token_of_environment()
    spec = await checked_spec(settings)
    server = make_server(SandboxPool(spec, settings.sessions, settings.idle_seconds))
    if settings.stdio:
        await serve_stdio(server)
        return
    endpoint = Endpoint(
        port=settings.port,
        host=settings.host,
        token=token,
        idle_seconds=settings.idle_seconds,
        lost_seconds=settings.lost_seconds,
        max_sessions=MCP_SESSIONS * settings.sessions,
    )
    await serve_http(server, endpoint)


async def checked_spec(settings: PythonSettings) -> SandboxSpec:
    """A specification with the first isolation that passes the self-test here. Raises SandboxError if none does."""
    interpreter = await asyncio.to_thread(examine, settings.python)
    if sys.platform != "linux" or platform.machine() not in {machine.value for machine in Machine}:
        raise SandboxError(f"there is no sandbox for {sys.platform} on {platform.machine()}; the python tool stays off")
    program = filter_for(Machine(platform.machine()))
    failures: list[str] = []
    cgroups = delegated()
    for isolation, bubblewrap in _candidates(settings.isolation):
        spec = SandboxSpec(isolation, interpreter, settings.limits(), program, bubblewrap, cgroups)
        try:
            await selftest.check(spec)
        except SandboxError as error:
            failures.append(f"{isolation.value}: {error}")
            continue
        log.info("the sandbox holds (%s%s)", isolation.value, ", in a cgroup of its own" if cgroups else "")
        return spec
    raise SandboxError(f"{'; '.join(failures)}; the python tool stays off")


def _candidates(option: str) -> list[tuple[Isolation, Path | None]]:
    """The kinds of isolation to try, best first, with the path of bwrap. Raises SandboxError."""
    found = shutil.which("bwrap")
    namespaces: list[tuple[Isolation, Path | None]] = [(Isolation.NAMESPACES, None)]
    bubblewrap: list[tuple[Isolation, Path | None]] = [(Isolation.BUBBLEWRAP, Path(found))] if found else []
    if option == Isolation.NAMESPACES.value:
        return namespaces
    # Root's bubblewrap runs processes as root, whom no limit of processes binds; namespaces give them another user id.
    root = os.geteuid() == 0
    if option == Isolation.BUBBLEWRAP.value:
        if root:
            raise SandboxError("--isolation bwrap: is not for root, whose processes it could not count")
        if not found:
            raise SandboxError("--isolation bwrap: there is no bwrap on PATH")
        return bubblewrap
    return namespaces if root else [*bubblewrap, *namespaces]


def main() -> int:
    """Runs the server; returns the exit status: 2 for a wrong option or variable, 1 if there is no sandbox."""
    try:
        settings = load(PythonSettings, sys.argv[1:], label="argument {option}")
        log_to_stderr(settings.log_level)
        asyncio.run(serve(settings))
    except (SandboxError, ServingError) as error:
        sys.stderr.write(f"longhaul tools python: {error}\n")
        return 2 if isinstance(error, ServingError) else 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
