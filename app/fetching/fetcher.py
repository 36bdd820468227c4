"""Fetches what URLs name. The address of each redirect is checked, and the checked address is the one connected to."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress

import certifi
import httpx

from app.fetching.body import read_body
from app.fetching.egress import EgressPolicy
from app.fetching.errors import FetchError, NotAllowed
from app.fetching.fetched import Fetched
from app.fetching.resolving import Resolve, allowed_address, by_dns

MAX_REDIRECTS = 5
MAX_URL = 8192
"""Characters: signed URLs have thousands."""
_REDIRECTS = frozenset({301, 302, 303, 307, 308})

Egress = Callable[[str, int], EgressPolicy | None]
"""Which addresses of a host may be connected to on a port; None: the host is not allowed."""


class Fetcher:
    """Fetches URLs, and keeps no connection and no cookie between two. It ignores proxies of the environment.

    Reads `max_bytes` of a body, after decompression. `seconds` is the deadline of each step (connect, read); the caller
    has a deadline for the whole. `tls` verifies certificates; None: by the authorities of the system and of certifi.
    """

    def __init__(
        self,
        egress: Egress,
        max_bytes: int,
        seconds: float,
        resolve: Resolve = by_dns,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._egress = egress
        self._max_bytes = max_bytes
        self._seconds = seconds
        self._resolve = resolve
        self._tls = tls or _public_authorities()

    async def fetch(self, url: str, headers: Mapping[str, str], check_type: Callable[[str], object] = str) -> Fetched:
        """What is at `url`, after redirects. Raises FetchError, and what `check_type` raises about the type of an
        answer, before its body is read."""
        current = _parse(url)
        for _ in range(MAX_REDIRECTS + 1):
            result = await self._hop(current, headers, check_type)
            if isinstance(result, Fetched):
                return result
            current = result
        raise FetchError(f"{current.host} redirects more than {MAX_REDIRECTS} times.")

    async def _hop(
        self, url: httpx.URL, headers: Mapping[str, str], check_type: Callable[[str], object]
    ) -> Fetched | httpx.URL:
        """Requests one URL: its answer, or the URL that it redirects to."""
        async with self._exchange("GET", url, headers) as response:
            location = response.headers.get("location")
            if response.status_code in _REDIRECTS and location:
                return _parse(str(url.join(location)))
            if response.status_code >= 300:
                raise FetchError(f"{url.host} answers {response.status_code}.")
            found = dict(response.headers)
            check_type(found.get("content-type", ""))
            body = await read_body(response.aiter_raw(), found.get("content-encoding", ""), self._max_bytes)
            return Fetched(str(url), found, body)

    async def post(self, url: str, headers: Mapping[str, str], content: bytes) -> Fetched:
        """Posts to `url`, and returns the answer whatever its status; redirects are not followed. Raises FetchError.

        A body that cannot be read is none: the status says whether the server took it.
        """
        async with self._exchange("POST", target := _parse(url), headers, content) as response:
            encoding, body = response.headers.get("content-encoding", ""), b""
            with suppress(FetchError, httpx.HTTPError):
                body = await read_body(response.aiter_raw(), encoding, self._max_bytes)
            return Fetched(str(target), dict(response.headers), body, response.status_code)

    @asynccontextmanager
    async def _exchange(
        self, method: str, url: httpx.URL, headers: Mapping[str, str], content: bytes | None = None
    ) -> AsyncIterator[httpx.Response]:
        """The answer to a request to the checked address, its body unread. Raises FetchError."""
        port = url.port or (443 if url.scheme == "https" else 80)
        host = url.raw_host.decode("ascii")
        policy = self._egress(host, port)
        if policy is None:
            raise NotAllowed(f"The operator does not allow {url.netloc.decode('ascii')}.")
        address = await allowed_address(host, port, policy, self._resolve)
        try:
            # A new client for each request: a shared one would share a connection between the names of one address.
            async with httpx.AsyncClient(verify=self._tls, trust_env=False, timeout=self._seconds) as client:
                request = _request(client, method, url, address, headers, content)
                response = await client.send(request, stream=True, follow_redirects=False)
                try:
                    yield response
                finally:
                    await response.aclose()
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise FetchError(_message(host, error)) from None


def _public_authorities() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())  # small containers have no system authorities
    return context


def _parse(text: str) -> httpx.URL:
    """The URL, without its fragment. Raises FetchError if it is not a URL of the web."""
    try:
        url = httpx.URL(text).copy_with(fragment=None)
    except (httpx.InvalidURL, ValueError, UnicodeError):
        raise FetchError("That is not a URL.") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise FetchError("Only http:// and https:// URLs can be opened.")
    if url.userinfo:
        raise FetchError("URLs with a user name or password are not opened.")
    if len(str(url)) > MAX_URL:
        raise FetchError(f"The URL is longer than {MAX_URL} characters.")
    return url


def _request(
    client: httpx.AsyncClient,
    method: str,
    url: httpx.URL,
    address: str,
    more: Mapping[str, str],
    content: bytes | None,
) -> httpx.Request:
    """A request to `address` for the host of `url`; TLS asks for the certificate of that host."""
    headers = {**more, "Accept-Encoding": "gzip", "Host": url.netloc.decode("ascii")}
    extensions = {} if _is_address(url.host) else {"sni_hostname": url.raw_host.decode("ascii")}
    target = url.copy_with(host=address)
    return client.build_request(method, target, headers=headers, extensions=extensions, content=content)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _message(host: str, error: Exception) -> str:
    if isinstance(error, httpx.TimeoutException):
        return f"{host} takes too long to answer."
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return f"The certificate of {host} cannot be verified."
    if isinstance(error, httpx.ConnectError | OSError):
        return f"{host} cannot be reached."
    return f"{host} does not answer as a web server does."
