"""Files and pictures at URLs: read once, from hosts that the operator allows, when a request is accepted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from email.message import Message
from urllib.parse import unquote, urlsplit

from app.bounds import Bound
from app.fetching.errors import FetchError, NotAllowed
from app.fetching.fetched import Fetched
from app.fetching.hosts import AllowedHosts
from app.fetching.lazy import LazyFetcher
from app.protocol.errors import InvalidRequest
from app.protocol.text import shortened

PLACES = 8
"""Requests that download at once. Each holds as many bytes as a body may have."""
PLACE_SECONDS = 10.0
"""How long a request waits for a place."""
SECONDS = 20.0
"""How long all downloads of one request may take together. It holds its turn to be accepted meanwhile."""
MAX_NAME_CHARS = 512
_HEADERS = {"User-Agent": "Mozilla/5.0 (compatible; Longhaul)", "Accept": "*/*"}
_MAX_HEADER_CHARS = 2048
"""Longest Content-Disposition that is parsed: Python takes quadratic time to parse it."""
_MAX_MESSAGE_CHARS = 300


class Downloads:
    """Downloads from the hosts of an operator's list; a request's files have `most_bytes` together at most."""

    def __init__(self, hosts: Sequence[str], most_bytes: int, *, shares: bool) -> None:
        self._hosts = AllowedHosts(hosts)
        self._most_bytes = most_bytes
        self.bound = Bound("downloads", PLACES, shares=shares, seconds=PLACE_SECONDS)
        self._fetcher = LazyFetcher(self._hosts.policy, most_bytes + 1, SECONDS, 2 * PLACES)

    @property
    def any_allowed(self) -> bool:
        """Whether there is a host from which files are read."""
        return bool(self._hosts)

    def covers(self, url: str) -> bool:
        """Whether the operator allows the host of a URL."""
        try:
            return self._hosts.covers(urlsplit(url).hostname or "")
        except ValueError:
            return False

    def close(self) -> None:
        """Waits for nothing."""
        self._fetcher.close()

    @asynccontextmanager
    async def read(self, project: str, urls: Mapping[str, str]) -> AsyncGenerator[dict[str, Fetched]]:
        """Yields what is at the URLs, each of which has its field here. It counts as downloaded until the end of the
        context.

        Raises InvalidRequest about the field of the first URL that cannot be read, and BoundReached.
        """
        with await self.bound.wait(project):
            found: dict[str, Fetched] = {}
            left = self._most_bytes
            deadline = asyncio.get_running_loop().time() + SECONDS
            for url, where in urls.items():
                found[url] = await self._download(url, where, deadline)
                left -= len(found[url].body)
                if left < 0:
                    message = f"Invalid '{where}': the files of a request may bring in {self._most_bytes} bytes."
                    raise InvalidRequest(message, where, "files_too_large")
            yield found

    async def _download(self, url: str, where: str, deadline: float) -> Fetched:
        try:
            async with asyncio.timeout_at(deadline):
                found = await (await self._fetcher.get()).fetch(url, _HEADERS)
        except NotAllowed as error:
            raise _failed(where, str(error), "host_not_allowed") from None
        except FetchError as error:
            raise _failed(where, str(error)) from None
        except TimeoutError:
            raise _failed(where, f"It took longer than {SECONDS:g} seconds.") from None
        if len(found.body) > self._most_bytes:
            raise _failed(where, f"The file may have {self._most_bytes} bytes, and has more.", "file_too_large")
        return found


def name_of(found: Fetched) -> str:
    """The name that the server gives a file, else the last part of its URL."""
    url = urlsplit(found.url)
    for name in (_sent_name(found), unquote(url.path)):
        last = name.replace("\\", "/").rstrip("/").rpartition("/")[2]
        if shown := "".join(filter(str.isprintable, last)).strip()[:MAX_NAME_CHARS]:
            return shown
    return url.hostname or "file"


def _sent_name(found: Fetched) -> str:
    message = Message()
    message["content-disposition"] = found.headers.get("content-disposition", "")[:_MAX_HEADER_CHARS]
    try:
        return message.get_filename() or ""
    except ValueError:  # of a charset that is none
        return ""


def _failed(where: str, sentence: str, code: str = "invalid_value") -> InvalidRequest:
    """The error in OpenAI's words, with its code for whatever is wrong with a URL."""
    message = f"Error while downloading '{where}': {shortened(sentence, _MAX_MESSAGE_CHARS)}"
    return InvalidRequest(message, where, code)
