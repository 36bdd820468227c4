"""Stop strings in decoded text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from workers.formats.stops import StopStrings


def said(texts: list[str], stops: list[str], *, keep: bool = False, exempt: int = 0) -> tuple[str, bool]:
    made = StopStrings(stops, keep=keep)
    text = "".join(made.feed(piece, exempt=place < exempt) for place, piece in enumerate(texts))
    return text + ("" if made.found else made.flush()), made.found


def test_the_stop_string_is_kept_on_request() -> None:
    assert said(["one t", "wo three"], ["two"], keep=True) == ("one two", True)


def test_a_stop_string_counts_only_after_the_exempt_tokens() -> None:
    assert said(["END", "E", "ND", "x", "END"], ["END"], exempt=2) == ("ENDENDx", True)
    assert said(["a", "EN", "D"], ["END"], exempt=2) == ("aEND", False)


def test_only_text_that_may_become_a_stop_string_is_held_back() -> None:
    made = StopStrings(["two"])
    assert [made.feed(text) for text in ("one", " t", "w", "x", "tt")] == ["one", " ", "", "twx", "t"]


@given(
    text=st.text("ab\n👋", max_size=30),
    stops=st.lists(st.text("ab\n👋", min_size=1, max_size=4), min_size=1, max_size=3),
    data=st.data(),
)
def test_the_text_ends_before_the_first_stop_string_however_it_is_cut_into_tokens(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    texts = [text[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    expected = text[: min(ends)[1]] if ends else text
    assert said(texts, stops) == (expected, bool(ends))
