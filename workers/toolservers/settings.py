"""How the servers here read their options: from the command line, or from variables in the environment."""

from __future__ import annotations

from typing import TypeVar

from pydantic import ValidationError
from pydantic_settings import BaseSettings, CliApp, SettingsConfigDict, SettingsError

from workers.toolservers.serving import ServingError


class ServerSettings(BaseSettings):
    """The options of one server. A subclass sets `env_prefix` and `cli_prog_name`; its fields are the options."""

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


Chosen = TypeVar("Chosen", bound=ServerSettings)


_LABEL = "{option} ({variable})"


def load(kind: type[Chosen], arguments: list[str], label: str = _LABEL) -> Chosen:
    """Reads command line and environment; the former wins. Raises ServingError for the first bad option; `label` is
    how its message names an option of the command line. Exits with status 0 after `--help`."""
    try:
        return CliApp.run(kind, cli_args=arguments)
    except SettingsError as error:
        raise ServingError(str(error).removeprefix("error parsing CLI: ")) from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        message = first["msg"].removeprefix("Value error, ")
        message = f"{message[:1].lower()}{message[1:]}"
        if not first["loc"]:
            raise ServingError(message) from None
        name = str(first["loc"][0])
        option = f"--{name.replace('_', '-')}"
        variable = f"{kind.model_config.get('env_prefix')}{name.upper()}"
        if not any(argument.partition("=")[0] == option for argument in arguments):
            label = _LABEL
        raise ServingError(f"{label.format(option=option, variable=variable)}: {message}") from None
