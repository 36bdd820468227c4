"""Every knob of a Longhaul process: read once from the environment, then frozen."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AliasChoices, BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from config.process import CHECKOUT as CHECKOUT


class ConfigError(Exception):
    """A setting or a models file that cannot be used; the message is one line and names it."""


def _url_of(*schemes: str) -> BeforeValidator:
    def check(value: Any) -> Any:
        if isinstance(value, str) and urlsplit(value).scheme not in schemes:
            raise ValueError(f"must be a URL that starts with {schemes[0]}://")
        return value

    return BeforeValidator(check)


PostgresUrl = Annotated[str, _url_of("postgresql", "postgres")]
RedisUrl = Annotated[str, _url_of("redis", "rediss", "unix")]
Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(gt=0)]


def _variable(name: str) -> AliasChoices:
    return AliasChoices(name)


class Settings(BaseSettings):
    """The environment, checked. Durations are seconds, sizes are bytes.

    Build it with `load_settings()`, which turns a bad value into a one-line `ConfigError`.
    """

    model_config = SettingsConfigDict(env_prefix="LONGHAUL_", env_ignore_empty=True, frozen=True, extra="ignore")

    database_url: PostgresUrl | None = Field(None, validation_alias=_variable("DATABASE_URL"))
    redis_url: RedisUrl | None = Field(None, validation_alias=_variable("REDIS_URL"))

    home: Path = CHECKOUT / ".longhaul"
    host: str = "127.0.0.1"
    port: Port = 8000
    api_processes: Annotated[int, Field(ge=1, le=64)] = 1
    flower_port: Port = 5555
    flower_auth: Annotated[str, Field(pattern=r"^[^:\s,]+:[^\s,]+$")] | None = None
    """`user:password` of Flower; unset: a password is generated and kept in `home`."""

    models: Path = CHECKOUT / "config" / "models.toml"
    model: str | None = None
    """The one model this worker serves; needed where the models file names several."""
    tool_servers: str = ""
    """More servers of tools (config/tools.py): `label=url,...`."""
    tool_result_bytes: Annotated[int, Field(ge=256)] = 65536
    """The most that a model is told of one result of a tool."""
    worker_concurrency: Annotated[int, Field(ge=1, le=4096)] = 256

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    max_body_bytes: Annotated[int, Field(ge=1024)] = 8 * 1024 * 1024
    database_pool: Annotated[int, Field(ge=1, le=200)] = 10

    lease_seconds: Annotated[float, Field(ge=1)] = 30.0
    max_crashes: Annotated[int, Field(ge=1, le=100)] = 5
    shutdown_grace_seconds: Annotated[float, Field(ge=0)] = 5.0
    maintenance_seconds: Seconds = 0.5
    lost_seconds: Seconds = 2.0
    """A message that is not in its queue and was not acted on for this long is taken for lost."""
    queue_timeout_seconds: Annotated[float, Field(gt=0)] | None = None
    """How long a response may wait for a worker; unset: for ever. A model or a request may say less."""
    run_timeout_seconds: Annotated[float, Field(gt=0)] | None = None
    """How long a response may be in progress; unset: for ever."""

    event_interval_seconds: Annotated[float, Field(ge=0, le=60)] = 0.0
    """The least time between two chunks of one response, which makes events fewer and larger; 0: one per commit."""
    events_per_second: Annotated[float, Field(ge=0)] = 1500.0
    """Of a worker's responses together, at most, while text comes: more are merged; 0: no bound.

    Where each token is an event, it is so often that they are sent.
    """
    event_per_token: bool = False
    """Each token is an event of its own, though several are written and sent together; else those are one."""
    keepalive_seconds: Seconds = 15.0
    reader_poll_seconds: Seconds = 2.0
    """How often a reader that hears nothing looks into Postgres."""

    stored_retention_seconds: Seconds = 30 * 86400.0
    unstored_retention_seconds: Seconds = 600.0
    event_retention_seconds: Seconds = 86400.0

    @cached_property
    def database_dsn(self) -> str:
        """`database_url` for SQLAlchemy's asyncpg dialect. Raises ConfigError where it is unset."""
        if self.database_url is None:
            raise ConfigError("DATABASE_URL is not set (`longhaul up` starts a Postgres of its own)")
        return "postgresql+asyncpg://" + self.database_url.split("://", 1)[1]

    @cached_property
    def broker_url(self) -> str:
        """`redis_url`. Raises ConfigError where it is unset."""
        if self.redis_url is None:
            raise ConfigError("REDIS_URL is not set (`longhaul up` starts a Valkey of its own)")
        return self.redis_url


def variable_of(field: str) -> str:
    """The environment variable that sets `field`."""
    info = Settings.model_fields[field]
    alias = info.validation_alias
    return str(alias.choices[0]) if isinstance(alias, AliasChoices) else f"LONGHAUL_{field.upper()}"


def load_settings(**overrides: Any) -> Settings:
    """Reads the environment; raises ConfigError, one line, naming the first bad variable.

    The value itself is never repeated: it may hold a password.
    """
    try:
        return Settings(**overrides)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        location = str(first["loc"][0]) if first["loc"] else "?"
        name = variable_of(location) if location in Settings.model_fields else location
        raise ConfigError(f"{name}: {first['msg'].removeprefix('Value error, ')}") from None
