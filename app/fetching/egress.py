"""Which addresses and ports may be connected to: by default public ones, on ports 80 and 443."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

WEB_PORTS = frozenset({80, 443})

_NOT_PUBLIC = tuple(
    ipaddress.ip_network(network)
    for network in (
        "192.0.0.0/24",
        "192.88.99.0/24",
        "64:ff9b:1::/48",
        "2001::/23",
        "3fff::/20",
        "5f00::/16",
        "fec0::/10",
    )
)
"""Networks of IANA's special purpose registries that `is_global` of Python 3.11 takes for public."""
_METADATA = tuple(
    ipaddress.ip_network(network)
    for network in (
        "169.254.0.0/16",
        "fe80::/10",
        "fd00:ec2::254/128",
        "fd20:ce::254/128",
        "100.100.100.200/32",
        "168.63.129.16/32",
        "192.0.0.192/32",
    )
)
"""Where clouds hand out credentials to whoever asks from their machines."""
_THIS_NETWORK = ipaddress.IPv4Network("0.0.0.0/8")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_COMPATIBLE = ipaddress.IPv6Network("::/96")
_LOW_32 = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class EgressPolicy:
    """`networks` are allowed on any port, even if they are private; metadata services never are."""

    networks: tuple[Network, ...] = ()
    ports: frozenset[int] = WEB_PORTS
    internal: bool = False
    """Whether all addresses that a server may have are allowed, public or not."""

    def allows(self, address: str) -> bool:
        """Whether `address`, which a resolver returned, may be connected to."""
        parsed = ipaddress.ip_address(address)
        is_allowed = is_of_a_server(parsed) if self.internal else is_public(parsed)
        return self._is_trusted(address) or (is_allowed and not _is_metadata(parsed))

    def allows_port(self, address: str, port: int) -> bool:
        """Whether `port` of an allowed `address` may be connected to."""
        return port in self.ports or self._is_trusted(address)

    def _is_trusted(self, address: str) -> bool:
        parsed = ipaddress.ip_address(address)
        return any(parsed in network for network in self.networks) and not _is_metadata(parsed)


def is_public(address: Address) -> bool:
    """Whether `address` is public, and so is any IPv4 address that it embeds."""
    if isinstance(address, ipaddress.IPv6Address):
        if (embedded := _embedded_ipv4(address)) is not None:
            return is_public(embedded)
        if address.scope_id is not None or address.is_site_local:
            return False
    special = address.is_multicast or address.is_reserved or address.is_unspecified or address.is_loopback
    return address.is_global and not special and not any(address in network for network in _NOT_PUBLIC)


def _is_metadata(address: Address) -> bool:
    embedded = _embedded_ipv4(address) if isinstance(address, ipaddress.IPv6Address) else None
    return any((embedded or address) in network for network in _METADATA)


def is_of_a_server(address: Address) -> bool:
    """Whether a server that an operator names may have `address`: a public one, a private one, or this machine's.

    Not a link-local one: there, clouds hand out credentials.
    """
    if isinstance(address, ipaddress.IPv6Address):
        if (embedded := _embedded_ipv4(address)) is not None:
            return is_of_a_server(embedded)
        if address.scope_id is not None or address.is_site_local:
            return False
    elif address in _THIS_NETWORK or address.is_reserved:
        return False
    return not (address.is_link_local or address.is_multicast or address.is_unspecified)


def _embedded_ipv4(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that a packet to `address` may reach: mapped, 6to4, NAT64, or in the old compatible form."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address in _NAT64 or (address in _COMPATIBLE and int(address) > 1):
        return ipaddress.IPv4Address(int(address) & _LOW_32)
    return None
