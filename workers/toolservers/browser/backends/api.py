"""Calls a search engine's JSON API. The operator chose its address, so any address is allowed."""

from __future__ import annotations

from typing import Any

import httpx
import orjson

from app.fetching.body import read_body
from app.fetching.errors import FetchError
from workers.toolservers.browser.errors import BrowserError

MAX_ANSWER_BYTES = 16 * 1024 * 1024


async def call(method: str, url: str, seconds: float, **request: Any) -> dict[str, Any]:
    """The JSON object that the search engine answers.

    `request` has the keyword arguments of httpx.request. Raises BrowserError.
    """
    request["headers"] = {**request.get("headers", {}), "Accept": "application/json", "Accept-Encoding": "gzip"}
    try:
        async with (
            httpx.AsyncClient(timeout=seconds, follow_redirects=False) as client,
            client.stream(method, url, **request) as response,
        ):
            if response.status_code != 200:
                raise BrowserError(f"The search engine answers {response.status_code}.")
            encoding = response.headers.get("content-encoding", "")
            answer = orjson.loads(await read_body(response.aiter_raw(), encoding, MAX_ANSWER_BYTES))
    except httpx.TimeoutException:
        raise BrowserError("The search engine takes too long to answer.") from None
    except (httpx.HTTPError, httpx.InvalidURL, OSError):
        raise BrowserError("The search engine cannot be reached.") from None
    except FetchError as error:
        raise BrowserError(str(error)) from None
    except orjson.JSONDecodeError:
        raise BrowserError("The search engine answers no JSON.") from None
    if not isinstance(answer, dict):
        raise BrowserError("The search engine answers no JSON object.")
    return answer


def objects(value: Any) -> list[dict[str, Any]]:
    """The objects in a list; empty if `value` is no list."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def text(value: Any) -> str:
    """`value` if it is a string, else an empty one."""
    return value if isinstance(value, str) else ""


def is_web(url: str) -> bool:
    """Whether the browser can open the URL of a result."""
    return url.startswith(("http://", "https://"))
