"""The settings of every Longhaul process: read once from the environment, then frozen."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cached_property
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from config.process import CHECKOUT as CHECKOUT
from config.server_kind import SERVER_PREFIXES
from config.service_links import drop_service_links
from config.urls import PostgresUrl, RedisUrl

PREFIX = "LONGHAUL_"
_PREFIXES_OF_OTHERS = (*SERVER_PREFIXES, "LONGHAUL_TOOLS_", "LONGHAUL_TEST_")
"""Variables of the tool servers and of tests, which are no settings."""
CHECKED_VARIABLE = "LONGHAUL_SETTINGS_CHECKED"
"""`longhaul up` sets it for its processes, so that an unknown variable is reported once."""
PROCESS_VARIABLE = "LONGHAUL_PROCESS"
"""In it `longhaul up` tells a process its name, which is before each line of its log."""


class ConfigError(Exception):
    """A setting or a models file is not valid. The message is one line and names it."""


def _split(value: Any) -> Any:
    """Returns the names in a text with commas."""
    return tuple(filter(None, map(str.strip, value.split(",")))) if isinstance(value, str) else value


def _check_origin(origin: str) -> str:
    """A browser writes an origin in small letters, without a path and without the port that its scheme implies."""
    if origin != "*" and not _ORIGIN.fullmatch(origin):
        raise ValueError("must be origins, separated by commas: https://app.example, http://localhost:3000, or *")
    return origin


def _check_host(host: str) -> str:
    if host != "*" and not _HOST.fullmatch(host):
        raise ValueError("must be names without a port, separated by commas: longhaul.example, or *")
    return host.lower()


def _check_file_host(host: str) -> str:
    found = _FILE_HOST.fullmatch(host.lower())
    if found is None or int(found[1] or 1) not in range(1, 65536):
        raise ValueError("must be hosts, separated by commas: files.example, *.example, files.internal:9000, or *")
    return found[0]


def _split_networks(value: Any) -> Any:
    try:
        return tuple(ip_network(name) for name in _split(value)) if isinstance(value, str) else value
    except ValueError:
        raise ValueError("must be networks, separated by commas: 10.0.0.0/8, fd00::/8") from None


_HOST = re.compile(r"[A-Za-z0-9_.-]+")
_FILE_HOST = re.compile(r"(?:\*|(?:\*\.)?[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?|\[[0-9a-f:.]+\])(?::(\d{1,5}))?")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[a-z0-9_.:\[\]-]+")
Origins = Annotated[tuple[Annotated[str, AfterValidator(_check_origin)], ...], NoDecode, BeforeValidator(_split)]
Hosts = Annotated[tuple[Annotated[str, AfterValidator(_check_host)], ...], NoDecode, BeforeValidator(_split)]
FileHosts = Annotated[tuple[Annotated[str, AfterValidator(_check_file_host)], ...], NoDecode, BeforeValidator(_split)]
Networks = Annotated[tuple[IPv4Network | IPv6Network, ...], NoDecode, BeforeValidator(_split_networks)]
Port = Annotated[int, Field(ge=1, le=65535)]
Number = Annotated[float, Field(allow_inf_nan=False)]
MAX_SECONDS = 10**9
"""30 years: a time that far away still fits into a timestamp."""
Seconds = Annotated[Number, Field(gt=0, le=MAX_SECONDS)]
Pause = Annotated[Number, Field(gt=0, le=86400)]
"""Seconds between two rounds of something."""
Timeout = Annotated[Number, Field(ge=0.1, le=86400)]


OmittableTool = Literal[
    "apply_patch",
    "code_interpreter",
    "computer",
    "computer_use_preview",
    "file_search",
    "image_generation",
    "local_shell",
    "programmatic_tool_calling",
    "shell",
    "web_search",
]
"""Types of tools that run on a server, or that Longhaul does not know."""


MAX_LIMIT = 2**53 - 2
"""The largest value of a project's limit. In OpenAI's admin API the next number stands for "no limit"."""

LimitName = Literal[
    "requests_per_minute",
    "reads_per_minute",
    "tokens_per_minute",
    "tokens_per_day",
    "queued_responses",
    "queued_bytes",
    "unfinished_responses",
    "stored_bytes",
]


def _split_limits(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    pairs = [(name.strip(), number.strip()) for name, _, number in (pair.partition("=") for pair in value.split(","))]
    if not all(map(all, pairs)) or len(dict(pairs)) < len(pairs):
        raise ValueError(
            "must be limits, each once, separated by commas: requests_per_minute=600,tokens_per_day=1000000"
        )
    return dict(pairs)


_IN_CHECKOUT = (CHECKOUT / "pyproject.toml").exists()
_HOME = (CHECKOUT if _IN_CHECKOUT else Path(os.environ.get("HOME", "/"))) / ".longhaul"
"""A package has no place for data."""


class Settings(BaseSettings):
    """The environment, checked. docs/settings.md explains each setting.

    Build it with `load_settings()`, which turns a bad value into a one-line `ConfigError`.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, frozen=True, extra="ignore")

    # What everybody sets

    database_url: PostgresUrl | None = Field(None, validation_alias="DATABASE_URL")
    """URL of Postgres; unset: `longhaul up` starts its own."""
    redis_url: RedisUrl | None = Field(None, validation_alias="REDIS_URL")
    """URL of Redis or Valkey; unset: `longhaul up` starts its own."""
    secrets: Path | None = None
    """Folder with files that set what the environment does not: each is named after its variable."""
    home: Path = _HOME
    """Folder for the data of embedded services and for Flower's password."""
    host: str = "127.0.0.1"
    """Address that the API listens on."""
    auth: Literal["open", "keys"] = "open"
    """Whether requests need an API key; without one, only this machine may reach the API."""
    admin_key: Annotated[str, Field(min_length=1)] | None = None
    """The first admin key, as the operator gives it; unset: one is generated and kept in `home`."""
    port: Port = 8000
    """Port of the API."""
    api_processes: Annotated[int, Field(ge=1, le=64)] = 1
    """Number of API processes."""
    url: Annotated[str, Field(pattern=r"^https?://[^\s/]+(/[^\s?#]*)?$")] | None = None
    """URL of the API that the operators' commands ask; unset: the API of this machine."""
    api_key: Annotated[str, Field(pattern=r"^[!-~]+$")] | None = None
    """The key that they send to it, of scope `operator`; unset: none to `url`, and the first key on this machine."""
    cors_origins: Origins = ()
    """Origins of web pages that may use the API from a browser, separated by commas; `*`: all pages."""
    allowed_hosts: Hosts = ()
    """Names, beside localhost, by which clients reach the API, separated by commas; `*`: all names."""
    file_url_hosts: FileHosts = ()
    """Hosts from which files and images of requests are read by URL, separated by commas: `files.example`, all below
    `*.example`, `files.internal:9000`; `*`: all that are public."""
    webhook_networks: Networks = ()
    """Networks that are not public, and to which webhooks may be sent, on any port and without TLS, separated by
    commas: `10.0.0.0/8`; by default none."""
    flower_host: str = "127.0.0.1"
    """Address that Flower listens on."""
    flower_port: Port = 5555
    """Port of Flower."""
    flower_auth: Annotated[str, Field(pattern=r"^[^:\s,]+:[^\s,]+$")] | None = None
    """`user:password` of Flower; unset: a password is generated and kept in `home`."""
    metrics_host: str = "127.0.0.1"
    """Address that `/metrics` of each process listens on."""
    metrics_port: Port | None = None
    """Port of `/metrics` of this process; unset: it serves none."""
    metrics_token: Annotated[str, Field(pattern=r"^[\x21-\x7e]{16,512}$")] | None = None
    """Bearer token that `/metrics` asks for; required where other machines reach it."""
    monitor_database_url: PostgresUrl | None = None
    """URL of Postgres for a role that reads what the fleet's metrics need, and no prompt; unset: DATABASE_URL."""
    models: Path = CHECKOUT / "config" / "models.toml"
    """The models file."""
    model: str | None = None
    """The model that this worker serves; required if the models file has several."""
    upstream: str | None = None
    """The server that this worker drives, if its model has several urls: one of them. By default the first."""
    upstream_key: str | None = Field(None, repr=False)
    """The API key for servers of a model whose entry has no api_key."""
    ready_file: Path | None = None
    """File by which `longhaul ready` knows whether this worker is ready; unset: none is written."""
    tool_servers: str = ""
    """More MCP servers for hosted tools (config/tools.py): `label=url,...`."""
    omit_tools: Annotated[frozenset[OmittableTool], NoDecode, BeforeValidator(_split)] = frozenset()
    """Types of tools that a request may have and that are left out: `web_search,...`; the others are refused."""
    worker_concurrency: Annotated[int, Field(ge=1, le=4096)] = 1024
    """The most responses that one worker runs at once; it takes a few more if its engine has no more slots."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """The least severe level that is logged."""
    log_format: Literal["text", "json"] = "text"
    """The form of a line of the log."""
    log_access: bool = True
    """Whether the API logs a line for each request."""
    log_requests: Literal["off", "summary", "full"] = "off"
    """What workers log of each response that ends: its figures, or its texts as well."""

    # Limits

    max_body_bytes: Annotated[int, Field(ge=1024)] = 8 * 1024 * 1024
    """The largest request body, in bytes."""
    max_context_bytes: Annotated[int, Field(ge=1024, le=2**31 - 1)] = 64 * 1024 * 1024
    """The most bytes, as JSON, that a request continues, and of what the responses of one worker hold of it at once."""
    max_batch_lines: Annotated[int, Field(ge=1, le=1_000_000)] = 50_000
    """The most requests of one batch."""
    buffer_bytes: Annotated[int, Field(ge=1024 * 1024)] = 256 * 1024 * 1024
    """The most bytes of large request bodies that one API process holds at once, and as many again of answers
    that clients have not taken, and of large pages of events; more are refused."""
    max_connections: Annotated[int, Field(ge=16, le=100_000)] = 4096
    """The most connections of one API process, an eighth of them WebSockets, and the most readers of events."""
    body_seconds: Timeout = 120.0
    """Seconds that a client may take to send the body of a request."""
    write_seconds: Timeout = 60.0
    """Seconds that a client may take nothing of an answer that waits for it; then its connection is closed."""
    tool_result_bytes: Annotated[int, Field(ge=256)] = 65536
    """The most bytes of one tool result that the model gets."""
    database_pool: Annotated[int, Field(ge=2, le=200)] = 10
    """Connections to Postgres in the pool of an API process or a worker. A worker has three more."""
    max_crashes: Annotated[int, Field(ge=1, le=100)] = 5
    """How many times the worker of a response may crash before the response is failed."""
    queue_timeout_seconds: Seconds | None = None
    """Seconds that a response may wait for a worker; unset: no limit. A model or a request may set less."""
    run_timeout_seconds: Seconds | None = None
    """Seconds that a response may be in progress; unset: no limit."""
    stored_retention_seconds: Seconds = 30 * 86400.0
    """Seconds after its end until a response is deleted."""
    unstored_retention_seconds: Seconds = 600.0
    """The same for a response with `store=false`."""
    event_retention_seconds: Seconds = 86400.0
    """Seconds after its end during which a response can be streamed again."""
    usage_retention_seconds: Seconds = 400 * 86400.0
    """Seconds for which the ledger, the audit log (at least 30 days), and keys that were revoked or expired stay."""
    reserved_output_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] = 4096
    """Output tokens that a response without `max_output_tokens` reserves, and ends at, if its project has limits."""

    new_project_limits: Annotated[
        Mapping[LimitName, Annotated[int, Field(ge=1, le=MAX_LIMIT)]], NoDecode, BeforeValidator(_split_limits)
    ] = {}
    """The limits that a new project begins with: `requests_per_minute=600,tokens_per_day=1000000`; by default none."""

    # Timing, which hardly anybody changes

    lease_seconds: Annotated[Number, Field(ge=1, le=86400)] = 30.0
    """Seconds without a heartbeat after which a worker loses its responses to other workers."""
    shutdown_grace_seconds: Annotated[Number, Field(ge=0, le=86400)] = 5.0
    """Seconds that running responses may go on after a worker got its stop signal."""
    api_grace_seconds: Annotated[Number, Field(ge=0, le=86400)] = 60.0
    """Seconds that foreground answers may go on after an API process got its stop signal."""
    events_per_second: Annotated[Number, Field(ge=0, le=1_000_000)] | None = None
    """The most text events per second of all responses of a worker together; more are merged. 0: no limit; unset: the
    default for its engine (workers/generation/writing/flush_clock.py)."""
    keepalive_seconds: Pause = 15.0
    """Seconds without an event after which a stream repeats its status."""

    @cached_property
    def database_dsn(self) -> str:
        """`database_url`. Raises ConfigError if it is unset."""
        if self.database_url is None:
            raise ConfigError("DATABASE_URL is not set (`longhaul up` starts a Postgres of its own)")
        return self.database_url

    @property
    def asks_for_keys(self) -> bool:
        """Without keys all callers are one project, so no bound has shares."""
        return self.auth == "keys"

    def check_auth(self) -> None:
        """Raises ConfigError if strangers could reach an API that asks for no key."""
        if self.auth == "open" and not _is_loopback(self.host):
            raise ConfigError(
                f"LONGHAUL_HOST: with {self.host!r} other machines reach the API, and it asks nobody for a key; "
                "set LONGHAUL_AUTH=keys, or LONGHAUL_HOST=127.0.0.1"
            )

    def check_metrics(self) -> None:
        """Raises ConfigError if strangers could read `/metrics`."""
        if self.metrics_port is None:
            return
        if self.metrics_token is None and not _is_loopback(self.metrics_host):
            raise ConfigError(
                f"LONGHAUL_METRICS_HOST: with {self.metrics_host!r} other machines reach /metrics, and it asks nobody "
                "for a token; set LONGHAUL_METRICS_TOKEN, or LONGHAUL_METRICS_HOST=127.0.0.1"
            )

    @cached_property
    def broker_url(self) -> str:
        """`redis_url`. Raises ConfigError if it is unset."""
        if self.redis_url is None:
            raise ConfigError("REDIS_URL is not set (`longhaul up` starts a Valkey of its own)")
        return self.redis_url


def _is_loopback(host: str) -> bool:
    try:
        return host.lower() == "localhost" or ip_address(host).is_loopback
    except ValueError:  # A name; who knows what it stands for.
        return False


def variable_of(field: str) -> str:
    """The environment variable that sets `field`."""
    return str(Settings.model_fields[field].validation_alias or f"{PREFIX}{field.upper()}")


def _secrets_folder() -> Path | None:
    """The folder of `secrets`, which only the environment can name. Raises ConfigError."""
    name = os.environ.get(variable_of("secrets"), "")
    if name and not Path(name).is_dir():
        raise ConfigError(f"{variable_of('secrets')}: {name} is not a folder")
    return Path(name) if name else None


def load_settings(**overrides: Any) -> Settings:
    """Reads the environment, and the folder of secrets. Raises ConfigError, one line that names the first bad variable.

    The message never repeats the value: it may hold a password.
    """
    drop_service_links(os.environ)
    try:
        return Settings(_secrets_dir=_secrets_folder(), **overrides)
    except OSError as error:
        raise ConfigError(f"LONGHAUL_SECRETS: cannot read {error.filename}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        location = str(first["loc"][0]) if first["loc"] else "?"
        name = variable_of(location) if location in Settings.model_fields else location
        raise ConfigError(f"{name}: {first['msg'].removeprefix('Value error, ')}") from None


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """The LONGHAUL_* variables that no setting reads, in order: typing errors."""
    if CHECKED_VARIABLE in environ:
        return []
    known = {variable_of(field) for field in Settings.model_fields}
    names = (name for name in environ if name.upper().startswith(PREFIX))
    return sorted(
        name for name in names if name.upper() not in known and not name.upper().startswith(_PREFIXES_OF_OTHERS)
    )
