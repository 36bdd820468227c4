"""The options that the servers here share, and how they are read: the command line, or variables in the environment."""

from __future__ import annotations

import os
from typing import Annotated, Literal, TypeVar

from pydantic import Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, CliApp, SettingsConfigDict, SettingsError

TOKEN_VARIABLE = "LONGHAUL_TOOLS_TOKEN"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Hosts that other machines cannot reach. The SDK refuses requests to them that name another host or origin."""

Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class StartError(Exception):
    """The server cannot start. The message is one line and names the option or variable."""


def token_of_environment() -> str | None:
    """The bearer token that every request over HTTP needs; None: none, on loopback addresses alone."""
    return os.environ.get(TOKEN_VARIABLE) or None


class ServerSettings(BaseSettings):
    """The options of one server. A subclass sets `env_prefix` and `cli_prog_name`; its fields are options, too."""

    model_config = SettingsConfigDict(
        env_ignore_empty=True,
        frozen=True,
        use_attribute_docstrings=True,
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_avoid_json=True,
        cli_hide_none_type=True,
        cli_exit_on_error=False,
        populate_by_name=True,
    )

    stdio: bool = False
    """serve one session over stdin and stdout, and no HTTP"""
    host: str = "127.0.0.1"
    """address to listen on; one that other machines can reach requires LONGHAUL_TOOLS_TOKEN"""
    port: Port = 0
    """port to listen on; 0 takes any free one, which the log names"""
    idle_seconds: Seconds = 1800.0
    """a session without a request or an open stream ends after this long"""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """least severe level to log; only DEBUG logs what the model sends and gets"""

    @model_validator(mode="after")
    def _is_guarded(self) -> ServerSettings:
        token = token_of_environment()
        if token is None and self.host not in LOOPBACK:
            raise ValueError(f"--host {self.host}: other machines can reach it; set {TOKEN_VARIABLE} to a secret first")
        if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
            raise ValueError(f"{TOKEN_VARIABLE}: must be printable ASCII without spaces")
        return self


Chosen = TypeVar("Chosen", bound=ServerSettings)


def load(kind: type[Chosen], arguments: list[str]) -> Chosen:
    """Reads command line and environment; the former wins. Raises StartError for the first bad option. Exits with
    status 0 after `--help`."""
    try:
        return CliApp.run(kind, cli_args=arguments)
    except SettingsError as error:
        raise StartError(str(error).removeprefix("error parsing CLI: ")) from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        message = first["msg"].removeprefix("Value error, ")
        message = f"{message[:1].lower()}{message[1:]}"
        if not first["loc"]:
            raise StartError(message) from None
        name = str(first["loc"][0])
        variable = f"{kind.model_config.get('env_prefix')}{name.upper()}"
        raise StartError(f"--{name.replace('_', '-')} ({variable}): {message}") from None
