"""Reads the body of an answer up to a limit, and decodes it."""

from __future__ import annotations

import codecs
import re
import zlib
from collections.abc import AsyncIterator

from workers.toolservers.browser.errors import BrowserError
from workers.toolservers.browser.pages import Format

_FORMATS = {"text/html": Format.HTML, "application/xhtml+xml": Format.HTML}
_TEXTS = re.compile(r"text/.+|application/(.+\+)?(json|xml|yaml)|application/(javascript|x-ndjson)")
_CHARSET = re.compile(
    rb"""<(?:meta|\?xml)[^>]{0,200}?(?:charset|encoding)\s*=\s*["']?\s*([\w:-]{1,40})""", re.IGNORECASE
)
_HEAD = 2048
_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_ANSI = {"iso8859-1": "cp1252", "ascii": "cp1252"}
"""Browsers read these as windows-1252."""
_NO_CHARSETS = frozenset({"idna", "punycode", "undefined", "unicode_escape", "raw_unicode_escape"})
_GZIP_OR_ZLIB = 47


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


async def read_body(chunks: AsyncIterator[bytes], encoding: str, limit: int) -> bytes:
    """The decompressed body, truncated after `limit` bytes; a small body never expands beyond that.

    `encoding` is the Content-Encoding. Raises BrowserError for one that was not requested, and for a damaged body.
    """
    body = bytearray()
    unpack = _unpacker(encoding.strip().lower())
    async for chunk in chunks:
        try:
            body += unpack.decompress(chunk, limit - len(body)) if unpack else chunk
        except zlib.error:
            raise BrowserError("The page came damaged.") from None
        if len(body) >= limit:
            break
    return bytes(body[:limit])


def _unpacker(encoding: str) -> zlib._Decompress | None:
    if encoding in ("", "identity"):
        return None
    if encoding in ("gzip", "x-gzip", "deflate"):
        return zlib.decompressobj(_GZIP_OR_ZLIB)
    raise BrowserError("The page came in a compression that was not asked for.")


def decode(body: bytes, content_type: str) -> str:
    """The text. Charset: of the byte order mark, the header, or the page; else UTF-8, or windows-1252."""
    for mark, charset in _BOMS:
        if body.startswith(mark):
            return body[len(mark) :].decode(charset, "replace")
    named = re.search(r"charset\s*=\s*[\"']?([\w:-]{1,40})", content_type, re.IGNORECASE)
    inside = _CHARSET.search(body[:_HEAD])
    for name in (named and named[1], inside and inside[1].decode("ascii", "replace")):
        if name and (codec := _text_codec(name)):
            return body.decode(codec, "replace")
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(body)  # a character that is cut at the end is no error
    except UnicodeDecodeError:
        return body.decode("cp1252", "replace")


def _text_codec(name: str) -> str | None:
    try:
        b"  ".decode(name, "replace")  # refuses codecs that do not decode text, such as bz2
        codec = codecs.lookup(name)
    except (LookupError, ValueError):
        return None
    # Python has codecs of text that no page uses.
    if codec.name.replace("-", "_") in _NO_CHARSETS:
        return None
    return _ANSI.get(codec.name, codec.name)
