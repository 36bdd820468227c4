"""The name of a file at a URL."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.fetching.fetched import Fetched
from app.files.downloads import MAX_NAME_CHARS, name_of

LETTERS = st.sampled_from(list("filename*=\"'%\\;0123utf-8 ?()/\x00\x7f\u2028ö")) | st.characters(codec="latin-1")


def named(disposition: str = "", url: str = "http://host.example/") -> str:
    return name_of(Fetched(url, {"content-disposition": disposition}, b""))


@pytest.mark.parametrize(
    ("disposition", "url", "name"),
    [
        ("", "http://host.example/a/paper.pdf?x=1", "paper.pdf"),
        ("", "http://host.example/a%2Fb%00c", "bc"),
        ("", "http://host.example/a%2F..%2F", ".."),
        ("", "http://host.example", "host.example"),
        ("inline", "http://host.example/a.txt", "a.txt"),
        ("attachment; filename=b.txt", "http://host.example/a.txt", "b.txt"),
        ('attachment; filename="C:\\\\folder\\\\b c.txt"', "http://host.example/a.txt", "b c.txt"),
        ("attachment; filename*=UTF-8''%C3%B6.txt", "http://host.example/a.txt", "ö.txt"),
        ("attachment; filename*=\x00''b", "http://host.example/a.txt", "a.txt"),
        ('attachment; filename=""', "http://host.example/a.txt", "a.txt"),
    ],
)
def test_the_server_s_name_goes_before_that_in_the_url(disposition: str, url: str, name: str) -> None:
    assert named(disposition, url) == name


@given(st.sampled_from(["", "a; filename", "a; filename*", "a; filename*0*"]), st.text(LETTERS, max_size=60))
def test_any_header_gives_a_name_that_can_be_shown(beginning: str, rest: str) -> None:
    name = named(beginning + rest)
    assert 0 < len(name) <= MAX_NAME_CHARS and name.isprintable() and "/" not in name
