"""The python server's options: on the command line, or LONGHAUL_PYTHON_... in the environment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator
from pydantic_settings import SettingsConfigDict

from workers.toolservers.python.interpreter import default_executable
from workers.toolservers.python.limits import Limits, parse_bytes, show_bytes
from workers.toolservers.settings import ServerSettings

_DEFAULTS = Limits()


def _whole(min_value: int, max_value: int) -> BeforeValidator:
    def number(value: Any) -> int:
        text = str(value)
        if not text.isascii() or not text.isdigit() or not min_value <= int(text) <= max_value:
            raise ValueError(f"must be a whole number from {min_value} to {max_value}")
        return int(text)

    return BeforeValidator(number)


def _bytes(min_value: int) -> BeforeValidator:
    def count(value: Any) -> int:
        found = parse_bytes(str(value))
        if not min_value <= found <= 2**50:
            raise ValueError(f"must be at least {show_bytes(min_value)}")
        return found

    return BeforeValidator(count)


def _seconds(value: Any) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not 0.01 <= seconds <= 10**7:
        raise ValueError("must be a number of seconds, at least 0.01")
    return seconds


Seconds = Annotated[float, BeforeValidator(_seconds)]


class PythonSettings(ServerSettings):
    """An MCP server whose one tool, python, runs code in a sandbox: one interpreter for each session. Where the
    sandbox does not hold on this machine, the server says so and does not start. Each option is also a variable:
    --open-files is LONGHAUL_PYTHON_OPEN_FILES. The bearer token that clients must send is a variable only:
    LONGHAUL_TOOLS_TOKEN. Sizes are bytes, or such as 64KiB, 512MiB or 1GiB."""

    model_config = SettingsConfigDict(env_prefix="LONGHAUL_PYTHON_", cli_prog_name="longhaul tools python")

    stdio: bool = False
    """serve one session over stdin and stdout, and no HTTP"""
    host: str = "127.0.0.1"
    """address to listen on; one that other machines can reach requires LONGHAUL_TOOLS_TOKEN"""
    port: Annotated[int, _whole(0, 65535)] = 8801
    """port to listen on; 0 takes any free one"""
    sessions: Annotated[int, _whole(1, 4096)] = 16
    """most interpreters at once"""
    idle_seconds: Seconds = 600.0
    """an interpreter without a call ends after this long"""
    lost_seconds: Seconds = 15.0
    """a session whose client is gone ends after this long"""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """least severe level to log; only DEBUG logs code and output"""

    seconds: Seconds = _DEFAULTS.seconds
    """deadline of one call"""
    cpu_seconds: Annotated[int, _whole(1, 10**6)] = _DEFAULTS.cpu_seconds
    """CPU seconds of one process over its life"""
    memory: Annotated[int, _bytes(64 * 1024**2)] = _DEFAULTS.memory_bytes
    """memory of one process, and of all together"""
    output: Annotated[int, _bytes(256)] = _DEFAULTS.output_bytes
    """text that a call returns; the middle of longer text is left out"""
    processes: Annotated[int, _whole(4, 4096)] = _DEFAULTS.processes
    """most processes and threads"""
    disk: Annotated[int, _bytes(1024**2)] = _DEFAULTS.disk_bytes
    """all files together, which are kept in memory"""
    open_files: Annotated[int, _whole(32, 65536)] = _DEFAULTS.open_files
    """most open files of one process"""

    isolation: Literal["auto", "namespaces", "bwrap"] = "auto"
    """auto: bubblewrap if installed and the user is not root, else Longhaul's own namespaces"""
    python: Path = default_executable()
    """the Python inside, with its packages; a virtual environment's will do"""

    def limits(self) -> Limits:
        """The limits of one sandbox."""
        return Limits(
            seconds=self.seconds,
            cpu_seconds=self.cpu_seconds,
            memory_bytes=self.memory,
            output_bytes=self.output,
            processes=self.processes,
            disk_bytes=self.disk,
            open_files=self.open_files,
        )
