"""Pages of the web: fetched with care, and decoded."""

from __future__ import annotations

import codecs
import re

from app.fetching.body import codec_of, text_codec
from app.fetching.errors import FetchError
from app.fetching.fetcher import Fetcher
from workers.toolservers.browser.errors import BrowserError
from workers.toolservers.browser.pages import Format, Page

_FORMATS = {"text/html": Format.HTML, "application/xhtml+xml": Format.HTML}
_TEXTS = re.compile(r"text/.+|application/(.+\+)?(json|xml|yaml)|application/(javascript|x-ndjson)")
_CHARSET = re.compile(
    rb"""<(?:meta|\?xml)[^>]{0,200}?(?:charset|encoding)\s*=\s*["']?\s*([\w:-]{1,40})""", re.IGNORECASE
)
_HEAD = 2048
_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_HEADERS = {
    "User-Agent": "Mozilla/5.0 (compatible; Longhaul browser tool)",
    "Accept": "text/html,application/xhtml+xml,text/plain;q=0.9,text/*;q=0.8,*/*;q=0.1",
}


async def fetch_page(fetcher: Fetcher, url: str) -> Page:
    """The page at `url`, after redirects; what is too long of it is left out. Raises BrowserError."""
    try:
        found = await fetcher.fetch(url, _HEADERS, format_of)
    except FetchError as error:
        raise BrowserError(str(error)) from None
    return Page(found.url, decode(found.body, found.content_type), format_of(found.content_type))


def format_of(content_type: str) -> Format:
    """The format of a body of this type; an empty type means HTML. Raises BrowserError for types it cannot read."""
    media = content_type.partition(";")[0].strip().lower()
    if not media:
        return Format.HTML
    if media in _FORMATS:
        return _FORMATS[media]
    if _TEXTS.fullmatch(media):
        return Format.TEXT
    what = "a PDF" if media == "application/pdf" else media[:80]
    raise BrowserError(f"The page is {what}, and only HTML and plain text can be opened.")


def decode(body: bytes, content_type: str) -> str:
    """The text. Charset: of the byte order mark, the header, or the page; else UTF-8, or windows-1252."""
    for mark, charset in _BOMS:
        if body.startswith(mark):
            return body[len(mark) :].decode(charset, "replace")
    inside = _CHARSET.search(body[:_HEAD])
    if codec := codec_of(content_type) or (inside and text_codec(inside[1].decode("ascii", "replace"))):
        return body.decode(codec, "replace")
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(body)  # a character that is cut at the end is no error
    except UnicodeDecodeError:
        return body.decode("cp1252", "replace")
