"""A look at Postgres and Redis before a process starts: whether they can work with Longhaul at all.

A service that is away is no error, because every process waits for it. One that refuses the process is: its URL is
wrong, or its password is just being changed, and the process is started again.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from app.local.errors import LocalError
from app.queue import redis_client
from app.store import servers
from app.store.trouble import Trouble, reason, trouble_of
from config.settings import ConfigError, Settings
from config.urls import POSTGRES_FILES, REDIS_FILES, parameters_of

CHECK_SECONDS = 6.0


@dataclass(frozen=True, slots=True)
class _Service:
    """The check of one service."""

    name: str
    variable: str
    files: Sequence[str]
    """The parameters of its URL that name files."""
    authority: str
    """The parameter that names who signed its certificate."""
    version: Callable[[str], Awaitable[tuple[int, ...]]]
    oldest: tuple[int, ...]


_POSTGRES = _Service(
    "PostgreSQL",
    "DATABASE_URL",
    POSTGRES_FILES,
    "sslmode=verify-full&sslrootcert=FILE, or sslrootcert=system",
    servers.version,
    servers.OLDEST_POSTGRES,
)
_REDIS = _Service(
    "Redis", "REDIS_URL", REDIS_FILES, "ssl_ca_certs=FILE", redis_client.version, redis_client.OLDEST_REDIS
)


async def check_postgres(settings: Settings) -> None:
    """Raises ConfigError, one line, if DATABASE_URL cannot be used, or Postgres is too old or has a certificate that is
    not trusted; and LocalError, one line, if Postgres does not let this process in."""
    await _check(_POSTGRES, settings.database_url)


async def check_redis(settings: Settings) -> None:
    """Raises ConfigError, one line, if Redis has a certificate that is not trusted, or is too old."""
    await _check(_REDIS, settings.redis_url)


async def _check(service: _Service, url: str | None) -> None:
    if url is None:
        return
    _check_files(service.variable, url, service.files)
    with suppress(TimeoutError):
        async with asyncio.timeout(CHECK_SECONDS):
            try:
                found = await service.version(url)
            except Exception as error:
                _check_certificate(service.variable, error, service.authority)
                if trouble_of(error) in (Trouble.REFUSED, Trouble.MISMATCH):
                    # Other than a server's, the driver's own refusal is a ValueError about the URL.
                    kind = ConfigError if isinstance(error, ValueError) else LocalError
                    raise kind(f"{service.variable}: {reason(error)}") from None
                return
            if found < service.oldest:
                shown, wanted = (".".join(map(str, each)) for each in (found, service.oldest))
                message = f"{service.name} {shown} is too old; Longhaul needs {wanted} or newer"
                raise ConfigError(f"{service.variable}: {message}")


def _check_files(variable: str, url: str, names: Sequence[str]) -> None:
    parameters = parameters_of(url)
    for name in names:
        file = parameters.get(name)
        if file is not None and not os.access(file, os.R_OK):
            raise ConfigError(f"{variable}: the file of its parameter {name} cannot be read by this user")


def _check_certificate(variable: str, error: BaseException, parameter: str) -> None:
    """Raises ConfigError if the error is, or was caused by, a certificate that is not, or cannot be, trusted."""
    for each in _causes(error):
        if isinstance(each, ssl.SSLCertVerificationError):
            raise ConfigError(
                f"{variable}: the server's certificate is not trusted ({each.verify_message.rstrip('. ')}). "
                f"Name the authority that signed it in the URL: {parameter}"
            ) from None
        if "root certificate" in str(each):  # the driver looks for one
            raise ConfigError(f"{variable}: no authority for the server's certificate. Name it: {parameter}") from None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
