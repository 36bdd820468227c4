"""Turns HTML into the text that the model reads, in one pass over the parser's events.

lxml's parser (libxml2) repairs broken HTML. No tree is built and nothing recurses, so an untrusted page costs time and
memory in proportion to its size, however deep it nests. The layout is that of gpt-oss's reference browser: headings
with `#`, lists with `*`, links as `【id†text†domain】`, images as `[Image 0: alt]`.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field
from urllib.parse import urldefrag, urljoin, urlsplit

from lxml import etree

from workers.toolservers.browser.documents import MAX_URL, Link, clean, domain_of, label, link_text, one_line


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}
_PARAGRAPHS = _names("h1 h2 h3 h4 h5 h6 p ul ol dl table blockquote pre figure hr details")
_BLOCKS = _PARAGRAPHS | _names(
    "address article aside body caption center dd div dt fieldset figcaption footer form header html legend li main nav"
    " option section summary tbody tfoot thead title tr"
)
_UNSEEN = _names("script style noscript template svg math iframe object select textarea datalist canvas audio video")
_HIDEABLE = _names("div span p section article aside ul ol li table td tr a form h1 h2 h3 h4 h5 h6")
_RAISED = {"sup": "^{%s}", "sub": "_{%s}"}
_WORD = re.compile(r"[\w-]+")
_SPACES = re.compile(r"[ \t\n\f\r]+")
_MAX_DEPTH = 8
_CHUNK = 64 * 1024
_MAX_ELEMENTS = 200_000
_LONG_LINK = 300
"""Characters. A longer link ends at the next block: its author probably forgot to close it."""


@dataclass(slots=True)
class _Capture:
    """An element whose text is needed as a whole."""

    tag: str
    href: str = ""
    parts: list[str] = field(default_factory=list)
    length: int = 0


@dataclass(frozen=True, slots=True)
class Text:
    """The text of a page; `cut` if the page has more than was read."""

    title: str
    text: str
    links: tuple[Link, ...]
    cut: bool


def render(html: str, url: str, limit: int) -> Text:
    """The page at `url` as text of at most `limit` characters, which count the URLs of its links, too."""
    layout = _Layout(url, limit)
    parser = etree.HTMLParser(target=layout, encoding="utf-8")
    content = html.encode("utf-8", "replace")
    with contextlib.suppress(etree.XMLSyntaxError):  # the page is empty
        for start in range(0, len(content), _CHUNK):
            parser.feed(content[start : start + _CHUNK])
            if layout.full:
                break
        parser.close()
    return layout.finish()


class _Layout:
    """The parser's target: its methods are named by lxml."""

    def __init__(self, url: str, limit: int) -> None:
        self._base = url
        self._domain = domain_of(url)
        self._room = limit
        self._title = ""
        self._lines: list[str] = []
        self._line: list[str] = []
        self._worded = False
        """Whether the line has words, not only a bullet or a heading's mark."""
        self._blank = False
        self._captures: list[_Capture] = []
        self._unseen = ""
        self._unseen_depth = 0
        self._lists: list[int | None] = []
        self._preformatted = 0
        self._numbers: dict[str, int] = {}
        self._links: list[Link] = []
        self._images = 0
        self._elements = 0

    @property
    def full(self) -> bool:
        """Whether the limit is reached: the rest of the page is not read."""
        return self._room <= 0 or self._elements > _MAX_ELEMENTS

    # Called by lxml

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self._elements += 1
        if self._unseen:
            self._unseen_depth += tag == self._unseen
            return
        if tag in _BLOCKS:
            self._block(tag)
        if tag in _UNSEEN or ("hidden" in attributes and tag in _HIDEABLE):
            self._unseen, self._unseen_depth = tag, 1
        else:
            self._open(tag, attributes)

    def end(self, tag: str) -> None:
        if self._unseen:
            self._unseen_depth -= tag == self._unseen
            self._unseen = self._unseen if self._unseen_depth else ""
            return
        if any(capture.tag == tag for capture in self._captures):
            self._release(tag)
        if tag in ("ul", "ol") and self._lists:
            self._lists.pop()
        self._preformatted = max(0, self._preformatted - (tag == "pre"))
        if tag in _BLOCKS:
            self._block(tag, ends=True)

    def data(self, text: str) -> None:
        if not self._unseen:
            self._write(clean(text))  # not before parsing: entities could spell our marks

    def comment(self, text: str) -> None:
        pass

    def close(self) -> None:
        while self._captures:
            self._release(self._captures[-1].tag)
        self._end_line(final=True)

    def finish(self) -> Text:
        """The text laid out so far."""
        self.close()
        text = "\n".join(self._lines).strip("\n")
        return Text(self._title, text, tuple(self._links), cut=self.full)

    # Elements

    def _open(self, tag: str, attributes: dict[str, str]) -> None:
        if tag in _HEADINGS:
            self._write_mark(_HEADINGS[tag])
        elif tag == "li":
            self._bullet()
        elif tag in ("ul", "ol"):
            self._lists.append(0 if tag == "ol" else None)
        elif tag in ("td", "th") and self._worded:
            self._write(" | ")
        elif tag == "br":
            self._write("\n") if self._captures or self._preformatted else self._end_line()
        elif tag == "pre":
            self._preformatted += 1
        elif tag == "img" and attributes.get("alt", "").strip():
            self._image(attributes["alt"])
        elif tag == "base":
            self._base = self._target(attributes.get("href", "")) or self._base
        elif self._is_captured(tag, attributes):
            self._captures.append(_Capture(tag, attributes.get("href", "")))

    def _is_captured(self, tag: str, attributes: dict[str, str]) -> bool:
        wanted = "href" in attributes if tag == "a" else tag == "title" or tag in _RAISED
        return wanted and not any(capture.tag == tag for capture in self._captures)

    def _image(self, alt: str) -> None:
        self._write(f"[Image {self._images}: {label(alt)}]")
        self._images += 1

    def _bullet(self) -> None:
        depth = "  " * min(_MAX_DEPTH, max(1, len(self._lists)))
        number = self._lists[-1] if self._lists else None
        self._end_line(final=True)
        if number is None:
            self._write_mark(f"{depth}* ")
        else:
            self._lists[-1] = number + 1
            self._write_mark(f"{depth}{number + 1}. ")

    def _release(self, tag: str) -> None:
        """Ends the capture of `tag`, and the captures inside it that were left open."""
        while self._captures:
            capture = self._captures.pop()
            text = "".join(capture.parts)
            if capture.tag == "title":
                self._title = self._title or one_line(text, 200)
            elif capture.tag == "a":
                self._write(self._link(capture.href, text))
            else:
                self._write(_RAISED[capture.tag] % text if _WORD.fullmatch(text) else text)
            if capture.tag == tag:
                return

    def _link(self, href: str, text: str) -> str:
        words = label(text, 1000)
        target = "" if href.startswith("#") else self._target(href)
        if not words or not target:
            return text
        if target not in self._numbers:
            self._numbers[target] = len(self._links)
            self._links.append(Link(target))
            self._room -= len(target)
        domain = domain_of(target)
        return link_text(self._numbers[target], words, "" if domain == self._domain else domain)

    def _target(self, href: str) -> str:
        """The whole URL of a link; empty if the browser cannot open it."""
        if len(href) > MAX_URL:
            return ""
        try:
            url = urldefrag(urljoin(self._base, href.strip())).url
            fits = urlsplit(url).scheme in ("http", "https") and len(url) <= MAX_URL and url.isprintable()
        except ValueError:
            return ""
        return url.replace(" ", "%20") if fits and domain_of(url) else ""

    # Lines

    def _block(self, tag: str, ends: bool = False) -> None:
        if self._captures:
            if sum(capture.length for capture in self._captures) <= _LONG_LINK or self._captures[0].tag == "title":
                self._write(" ")
                return
            self._release(self._captures[0].tag)
        self._end_line(final=ends)
        self._blank = self._blank or tag in _PARAGRAPHS

    def _write(self, text: str) -> None:
        if self._captures:
            self._captures[-1].parts.append(text)
            self._captures[-1].length += len(text)
        elif self._preformatted:
            first, *rest = text.split("\n")
            self._put(first)
            for line in rest:
                self._end_line(empty=True)
                self._put(line)
        else:
            self._put(_SPACES.sub(" ", text))

    def _write_mark(self, mark: str) -> None:
        if not self._captures:
            self._line.append(mark)
            self._room -= len(mark)

    def _put(self, text: str) -> None:
        if not self._preformatted and (not self._line or self._line[-1].endswith(" ")):
            text = text.lstrip(" ")
        text = text[: max(0, self._room)]
        if text:
            self._line.append(text)
            self._room -= len(text)
            self._worded = True

    def _end_line(self, final: bool = False, empty: bool = False) -> None:
        """Ends the line. A line of marks alone waits for words; `final` drops it. `empty` keeps an empty line."""
        if not self._worded and not empty:
            if final:
                self._line.clear()
            return
        line = "".join(self._line).rstrip(" ")
        self._line.clear()
        self._worded = False
        if self._room > 0 or line:
            self._lines += ["", line] if self._blank and self._lines else [line]
            self._room -= 1
        self._blank = False
