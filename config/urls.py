"""URLs of Postgres and Redis, checked. A parameter is honoured, or refused by name: none is ignored.

Postgres' URL is libpq's, and may name several servers: `postgresql://a:5432,b:5432/name`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Annotated
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from pydantic import AfterValidator

_HOSTS = re.compile(r"(?P<before>[^/]*//(?:[^/?#]*@)?)(?P<hosts>[^/?#]*)(?P<after>.*)", re.DOTALL)
_HOST_AND_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]*)(:[0-9]{1,5})?")
_ANY = ""

_POSTGRES: Mapping[str, str] = {
    **dict.fromkeys(("host", "port", "user", "password", "dbname", "passfile", "application_name", "options"), _ANY),
    **dict.fromkeys(("sslmode", "sslnegotiation", "sslcert", "sslkey", "sslpassword", "sslrootcert", "sslcrl"), _ANY),
    **dict.fromkeys(("ssl_min_protocol_version", "ssl_max_protocol_version"), _ANY),
    "connect_timeout": r"[1-9][0-9]{0,4}",
    "pgbouncer": r"true",
    "target_session_attrs": r"read-write|primary",  # every process writes, so none can work with a standby
}
"""Parameters that are honoured, each with the values that it may have; the driver checks the others. All are libpq's,
but for `pgbouncer`."""
_POSTGRES_DEFAULTS: Mapping[str, str] = {
    "channel_binding": r"disable|prefer",
    "client_encoding": r"(?i:utf-?8)",
    "gssencmode": r"disable|prefer",
    "load_balance_hosts": r"disable",
    "sslcompression": r"0",
    "sslsni": r"1",
}
"""Parameters that may only say what Longhaul does anyway."""
_HINTS: Mapping[str, str] = {
    "ssl": "it is sslmode: postgresql://a:5432/longhaul?sslmode=require",
    "service": "write the parameters of the service into the URL",
}
_SYSTEM = "system"
"""The value of sslrootcert for the authorities that the system trusts."""
_NOT_WITH_SYSTEM = (
    "sslcert",
    "sslkey",
    "sslpassword",
    "sslcrl",
    "ssl_min_protocol_version",
    "ssl_max_protocol_version",
)

POSTGRES_FILES = ("sslcert", "sslkey", "sslrootcert", "sslcrl", "passfile")
"""Parameters of DATABASE_URL that name files."""
REDIS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
"""Parameters of REDIS_URL that name files in PEM format: the authority of the server, and the client's own pair."""


@dataclass(frozen=True, slots=True)
class PostgresServers:
    """What DATABASE_URL says, for the driver."""

    urls: tuple[str, ...]
    """One for each server, with the parameters that the driver itself reads."""
    connect_seconds: float | None
    """None: it says nothing."""
    trusts_system: bool
    """Whether the servers' certificates must be signed by an authority that the system trusts."""
    keeps_nothing: bool
    """Whether a session keeps nothing from one transaction to the next, as PgBouncer's do that pool transactions."""


def postgres_servers(url: str) -> PostgresServers:
    """Raises ValueError, which names the parameter but no value: it may be a password."""
    before, hosts, after = _split_hosts(url)
    if not all(map(_HOST_AND_PORT.fullmatch, hosts)):
        raise ValueError("must name its servers as host:port, separated by commas: postgresql://a:5432,b:5432/longhaul")
    path, _, query = after.partition("?")
    parameters = _parameters(query)
    for name, value in parameters.items():
        _check_postgres_parameter(name, value)
    kept = {name: value for name, value in parameters.items() if name in _POSTGRES}
    seconds, keeps_nothing = kept.pop("connect_timeout", None), "pgbouncer" in kept
    kept.pop("pgbouncer", None)
    trusts_system = kept.get("sslrootcert") == _SYSTEM
    if trusts_system:
        _check_system(kept)
        kept = {name: value for name, value in kept.items() if name not in ("sslmode", "sslrootcert")}
    if hosts == [""] and "host" in kept:
        names, ports = kept.pop("host").split(","), kept.pop("port", "").split(",")
        pairs = zip_longest(names, ports, fillvalue=ports[0]) if len(ports) <= len(names) else ()
        each = [{"host": name, **({"port": port} if port else {})} for name, port in pairs]
        if not each:
            raise ValueError("its parameter port has more values than host")
        urls = [_with_parameters(f"{before}{path}", kept | place) for place in each]
    else:
        urls = [_with_parameters(f"{before}{host}{path}", kept) for host in hosts]
    return PostgresServers(tuple(urls), None if seconds is None else float(seconds), trusts_system, keeps_nothing)


