"""How a command speaks to the operators' API or the admin API: at LONGHAUL_URL, or else at this machine's API."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import orjson

from app.local.errors import LocalError, NotAllowed, OutOfReach
from app.local.home import first_key, running_api
from app.local.ports import api_url
from config.settings import ConfigError, Settings, load_settings

CONNECT_SECONDS = 10.0
PAGE = 100
"""Entries of a page."""
ANSWER_SECONDS = 60.0
"""How long an answer, or a piece of one, may take: each has its own bounds at the server."""

T = TypeVar("T")


def path(*names: str) -> str:
    """The path of these names, whatever is in them. Raises ConfigError for an empty one."""
    if not all(names):
        raise ConfigError("a name or an id is empty")
    return "/".join(quote(name, safe="@") for name in names)


class OperatorClient:
    """Asks `/v1/operator/...` or `/v1/organization/...`, and returns what it answers.

    Every method raises ConfigError for what the server refuses as wrong, LocalError for what is not there or cannot be,
    and its kinds NotAllowed and OutOfReach. Paths begin behind that.
    """

    def __init__(self, http: httpx.AsyncClient, base: str) -> None:
        self._http = http
        self._base = base

    async def get(self, path: str, **query: Any) -> Any:
        """Parameters that are None are left out; those with several values are repeated."""
        return await self._answer("GET", path, params=_query(query))

    async def pages(self, path: str, most: int | None = None, after: str | None = None, **query: Any) -> list[Any]:
        """The entries of a list, page after page, because one may end before it is full: all of them, or the first."""
        found: list[Any] = []
        while most is None or len(found) < most:
            limit = PAGE if most is None else min(PAGE, most - len(found))
            page = await self.get(path, **query, limit=limit, after=after)
            found += page["data"]
            if not page["has_more"]:
                break
            after = page["last_id"]
        return found

    async def post(self, path: str, body: Any = None, **query: Any) -> Any:
        content = None if body is None else orjson.dumps(body)
        headers = {} if body is None else {"content-type": "application/json"}
        return await self._answer("POST", path, params=_query(query), content=content, headers=headers)

    async def delete(self, path: str, **query: Any) -> Any:
        return await self._answer("DELETE", path, params=_query(query))

    async def _answer(self, method: str, path: str, **request: Any) -> Any:
        with _named_troubles():
            response = await self._http.request(method, f"/v1/{self._base}/{path}", **request)
        _check(response)
        return orjson.loads(response.content)


def _query(sent: dict[str, Any]) -> dict[str, Any]:
    """Flags are written as the API reads them."""
    plain = {name: str(value).lower() if isinstance(value, bool) else value for name, value in sent.items()}
    return {name: value for name, value in plain.items() if value is not None}


@contextlib.contextmanager
def _named_troubles() -> Any:
    try:
        yield
    except httpx.HTTPError as error:
        reason = str(error) or type(error).__name__
        raise OutOfReach(f"the API cannot be reached ({reason}); LONGHAUL_URL says where it is") from None


def _check(response: httpx.Response) -> None:
    """Raises for an answer that is an error."""
    if response.is_success:
        return
    try:
        message = str(orjson.loads(response.content)["error"]["message"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        raise OutOfReach(f"{response.url} is no API of Longhaul (status {response.status_code})") from None
    raise _KINDS.get(response.status_code, LocalError)(message)


_KINDS: dict[int, type[Exception]] = {
    **dict.fromkeys((400, 413, 414), ConfigError),
    **dict.fromkeys((401, 403), NotAllowed),
    **dict.fromkeys((408, 429, 500, 502, 503, 504), OutOfReach),
}


def ask(act: Callable[[OperatorClient], Awaitable[T]], base: str = "operator") -> T:
    """Returns what `act` returns; it asks below `/v1/{base}/`. Raises ConfigError and LocalError."""
    return asyncio.run(_ask(load_settings(), act, base))


def administer(act: Callable[[OperatorClient], Awaitable[T]]) -> T:
    """The same of the admin API."""
    return ask(act, "organization")


async def _ask(settings: Settings, act: Callable[[OperatorClient], Awaitable[T]], base: str) -> T:
    async with _http(settings) as http:
        return await act(OperatorClient(http, base))


@contextlib.asynccontextmanager
async def _http(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    """The first key is sent to the API of this machine alone."""
    url, api_key = settings.url, settings.api_key
    if url is None:
        url = running_api(settings) or api_url(settings)
        api_key = api_key or first_key(settings)
    key = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
    timeout = httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS)
    base = url.rstrip("/").removesuffix("/v1")
    async with httpx.AsyncClient(base_url=base, headers=key, timeout=timeout) as http:
        yield http
