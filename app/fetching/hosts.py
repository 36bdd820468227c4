"""The hosts that an operator allows, and which of their addresses: `files.example`, `*.example`, `*`, with a port or
without."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from app.fetching.egress import WEB_PORTS, EgressPolicy

_ANY = "*"


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    port: int | None
    """None: 80 and 443."""

    @classmethod
    def of(cls, text: str) -> _Entry:
        name, colon, port = text.rpartition(":")
        if not colon or text.endswith("]"):
            name, port = text, ""
        return cls(_bare(name.strip("[]")), int(port) if port else None)

    @property
    def is_exact(self) -> bool:
        return not self.name.startswith(_ANY)

    def covers(self, host: str) -> bool:
        if self.name == _ANY:
            return True
        return host == self.name if self.is_exact else host.endswith(self.name[1:])

    def covers_port(self, port: int) -> bool:
        return port in WEB_PORTS if self.port is None else port == self.port


class AllowedHosts:
    """The hosts and ports that a list allows.

    A host that the list names exactly may have an address that is not public: the operator vouches for its name. One
    that a `*` stands for may not: anybody may make a name below `*.example` point anywhere.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._entries = tuple(map(_Entry.of, names))

    def __bool__(self) -> bool:
        return bool(self._entries)

    def covers(self, host: str) -> bool:
        """Whether the host is allowed on any port."""
        return any(entry.covers(_bare(host)) for entry in self._entries)

    def policy(self, host: str, port: int) -> EgressPolicy | None:
        """Which addresses of the host may be connected to on this port; None: it is not allowed."""
        found = [entry for entry in self._entries if entry.covers(_bare(host)) and entry.covers_port(port)]
        if not found:
            return None
        return EgressPolicy(ports=frozenset({port}), internal=any(entry.is_exact for entry in found))


def _bare(host: str) -> str:
    return host.lower().removesuffix(".")
