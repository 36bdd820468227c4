"""One call of a search engine's JSON API: the operator chose the address, so it may be anywhere."""

from __future__ import annotations

from typing import Any

import httpx
import orjson

from workers.toolservers.browser.errors import BrowserError
from workers.toolservers.browser.fetching.body import read_body

LIMIT = 16 * 1024 * 1024
"""Bytes of an answer."""


class ApiError(BrowserError):
    """The search engine does not work as it should. `status` is its HTTP answer, 0 where there was none."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


async def call(name: str, method: str, url: str, seconds: float, **request: Any) -> dict[str, Any]:
    """The JSON object that `name` (for messages) answers. `request` is what httpx.request takes. Raises ApiError."""
    request["headers"] = {**request.get("headers", {}), "Accept": "application/json", "Accept-Encoding": "gzip"}
    try:
        async with (
            httpx.AsyncClient(timeout=seconds, follow_redirects=False) as client,
            client.stream(method, url, **request) as response,
        ):
            if response.status_code != 200:
                raise ApiError(f"{name} answers {response.status_code}.", response.status_code)
            encoding = response.headers.get("content-encoding", "")
            answer = orjson.loads(await read_body(response.aiter_raw(), encoding, LIMIT))
    except httpx.TimeoutException:
        raise ApiError(f"{name} takes too long to answer.") from None
    except (httpx.HTTPError, httpx.InvalidURL, OSError):
        raise ApiError(f"{name} cannot be reached.") from None
    except orjson.JSONDecodeError:
        raise ApiError(f"{name} answers no JSON.") from None
    if not isinstance(answer, dict):
        raise ApiError(f"{name} answers no JSON object.")
    return answer


def objects(value: Any) -> list[dict[str, Any]]:
    """The objects of a list; empty for what is none."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def text(value: Any) -> str:
    """A string; empty for what is none."""
    return value if isinstance(value, str) else ""


def is_web(url: str) -> bool:
    """Whether a result's URL is one that can be opened."""
    return url.startswith(("http://", "https://"))
