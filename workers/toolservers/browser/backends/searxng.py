"""Searches by the JSON API of a SearXNG server of your own; pages come straight from the web.

See https://docs.searxng.org/dev/search_api.html. The server's settings.yml must have `json` in `search.formats`, or
it answers 403.
"""

from __future__ import annotations

from app.fetching.fetcher import Fetcher
from workers.toolservers.browser.backends import api
from workers.toolservers.browser.pages import Hit, Page, SearchOptions
from workers.toolservers.browser.web import fetch_page


class Searxng:
    """`url` is the URL of the server, with its path if it has one."""

    def __init__(self, url: str, seconds: float, fetcher: Fetcher) -> None:
        self._url = url.rstrip("/") + "/search"
        self._seconds = seconds
        self._fetcher = fetcher

    async def search(self, query: str, topn: int, options: SearchOptions) -> list[Hit]:
        """Most engines know `site:`. What one finds elsewhere all the same is left out."""
        params = {"q": _with_sites(query, options), "format": "json", "pageno": "1"}
        answer = await api.call("GET", self._url, self._seconds, params=params)
        hits: dict[str, Hit] = {}
        for result in api.objects(answer.get("results")):
            url = api.text(result.get("url"))
            if api.is_web(url) and options.allow(url):
                hits.setdefault(url, Hit(url, api.text(result.get("title")), api.text(result.get("content"))))
        return list(hits.values())[:topn]

    async def fetch(self, url: str) -> Page:
        return await fetch_page(self._fetcher, url)


def _with_sites(query: str, options: SearchOptions) -> str:
    allowed = " OR ".join(f"site:{domain}" for domain in options.allowed_domains)
    blocked = [f"-site:{domain}" for domain in options.blocked_domains]
    return " ".join([query, *([f"({allowed})"] if allowed else []), *blocked])