def parameters_of(url: str) -> dict[str, str]:
    """The parameters of a checked URL; without sslrootcert=system, which names no file."""
    found = _parameters(url.partition("?")[2])
    return {name: value for name, value in found.items() if (name, value) != ("sslrootcert", _SYSTEM)}


def _parameters(query: str) -> dict[str, str]:
    """As libpq: an empty value counts as none, and the last one of a name counts."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise ValueError("its parameters must be name=value, separated by &") from None
    return {name: value for name, value in pairs if value}


def _with_parameters(url: str, parameters: Mapping[str, str]) -> str:
    return f"{url}?{urlencode(parameters, quote_via=quote, safe='')}" if parameters else url


def _check_postgres_parameter(name: str, value: str) -> None:
    allowed = _POSTGRES.get(name, _POSTGRES_DEFAULTS.get(name))
    if allowed is None:
        hint = _HINTS.get(name, "leave it out (a setting of the server is options=-c%20NAME%3DVALUE)")
        raise ValueError(f"its parameter {name} is not supported: {hint}")
    if allowed != _ANY and not re.fullmatch(allowed, value):
        shown = {"connect_timeout": "a whole number of seconds", "client_encoding": "utf8"}
        raise ValueError(f"its parameter {name} must be {shown.get(name, allowed.replace('|', ' or '))}")


def _check_system(parameters: Mapping[str, str]) -> None:
    if parameters.get("sslmode", "verify-full") != "verify-full":
        raise ValueError("its parameter sslmode must be verify-full with sslrootcert=system")
    for name in _NOT_WITH_SYSTEM:
        if name in parameters:
            raise ValueError(f"its parameter {name} is not supported with sslrootcert=system: name a file instead")


def _split_hosts(url: str) -> tuple[str, list[str], str]:
    """Returns what comes before the hosts, each host with its port, and what comes after them.

    `urlsplit` will not do: newer Pythons refuse an IPv6 address behind another host. What is no URL has no hosts.
    """
    found = _HOSTS.fullmatch(url)
    return (url, [], "") if found is None else (found["before"], found["hosts"].split(","), found["after"])


def _check_postgres(url: str) -> str:
    before, _, after = _split_hosts(url)
    _of_scheme(urlsplit(before + after).scheme, "postgresql", "postgres")
    postgres_servers(url)
    return url


def _check_redis(url: str) -> str:
    before, hosts, after = _split_hosts(url)
    parts = urlsplit(before + after)
    if "sentinel" in parts.scheme:
        raise ValueError(
            "Sentinel is not supported: give the address of a proxy or a name that follows the primary, as redis://"
        )
    if len(hosts) > 1:
        raise ValueError("must name one server: give the address of a proxy or a name that follows the primary")
    _of_scheme(parts.scheme, "redis", "rediss", "unix")
    for name in _parameters(parts.query):
        if name in ("ssl_cert_reqs", "ssl_check_hostname"):
            raise ValueError(
                f"its parameter {name} is not supported: the certificate is always verified. If no authority that the "
                "system trusts has signed it, name that authority's file: ssl_ca_certs=/etc/longhaul/redis-ca.pem"
            )
        if name != "db" and not (name in REDIS_FILES and parts.scheme == "rediss"):
            raise ValueError(f"its parameter {name} is not supported: leave it out")
    return url


def _of_scheme(scheme: str, *schemes: str) -> None:
    if scheme not in schemes:
        raise ValueError(f"must be a URL that starts with {schemes[0]}://")


PostgresUrl = Annotated[str, AfterValidator(_check_postgres)]
RedisUrl = Annotated[str, AfterValidator(_check_redis)]
