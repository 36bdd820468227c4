"""Searches by Exa (https://exa.ai/docs/reference). Exa also fetches the pages: this machine connects to Exa alone."""

from __future__ import annotations

import re
from typing import Any

from workers.toolservers.browser.backends import api
from workers.toolservers.browser.errors import BrowserError
from workers.toolservers.browser.pages import Format, Hit, Page, SearchOptions

URL = "https://api.exa.ai"
_COUNTRY = re.compile("[A-Za-z]{2}")


class Exa:
    """`key` is Exa's API key; it is sent as a header, and appears nowhere else."""

    def __init__(self, key: str, seconds: float, url: str = URL) -> None:
        self._url = url.rstrip("/")
        self._headers = {"x-api-key": key}
        self._seconds = seconds

    async def search(self, query: str, topn: int, options: SearchOptions) -> list[Hit]:
        asked = {"query": query, "numResults": topn, "contents": {"summary": True}, **_asked(options)}
        answer = await self._post("/search", asked)
        found = [(entry, api.text(entry.get("url"))) for entry in api.objects(answer.get("results"))]
        results = [entry for entry, url in found if api.is_web(url) and options.allow(url)]
        return [
            Hit(entry["url"], api.text(entry.get("title")), api.text(entry.get("summary"))) for entry in results[:topn]
        ]

    async def fetch(self, url: str) -> Page:
        if not api.is_web(url):
            raise BrowserError("Only http:// and https:// URLs can be opened.")
        answer = await self._post("/contents", {"urls": [url], "text": {"includeHtmlTags": True}})
        for entry in api.objects(answer.get("results")):
            if content := api.text(entry.get("text")):
                return Page(api.text(entry.get("url")) or url, content, Format.HTML, api.text(entry.get("title")))
        raise BrowserError(f"The page cannot be had{_reason(answer)}.")

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return await api.call("POST", self._url + path, self._seconds, json=body, headers=self._headers)


def _asked(options: SearchOptions) -> dict[str, Any]:
    """Exa's own fields for the options."""
    asked = {
        "includeDomains": list(options.allowed_domains),
        "excludeDomains": list(options.blocked_domains),
        "userLocation": options.country.upper() if _COUNTRY.fullmatch(options.country) else None,
    }
    return {name: value for name, value in asked.items() if value}


def _reason(answer: dict[str, Any]) -> str:
    """Exa's reason: `statuses` has one entry for each URL."""
    for status in api.objects(answer.get("statuses")):
        error = status.get("error")
        if isinstance(error, dict) and (tag := api.text(error.get("tag"))):
            return f": {tag[:80]}"
    return ""
