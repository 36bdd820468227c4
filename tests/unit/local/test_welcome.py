"""What `longhaul up` prints once it is ready."""

from __future__ import annotations

from app.local.ports import url_of
from app.local.welcome import welcome

ADDRESSES = url_of("0.0.0.0", 8000), url_of("::1", 5555)


def test_without_keys_no_example_sends_one() -> None:
    text = welcome(*ADDRESSES, "demo", "user x")
    assert "Authorization" not in text and 'api_key="unused"' in text and "API key" not in text


def test_with_keys_it_says_where_the_first_one_lies_and_each_example_sends_one() -> None:
    text = welcome(*ADDRESSES, "demo", "user x", "/home/me/.longhaul/admin-key")
    assert "The first admin key: /home/me/.longhaul/admin-key." in text
    assert "keys create --project default" in text
    assert text.count('-H "Authorization: Bearer $KEY"') == text.count("curl -s")
    assert 'api_key=os.environ["KEY"]' in text and "import os, time" in text


def test_addresses_are_those_by_which_this_machine_reaches_the_programs() -> None:
    assert ADDRESSES == ("http://127.0.0.1:8000", "http://[::1]:5555")
    assert url_of("::", 1) == "http://[::1]:1"
