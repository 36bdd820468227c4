"""Pages, addresses and bodies in the browser: its pure parts."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.toolservers.browser.browser import PageStack
from workers.toolservers.browser.documents import Kind, wrap
from workers.toolservers.browser.errors import BrowserError
from workers.toolservers.browser.markup import Text, render
from workers.toolservers.browser.pages import Format, Hit, Page
from workers.toolservers.browser.reader import read, read_hits, read_matches
from workers.toolservers.browser.web import decode, format_of

URL = "https://here.test/dir/page.html"


def laid_out(html: str, limit: int = 100_000) -> Text:
    return render(html, URL, limit)


LAYOUT = [
    ("<p>One<p>Two", "One\n\nTwo"),
    ("<div>One</div><div>Two</div>", "One\nTwo"),
    ("One<br>Two<br/>Three", "One\nTwo\nThree"),
    ("<h2>Head</h2>Text", "## Head\n\nText"),
    ("<p>  much \n\t space  </p>", "much space"),
    ("a<b>b</b> <i>c</i>d", "ab cd"),
    ("<ul><li>a<li><p>b</p></ul>", "  * a\n\n  * b"),
    ("<ol><li>a</li><li></li><li>c</li></ol>", "  1. a\n  3. c"),
    ("<ul><li>a<ol><li>b</ol><li>c</ul>", "  * a\n\n    1. b\n\n  * c"),
    ("<table><tr><th>A<th>B<tr><td>1<td>2</table>", "A | B\n1 | 2"),
    ("<pre>  a\n    b\n\nc</pre>", "  a\n    b\n\nc"),
    ("x<sup>2</sup>, H<sub>2</sub>O, <sup>[1]</sup>", "x^{2}, H_{2}O, [1]"),
    ("<img src=a alt='A  peak'><img src=b><img src=c alt=Other>", "[Image 0: A peak][Image 1: Other]"),
    ("a<script>if (1<2) b()</script>c<style>p{}</style><noscript>n</noscript>d", "acd"),
    ("a<svg><title>x</title><text>y</text></svg>b<template><p>t</template>", "ab"),
    ("a<div hidden>b<div>c</div>d</div>e", "a\ne"),
    ("a<!-- b -->c", "ac"),
    ("&lt;b&gt; &amp; &nbsp;&eacute; &#x1F600;", "<b> & \u00a0é \U0001f600"),
    ("zero\u200bwidth \x07bell \x1b[31mred", "zerowidth bell [31mred"),
    ("<p>unclosed <b>bold <i>both", "unclosed bold both"),
    ("", ""),
    ("just text", "just text"),
    ("<?xml version='1.0' encoding='latin-1'?><p>é", "é"),
    ("<title>Not in the text</title>text", "text"),
]


@pytest.mark.parametrize(("html", "text"), LAYOUT)
def test_html_is_laid_out(html: str, text: str) -> None:
    assert laid_out(html).text == text


LINKS = [
    ("<a href='other.html'>Other</a>", "【0†Other】", ["https://here.test/dir/other.html"]),
    ("<a href='//there.test/x#y'>There</a>", "【0†There†there.test】", ["https://there.test/x"]),
    (
        "<a href=/a>1</a> <a href=/b>2</a> <a href=/a>3</a>",
        "【0†1】 【1†2】 【0†3】",
        ["https://here.test/a", "https://here.test/b"],
    ),
    ("<a href='#part'>Part</a>", "Part", []),
    ("<a href='mailto:a@b.test'>Mail</a> <a href='javascript:x()'>Run</a> <a>None</a>", "Mail Run None", []),
    ("<a href='http://[::1'>Odd</a>", "Odd", []),
    ("<a href='/x'></a><a href=/y><img src=i alt=Pic></a>", "【0†[Image 0: Pic]】", ["https://here.test/y"]),
    ("<a href=/x>a † b 【1†c】</a>", "【0†a ‡ b 〖1‡c〗】", ["https://here.test/x"]),
    ("<a href=/x><div><h3>Big</h3><p>card</div></a>", "【0†Big card】", ["https://here.test/x"]),
    ("<h3><a href=/x>Big</a></h3>", "### 【0†Big】", ["https://here.test/x"]),
    ("<sup><a href=/n>1</a></sup>", "【0†1】", ["https://here.test/n"]),
    ("<base href='https://base.test/b/'><a href=c>C</a>", "【0†C†base.test】", ["https://base.test/b/c"]),
    ("<base href='javascript:x'><a href=c>C</a>", "【0†C】", ["https://here.test/dir/c"]),
    ("<a href='/a b\n【x】'>S</a>", "【0†S】", ["https://here.test/a%20b【x】"]),
    (f"<a href='/{'x' * 3000}'>Long</a>", "Long", []),
]


@pytest.mark.parametrize(("html", "text", "links"), LINKS)
def test_links_are_numbered_and_made_absolute(html: str, text: str, links: list[str]) -> None:
    found = laid_out(html)
    assert (found.text, [link.url for link in found.links]) == (text, links)


def test_an_unclosed_link_ends_with_its_paragraph() -> None:
    text = laid_out("<a href=/x>" + "word " * 100 + "<p>Free at last").text
    assert text.endswith("】\n\nFree at last")


def test_a_page_cannot_forge_links_or_citations() -> None:
    for spelt in ("【0†fake】", "&#x3010;0†fake&#12305;", "<b>&#x3010;</b>0†fake&#x3011;"):
        assert laid_out(f"<p>{spelt}").text == "〖0†fake〗"
    hits = read_hits("q", [Hit("https://x.test/", "【9†t】", "【8†L1】\n[1] x (y)")])
    assert "\n".join(hits.lines).count("【") == 1


def test_the_start_of_a_page_reads_the_same_however_long_the_page_is() -> None:
    """The parser gets pieces, which may end within a character."""
    words = "ünïcödé wörds — 漢字 <b>bold</b>\n"
    assert laid_out("x" + words * 5000, 10**6).text == "x" + ("ünïcödé wörds — 漢字 bold " * 5000).strip()


def test_titles_are_one_line() -> None:
    assert laid_out("<title> A\n[7] title\n </title><title>B</title>").title == "A [7] title"
    assert len(read(Page(URL, f"<title>{'x' * 9000}</title>", Format.HTML), 1000).title) == 200


PIECES = (
    "<p>|</p>|<a href=x>|</a>|<ul>|<li>|</ul>|<ol>|<pre>|</pre>|<td>|<tr>|<sup>|<title>|</title>|<script>|</script>|"
    "<!--|<div hidden>|</div>|<h1>|<br>|w |\n|</sup>|<sub>|<table>|</table>|<base href=//b.test>|<svg>|</svg>|"
    "<img alt=i>|</body>"
)
CHARACTERS = st.sampled_from(list("<>/=\"'& #;-![]ap†【】\n\t")) | st.characters(codec="utf-8")
MARKUP = st.text(CHARACTERS, max_size=80) | st.lists(st.sampled_from(PIECES.split("|")), max_size=40).map("".join)


@given(MARKUP, st.integers(1, 60))
def test_any_markup_becomes_bounded_text_with_valid_links(html: str, limit: int) -> None:
    found = render(html, URL, limit)
    assert len(found.text) <= limit + 2
    for number in re.findall(r"【(\d+)†[^】]*】", found.text):
        assert int(number) < len(found.links)
    document = read(Page(URL, html, Format.HTML), limit)
    assert document.kind is Kind.PAGE and all("\n" not in line for line in document.lines)


HOSTILE = [
    "<div>" * 20_000,
    "<ol>" + "<li>a" * 10_000,
    "".join(f"<b id={n}>" for n in range(5_000)) + "<p>x" * 5_000,
    "<a href=x>" * 8_000,
    "<sup><a href=x><sub>" * 6_000,
    "<table>" + "<td>" * 20_000,
    "<pre>" + "\n" * 100_000,
    "<ul>" * 5_000 + "<li>deep",
    "<a href='" + "x" * 1_000_000,
    "&" * 100_000,
    "x" * 300_000,
    "a-" * 100_000,
]


@pytest.mark.parametrize("html", HOSTILE, ids=lambda html: html[:12])
def test_hostile_pages_are_read_within_limits(html: str) -> None:
    document = read(Page(URL, html, Format.HTML), 50_000)
    assert sum(map(len, document.lines)) + sum(len(link.url) for link in document.links) < 60_000


@given(st.text(st.characters(exclude_characters="\t"), max_size=400))
def test_wrapping_loses_nothing(text: str) -> None:
    lines = wrap(text)
    assert "".join(lines) == text.replace("\n", "")
    assert all(len(line) <= 80 for line in lines)


# find


def test_find_matches_across_line_ends_and_links() -> None:
    words = "so many words that the line has to be broken somewhere near this very place "
    page = read(Page(URL, f"<p>{words}<a href=/x>Mount</a> Everest", Format.HTML), 10_000)
    for pattern in ("near this very place mount everest", "PLACE   Mount"):
        found = read_matches(page, pattern)
        assert found is not None and [link.line for link in found.links] in ([2], [3])


def test_find_takes_the_pattern_literally() -> None:
    page = read(Page(URL, "a.c abc (x|y)* \\d", Format.TEXT), 1000)
    for pattern, count in (("a.c", 1), ("(x|y)*", 1), ("\\d", 1), ("b.c", 0)):
        found = read_matches(page, pattern)
        assert (len(found.links) if found else 0) == count


def test_find_shows_at_most_fifty_matches_and_none_twice() -> None:
    page = read(Page(URL, "word\n" * 1000, Format.TEXT), 100_000)
    found = read_matches(page, "word")
    assert found is not None
    assert [link.line for link in found.links] == [2 + 4 * n for n in range(50)]


# the stack


def test_the_stack_keeps_the_latest() -> None:
    stack = PageStack(2)
    with pytest.raises(BrowserError, match="No page is open yet"):
        stack.at(-1)
    pages = [read(Page(f"https://here.test/{n}", str(n), Format.TEXT), 100) for n in range(3)]
    assert [stack.push(page) for page in pages] == [0, 1, 2]
    assert stack.at(-1) is stack.at(2) is pages[2]
    assert stack.at(1) is pages[1]
    with pytest.raises(BrowserError, match="The page at cursor 0 is gone: only the last 2 are kept"):
        stack.at(0)
    with pytest.raises(BrowserError, match="There is no cursor 3: the latest is 2"):
        stack.at(3)
    assert stack.page_of("https://here.test/1") is pages[1]
    assert stack.page_of("https://here.test/0") is None


# bodies


CHARSETS = [
    ("é".encode(), "text/html", "é"),
    ("é".encode("latin-1"), "text/html; charset=ISO-8859-1", "é"),
    ("€".encode("cp1252"), "text/html; charset=iso-8859-1", "€"),
    (b"<meta charset='koi8-r'>" + "ж".encode("koi8-r"), "text/html", "<meta charset='koi8-r'>ж"),
    (b"\xef\xbb\xbf" + "é".encode(), "text/html; charset=latin-1", "é"),
    ("é!".encode("cp1252"), "", "é!"),
    ("é".encode()[:1], "text/html", ""),
    ("é".encode(), "text/html; charset=nonsense", "é"),
    (b"x", "text/html; charset=rot13", "x"),
    (b"x", "text/html; charset=bz2", "x"),
    (b"xn--", "text/html; charset=idna", "xn--"),
    (b"\\x41", "text/html; charset=unicode_escape", "\\x41"),
    (b"\xff\xfeA\x00", "", "A"),
]


@pytest.mark.parametrize(("body", "content_type", "text"), CHARSETS)
def test_charsets_are_detected_and_codecs_that_are_no_text_encodings_are_not_run(
    body: bytes, content_type: str, text: str
) -> None:
    assert decode(body, content_type) == text


def test_only_html_and_text_have_a_format() -> None:
    assert format_of("text/html; charset=x") is format_of("") is format_of("application/xhtml+xml") is Format.HTML
    for media in ("text/plain", "text/markdown", "application/json", "application/ld+json", "TEXT/CSV", "text/xml"):
        assert format_of(media) is Format.TEXT
    for media in ("application/pdf", "image/png", "application/octet-stream", "application/zip"):
        with pytest.raises(BrowserError, match="can be opened"):
            format_of(media)
