"""Searches by Exa (https://exa.ai/docs/reference). Exa also fetches the pages: this machine connects to Exa alone."""

from __future__ import annotations

from typing import Any

from workers.toolservers.browser.backends import api
from workers.toolservers.browser.errors import BrowserError
from workers.toolservers.browser.pages import Format, Hit, Page

URL = "https://api.exa.ai"


class Exa:
    """`key` is Exa's API key; it is sent as a header, and appears nowhere else."""

    def __init__(self, key: str, seconds: float, url: str = URL) -> None:
        self._url = url.rstrip("/")
        self._headers = {"x-api-key": key}
        self._seconds = seconds

    async def search(self, query: str, topn: int) -> list[Hit]:
        answer = await self._post("/search", {"query": query, "numResults": topn, "contents": {"summary": True}})
        results = [entry for entry in api.objects(answer.get("results")) if api.is_web(api.text(entry.get("url")))]
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


def _reason(answer: dict[str, Any]) -> str:
    """Exa's reason: `statuses` has one entry for each URL."""
    for status in api.objects(answer.get("statuses")):
        error = status.get("error")
        if isinstance(error, dict) and (tag := api.text(error.get("tag"))):
            return f": {tag[:80]}"
    return ""
