"""`longhaul tools python`: checks its own sandbox, then serves."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from workers.toolservers.python import selftest
from workers.toolservers.python.errors import SandboxError
from workers.toolservers.python.interpreter import examine
from workers.toolservers.python.options import Options, parse
from workers.toolservers.python.seccomp import filter_for
from workers.toolservers.python.session import SandboxPool
from workers.toolservers.python.spec import Builder, Isolation
from workers.toolservers.python.syscalls import Machine
from workers.toolservers.python.tool import make_server
from workers.toolservers.serving import (
    Endpoint,
    ServingError,
    log_to_stderr,
    serve_http,
    serve_stdio,
    token_of_environment,
)

log = logging.getLogger("longhaul.tools.python")

MCP_SESSIONS = 16
"""Open MCP sessions for each interpreter: many open one just to see which tools there are."""


async def serve(options: Options) -> None:
    """Until SIGTERM, SIGINT or the end of stdin. Raises SandboxError, ServingError."""
    token = token_of_environment()
    builder = await sandbox_builder(options)
    house = SandboxPool(builder, options.sessions, options.idle_seconds)
    server = make_server(house)
    if options.stdio:
        await serve_stdio(server)
        return
    endpoint = Endpoint(
        port=options.port,
        host=options.host,
        token=token,
        idle_seconds=options.idle_seconds,
        lost_seconds=options.lost_seconds,
        max_sessions=MCP_SESSIONS * options.sessions,
    )
    await serve_http(server, endpoint)


async def sandbox_builder(options: Options) -> Builder:
    """The first way to make a sandbox that holds on this machine. Raises SandboxError where none does."""
    interpreter = await asyncio.to_thread(examine, options.python)
    if sys.platform != "linux" or platform.machine() not in {machine.value for machine in Machine}:
        raise SandboxError(f"there is no sandbox for {sys.platform} on {platform.machine()}; the python tool stays off")
    program = filter_for(Machine(platform.machine()))
    trouble: list[str] = []
    for way, bubblewrap in _ways(options.isolation):
        builder = Builder(way, interpreter, options.limits, program, bubblewrap)
        try:
            await selftest.check(builder)
        except SandboxError as error:
            trouble.append(f"{way.value}: {error}")
            continue
        log.info("the sandbox holds (%s)", way.value)
        return builder
    raise SandboxError(f"{'; '.join(trouble)}; the python tool stays off")


def _ways(isolation: str) -> list[tuple[Isolation, Path | None]]:
    """What to try, best first. Raises SandboxError."""
    found = shutil.which("bwrap")
    own: list[tuple[Isolation, Path | None]] = [(Isolation.NAMESPACES, None)]
    theirs: list[tuple[Isolation, Path | None]] = [(Isolation.BUBBLEWRAP, Path(found))] if found else []
    if isolation == Isolation.NAMESPACES.value:
        return own
    # As root bubblewrap's processes stay root's outside, whom no limit of processes holds; ours get their own.
    root = os.geteuid() == 0
    if isolation == Isolation.BUBBLEWRAP.value:
        if root:
            raise SandboxError("--isolation bwrap: is not for root, whose processes it could not count")
        if not found:
            raise SandboxError("--isolation bwrap: there is no bwrap on PATH")
        return theirs
    return own if root else [*theirs, *own]


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 2 for what the operator has to set, 1 for a machine without a sandbox."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    log_to_stderr(options.log_level)
    try:
        asyncio.run(serve(options))
    except (SandboxError, ServingError) as error:
        sys.stderr.write(f"longhaul tools python: {error}\n")
        return 2 if isinstance(error, ServingError) else 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
