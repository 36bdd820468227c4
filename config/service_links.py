"""What Kubernetes puts into the environment of every pod for each Service of its namespace: links, no settings.

A Service `longhaul` sets `LONGHAUL_PORT=tcp://10.0.0.1:8000`, `LONGHAUL_SERVICE_HOST` and more; one called `vllm` or
`flower` does the same with variables that those programs read.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping

_LINK = re.compile(
    r"(LONGHAUL|FLOWER|VLLM)(_[A-Z0-9_]+)?_"
    r"(SERVICE_HOST=|SERVICE_PORT(_[A-Z0-9_]+)?=|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?=|PORT=(tcp|udp|sctp)://)"
)
"""A variable with its value: no setting is an address."""


def drop_service_links(environ: MutableMapping[str, str]) -> None:
    """Removes the service links, so that no program that this process is, or starts, takes them for settings."""
    for name in [name for name, value in environ.items() if _LINK.match(f"{name}={value}")]:
        del environ[name]
