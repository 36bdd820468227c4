"""What a caller asks of the browser's searches: which pages it may find, and how much it shows."""

from __future__ import annotations

from typing import Any

import pytest

from config.server_kind import SEARCH_META
from workers.toolservers.browser.errors import BrowserError
from workers.toolservers.browser.pages import SearchOptions, options_of


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("https://a.example/x", True),
        ("https://www.A.example:8443/x", True),
        ("https://a.example./x", True),
        ("https://bad.a.example/x", False),
        ("https://deep.bad.a.example/x", False),
        ("https://aa.example/x", False),
        ("https://a.example.org/x", False),
        ("https://a.example@b.example/", False),
        ("https://[", False),
    ],
)
def test_a_domain_stands_for_its_subdomains_and_a_blocked_one_counts_more(url: str, allowed: bool) -> None:
    options = SearchOptions(allowed_domains=("a.example",), blocked_domains=("bad.a.example",))
    assert options.allow(url) is allowed


def test_without_options_every_page_may_be_found() -> None:
    assert options_of(None) == options_of({"longhaul/project": "x"}) == SearchOptions()
    assert SearchOptions().allow("https://a.example/")


def test_a_context_size_changes_what_is_shown_at_once() -> None:
    sizes = [SearchOptions(context_size=size).bytes_shown(4096) for size in ("low", "medium", "high")]
    assert sizes == [2048, 4096, 8192]


@pytest.mark.parametrize("meta", [{"context_size": "huge"}, {"allowed_domains": "a.example"}, {"safe": True}])
def test_options_that_the_browser_does_not_know_fail_the_call(meta: Any) -> None:
    with pytest.raises(BrowserError, match="does not know"):
        options_of({SEARCH_META: meta})
