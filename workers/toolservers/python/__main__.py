"""`longhaul tools python`: checks that its sandbox isolates, then serves."""

from __future__ import annotations

import asyncio
import logging
import platform
import sys

from workers.toolservers.python import selftest
from workers.toolservers.python.errors import SandboxError
from workers.toolservers.python.jail.cgroups import delegated
from workers.toolservers.python.jail.seccomp import Machine, filter_for
from workers.toolservers.python.session import SandboxPool
from workers.toolservers.python.settings import PythonSettings
from workers.toolservers.python.spec import SandboxSpec, examine
from workers.toolservers.python.tool import make_server
from workers.toolservers.serving import run, serve

log = logging.getLogger("longhaul.tools.python")

MCP_SESSIONS = 16
"""Open MCP sessions per interpreter: many clients open a session only to list the tools."""


async def serve_python(settings: PythonSettings) -> None:
    """Serves until SIGTERM, SIGINT or the end of stdin. Raises StartError."""
    pool = SandboxPool(await checked_spec(settings), settings.sessions, settings.idle_seconds)
    await serve(make_server(pool), settings, MCP_SESSIONS * settings.sessions)


async def checked_spec(settings: PythonSettings) -> SandboxSpec:
    """The specification of a sandbox that passes the self-test here. Raises SandboxError if none can."""
    interpreter = await asyncio.to_thread(examine, settings.python)
    if sys.platform != "linux" or platform.machine() not in {machine.value for machine in Machine}:
        raise SandboxError(f"there is no sandbox for {sys.platform} on {platform.machine()}; the python tool stays off")
    cgroups = delegated()
    spec = SandboxSpec(interpreter, settings.limits(), filter_for(Machine(platform.machine())), cgroups)
    try:
        await selftest.check(spec)
    except SandboxError as error:
        raise SandboxError(f"{error}; the python tool stays off") from None
    log.info("the sandbox holds%s", " (in a cgroup of its own)" if cgroups else "")
    return spec


if __name__ == "__main__":
    sys.exit(run(PythonSettings, serve_python))
