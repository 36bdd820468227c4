"""The command line of `longhaul tools python`, checked."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from workers.toolservers.python.interpreter import default_executable
from workers.toolservers.python.limits import Limits, parse_bytes, show_bytes

DEFAULT_PORT = 8801
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
_DEFAULTS = Limits()


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one server. Durations are in seconds."""

    stdio: bool
    host: str
    port: int
    sessions: int
    idle_seconds: float
    lost_seconds: float
    isolation: str
    python: Path
    log_level: str
    limits: Limits


def parse(arguments: Sequence[str]) -> Options:
    """Reads the command line. Exits with status 2 and one line if it is wrong, and with 0 after `--help`."""
    given = _parser().parse_args(arguments)
    limits = Limits(
        seconds=given.seconds,
        cpu_seconds=given.cpu_seconds,
        memory_bytes=given.memory,
        output_bytes=given.output,
        processes=given.processes,
        disk_bytes=given.disk,
        open_files=given.open_files,
    )
    return Options(
        stdio=given.stdio,
        host=given.host,
        port=given.port,
        sessions=given.sessions,
        idle_seconds=given.idle_seconds,
        lost_seconds=given.lost_seconds,
        isolation=given.isolation,
        python=given.python,
        log_level=given.log_level,
        limits=limits,
    )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        self.exit(2, f"{self.prog}: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="longhaul tools python",
        description="An MCP server whose one tool, python, runs code in a sandbox: one interpreter for each session.",
        epilog="Where the sandbox does not hold on this machine, the server says so and does not start.",
    )
    _add_serving(parser.add_argument_group("serving"))
    _add_limits(parser.add_argument_group("limits of one sandbox"))
    _add_sandbox(parser.add_argument_group("the sandbox"))
    return parser


def _add_serving(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--stdio", action="store_true", help="serve one session over stdin and stdout, and no HTTP")
    group.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on; one that other machines can reach requires LONGHAUL_TOOLS_TOKEN [%(default)s]",
    )
    group.add_argument(
        "--port",
        type=_whole(0, 65535),
        default=DEFAULT_PORT,
        help="port to listen on; 0 takes any free one [%(default)s]",
    )
    group.add_argument("--sessions", type=_whole(1, 4096), default=16, help="most interpreters at once [%(default)s]")
    group.add_argument(
        "--idle-seconds",
        type=_seconds,
        default=600.0,
        help="an interpreter without a call ends after this long [%(default)g]",
    )
    group.add_argument(
        "--lost-seconds",
        type=_seconds,
        default=15.0,
        help="a session whose client is gone ends after this long [%(default)g]",
    )
    group.add_argument("--log-level", choices=LEVELS, default="INFO", help="least severe level to log [%(default)s]")


def _add_limits(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--seconds", type=_seconds, default=_DEFAULTS.seconds, help="deadline of one call [%(default)g]")
    group.add_argument(
        "--cpu-seconds",
        type=_whole(1, 10**6),
        default=_DEFAULTS.cpu_seconds,
        help="CPU seconds of one process over its life [%(default)s]",
    )
    group.add_argument(
        "--memory",
        type=_bytes(64 * 1024**2),
        default=_DEFAULTS.memory_bytes,
        help=f"memory of one process, and of all together [{show_bytes(_DEFAULTS.memory_bytes)}]",
    )
    group.add_argument(
        "--output",
        type=_bytes(256),
        default=_DEFAULTS.output_bytes,
        help=f"text that a call returns; the middle of longer text is left out [{show_bytes(_DEFAULTS.output_bytes)}]",
    )
    group.add_argument(
        "--processes",
        type=_whole(4, 4096),
        default=_DEFAULTS.processes,
        help="most processes and threads [%(default)s]",
    )
    group.add_argument(
        "--disk",
        type=_bytes(1024**2),
        default=_DEFAULTS.disk_bytes,
        help=f"all files together, which are kept in memory [{show_bytes(_DEFAULTS.disk_bytes)}]",
    )
    group.add_argument(
        "--open-files",
        type=_whole(32, 65536),
        default=_DEFAULTS.open_files,
        help="most open files of one process [%(default)s]",
    )


def _add_sandbox(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--isolation",
        choices=("auto", "namespaces", "bwrap"),
        default="auto",
        help="auto: bubblewrap if installed and the user is not root, else Longhaul's own namespaces [%(default)s]",
    )
    group.add_argument(
        "--python",
        type=Path,
        default=default_executable(),
        help="the Python inside, with its packages; a virtual environment's will do [this one without Longhaul's]",
    )


def _whole(min_value: int, max_value: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not min_value <= int(text) <= max_value:
            raise argparse.ArgumentTypeError(f"must be a whole number from {min_value} to {max_value}")
        return int(text)

    return number


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.01 <= value <= 10**7:
        raise argparse.ArgumentTypeError("must be a number of seconds, at least 0.01")
    return value


def _bytes(min_value: int) -> Callable[[str], int]:
    def count(text: str) -> int:
        try:
            value = parse_bytes(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        if not min_value <= value <= 2**50:
            raise argparse.ArgumentTypeError(f"must be at least {show_bytes(min_value)}")
        return value

    return count
