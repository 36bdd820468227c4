"""URLs that may name several servers, as libpq's do: `postgresql://user:password@a:5432,b:5432/name`."""

from __future__ import annotations

import re

_HOSTS = re.compile(r"(?P<before>[^/]*//(?:[^/?#]*@)?)(?P<hosts>[^/?#]*)(?P<after>.*)", re.DOTALL)


def split_hosts(url: str) -> tuple[str, list[str], str]:
    """Returns what comes before the hosts, each host with its port, and what comes after them.

    `urlsplit` will not do: newer Pythons refuse an IPv6 address behind another host. What is no URL has no hosts.
    """
    found = _HOSTS.fullmatch(url)
    return (url, [], "") if found is None else (found["before"], found["hosts"].split(","), found["after"])
