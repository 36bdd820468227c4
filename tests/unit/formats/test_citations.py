"""The browser's marks in a text become url_citation annotations, however the text is divided."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocol.events.deltas import Annotation, CallStart, Delta, Reasoning, Text
from workers.formats.citations import Citations, sources_of

PAGE = {"url": "https://x.test/a", "title": "A", "lines": [0, 9]}
RESULTS = {
    "url": "",
    "title": "query",
    "results": [
        {"url": "https://x.test/b", "title": "B", "lines": [4, 6]},
        {"url": "https://x.test/c", "title": "C", "lines": [8, 8]},
    ],
}
SOURCES: dict[str, Any] = {"0": RESULTS, "1": PAGE, "12": {"url": "https://x.test/d", "title": ""}}


def cited(text: str, *, sources: Any = SOURCES) -> list[tuple[str, str, str]]:
    """The citations: the mark by its indexes, the URL and the title."""
    said = Citations(sources).feed([Text(text)])
    assert said[0] == Text(text)
    found = [delta.annotation for delta in said if isinstance(delta, Annotation)]
    assert all(annotation["type"] == "url_citation" for annotation in found)
    return [(text[each["start_index"] : each["end_index"]], each["url"], each["title"]) for each in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It is so【1†L3】.", [("【1†L3】", "https://x.test/a", "A")]),
        (
            "👋 It is【1†L3-L5】 so【12†L1-7】.",
            [("【1†L3-L5】", PAGE["url"], "A"), ("【12†L1-7】", "https://x.test/d", "https://x.test/d")],
        ),
        (
            "Found【0†L5】 and【0†L8-L9】",
            [("【0†L5】", "https://x.test/b", "B"), ("【0†L8-L9】", "https://x.test/c", "C")],
        ),
        ("Nothing【0†L7】 there【9†L1】, and no【1†L】 mark【†L1】【1†x】", []),
        ("【【1†L3】】", [("【1†L3】", "https://x.test/a", "A")]),
        ("【" + "1" * 50 + "†L3】", []),
        ("", []),
    ],
)
def test_a_mark_cites_the_page_that_its_cursor_shows(text: str, expected: Any) -> None:
    assert cited(text) == expected


def test_without_sources_nothing_is_cited() -> None:
    assert cited("It is so【1†L3】.", sources={}) == []


def test_indexes_start_at_zero_in_each_message() -> None:
    deltas: list[Delta] = [
        Text("abc", phase="commentary"),
        Text("【1†L3】", phase="final_answer"),
        Reasoning("【1†L3】"),
        Text("x【1†L3】"),
        CallStart("f"),
        Text("†L3】"),
    ]
    said = Citations(SOURCES).feed(deltas)
    assert [delta.annotation["start_index"] for delta in said if isinstance(delta, Annotation)] == [0, 1]


@given(st.lists(st.sampled_from(["a", "【", "1", "†", "L", "3", "】", "【1†L3】", "-", "👋"]), max_size=12), st.data())
def test_an_annotation_follows_the_delta_that_ends_its_mark_however_text_is_divided(
    pieces: list[str], data: Any
) -> None:
    text = "".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    parts = [text[first:last] for first, last in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    citations, seen, found = Citations(SOURCES), 0, []
    for part in filter(None, parts):
        said = citations.feed([Text(part)])
        seen += len(part)
        for delta in said[1:]:
            assert isinstance(delta, Annotation)
            assert seen - len(part) < delta.annotation["end_index"] <= seen
            found.append(delta.annotation)
    whole = Citations(SOURCES).feed([Text(text)] if text else [])
    assert found == [delta.annotation for delta in whole if isinstance(delta, Annotation)]


def test_sources_come_from_the_items_calls_and_the_newest_wins() -> None:
    items: list[dict[str, Any]] = [
        {"type": "message"},
        {"type": "web_search_call", "call": {"name": "browser.search", "sources": {"0": RESULTS, "1": RESULTS}}},
        {"type": "web_search_call", "call": {"name": "browser.open", "sources": {"1": PAGE}}},
        {"type": "code_interpreter_call", "call": {"name": "python"}},
        {"type": "web_search_call", "call": None},
    ]
    assert sources_of(items) == {"0": RESULTS, "1": PAGE}
