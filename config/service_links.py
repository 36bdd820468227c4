"""What Kubernetes puts into the environment of every pod for each Service of its namespace: links, no settings.

A Service `longhaul` sets `LONGHAUL_PORT=tcp://10.0.0.1:8000`, `LONGHAUL_SERVICE_HOST` and more; one called `vllm` or
`flower` does the same with variables that those programs read.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping

_SERVICE = r"(?:LONGHAUL|FLOWER|VLLM)(?:_[A-Z0-9_]+)?"
"""Services whose links could be taken for settings, by what begins their names."""
_NAME = re.compile(
    rf"{_SERVICE}_(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?|PORT_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)"
)
_PORT = re.compile(rf"{_SERVICE}_PORT")
_ADDRESS = re.compile(r"(?:tcp|udp|sctp)://\S+")


def is_service_link(name: str, value: str) -> bool:
    """Whether a variable is part of a service link. `..._PORT` is one if its value is an address: no setting's is."""
    return _NAME.fullmatch(name) is not None or bool(_PORT.fullmatch(name) and _ADDRESS.fullmatch(value))


def drop_service_links(environ: MutableMapping[str, str]) -> None:
    """Removes the service links, so that no program that this process is, or starts, takes them for settings."""
    for name in [name for name, value in environ.items() if is_service_link(name, value)]:
        del environ[name]
