"""Fetches a page. The address of each redirect is checked, and the checked address is the one connected to."""

from __future__ import annotations

import ipaddress
import ssl

import certifi
import httpx

from workers.toolservers.browser.documents import MAX_URL
from workers.toolservers.browser.errors import BrowserError
from workers.toolservers.browser.fetching.body import decode, format_of, read_body
from workers.toolservers.browser.fetching.egress import EgressPolicy
from workers.toolservers.browser.fetching.resolving import Resolve, by_dns, checked_address
from workers.toolservers.browser.pages import Page

AGENT = "Mozilla/5.0 (compatible; Longhaul browser tool)"
MAX_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_HEADERS = {
    "User-Agent": AGENT,
    "Accept": "text/html,application/xhtml+xml,text/plain;q=0.9,text/*;q=0.8,*/*;q=0.1",
    "Accept-Encoding": "gzip",
}


class Fetcher:
    """Fetches pages, and keeps no connection and no cookie between two. It ignores proxies of the environment.

    Reads `max_bytes` of a page, after decompression. `seconds` is the deadline of each step (connect, read); the caller
    has a deadline for the whole. `tls` verifies certificates; None: by the authorities of the system and of certifi.
    """

    def __init__(
        self,
        egress: EgressPolicy,
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

    async def fetch(self, url: str) -> Page:
        """The page at `url`, after redirects. Raises BrowserError."""
        current = _parse(url)
        for _ in range(MAX_REDIRECTS + 1):
            result = await self._hop(current)
            if isinstance(result, Page):
                return result
            current = result
        raise BrowserError(f"{current.host} redirects more than {MAX_REDIRECTS} times.")

    async def _hop(self, url: httpx.URL) -> Page | httpx.URL:
        """Requests one URL: the page, or the URL that it redirects to."""
        port = url.port or (443 if url.scheme == "https" else 80)
        host = url.raw_host.decode("ascii")
        address = await checked_address(host, port, self._egress, self._resolve)
        try:
            # A new client for each request: a shared one would share a connection between the names of one address.
            async with httpx.AsyncClient(verify=self._tls, trust_env=False, timeout=self._seconds) as client:
                response = await client.send(_request(client, url, address), stream=True, follow_redirects=False)
                try:
                    return await self._outcome(url, response)
                finally:
                    await response.aclose()
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise BrowserError(_message(host, error)) from None

    async def _outcome(self, url: httpx.URL, response: httpx.Response) -> Page | httpx.URL:
        location = response.headers.get("location")
        if response.status_code in _REDIRECTS and location:
            return _parse(str(url.join(location)))
        if response.status_code in (404, 410):
            raise BrowserError(f"{url.host} has no such page ({response.status_code}).")
        if response.status_code >= 300:
            raise BrowserError(f"{url.host} answers {response.status_code}, and no page.")
        content_type = response.headers.get("content-type", "")
        kind = format_of(content_type)
        encoding = response.headers.get("content-encoding", "")
        body = await read_body(response.aiter_raw(), encoding, self._max_bytes)
        return Page(str(url), decode(body, content_type), kind)


def _public_authorities() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())  # small containers have no system authorities
    return context


def _parse(text: str) -> httpx.URL:
    """The URL, without its fragment. Raises BrowserError if it is not the URL of a web page."""
    try:
        url = httpx.URL(text).copy_with(fragment=None)
    except (httpx.InvalidURL, ValueError, UnicodeError):
        raise BrowserError("That is not a URL.") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise BrowserError("Only http:// and https:// URLs can be opened.")
    if url.userinfo:
        raise BrowserError("URLs with a user name or password are not opened.")
    if len(str(url)) > MAX_URL:
        raise BrowserError(f"The URL is longer than {MAX_URL} characters.")
    return url


def _request(client: httpx.AsyncClient, url: httpx.URL, address: str) -> httpx.Request:
    """A request to `address` for the host of `url`; TLS asks for the certificate of that host."""
    headers = {**_HEADERS, "Host": url.netloc.decode("ascii")}
    extensions = {} if _is_address(url.host) else {"sni_hostname": url.raw_host.decode("ascii")}
    return client.build_request("GET", url.copy_with(host=address), headers=headers, extensions=extensions)


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
