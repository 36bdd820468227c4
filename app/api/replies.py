"""JSON bodies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from starlette.responses import Response


def reply(body: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """`body` as a JSON response."""
    return Response(orjson.dumps(body), status, headers, media_type="application/json")
