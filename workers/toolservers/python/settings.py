"""The python server's options: on the command line, or LONGHAUL_PYTHON_... in the environment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from workers.toolservers.python.limits import Limits
from workers.toolservers.python.spec import default_executable
from workers.toolservers.settings import Port, Seconds, ServerSettings


class PythonSettings(ServerSettings, Limits):
    """An MCP server whose one tool, python, runs code in a sandbox: one interpreter for each session. Where the
    sandbox does not hold on this machine, the server says so and does not start. Each option is also a variable:
    --open-files is LONGHAUL_PYTHON_OPEN_FILES. The bearer token that clients must send is a variable only:
    LONGHAUL_TOOLS_TOKEN. Sizes are bytes, or such as 64KiB, 512MiB or 1GiB."""

    model_config = SettingsConfigDict(env_prefix="LONGHAUL_PYTHON_", cli_prog_name="longhaul tools python")

    port: Port = 8801
    """port to listen on; 0 takes any free one"""
    sessions: Annotated[int, Field(ge=1, le=4096)] = 16
    """most interpreters at once"""
    idle_seconds: Seconds = 600.0
    """an interpreter without a call ends after this long"""
    python: Path = default_executable()
    """the Python inside, with its packages; a virtual environment's will do"""

    def limits(self) -> Limits:
        """The limits of one sandbox."""
        return Limits(**{name: getattr(self, name) for name in Limits.model_fields})
