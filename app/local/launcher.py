"""Becomes a program that ends with its runner; arguments: OPTIONS -- PROGRAM ARG...

The kernel sends the program its stop signal when the runner (`longhaul up`) ends, even by `kill -9`. It uses
`config.process` and the standard library alone.
"""

from __future__ import annotations

import argparse
import os
import signal

from config.process import die_with_parent

CANNOT_RUN = 127
"""Exit status if the program could not be started; the reason is on stderr."""


def main() -> None:
    """Drops rights, ties this process to the runner, and runs the program in its place."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runner", type=int, required=True, help="process id of the runner")
    parser.add_argument("--stop", type=int, default=signal.SIGTERM, help="stop signal")
    parser.add_argument("--user", help="UID:GID the program runs as")
    parser.add_argument("program", nargs="+")
    options = parser.parse_args()
    program = options.program
    try:
        if options.user:
            uid, gid = map(int, options.user.split(":"))
            os.setgroups([])
            os.setgid(gid)
            os.setuid(uid)
        die_with_parent(options.runner, options.stop)  # after setuid, which clears the request
        for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.execvpe(program[0], program, os.environ)
    except OSError as error:
        os.write(2, f"{program[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(CANNOT_RUN)
