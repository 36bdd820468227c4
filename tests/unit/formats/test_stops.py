"""Stop strings in decoded text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from workers.formats.stops import Piece, StopStrings, Token, TokenKind


def pieces(texts: list[str], kind: TokenKind = TokenKind.TEXT) -> list[Piece]:
    return [Piece(text, Token(place, kind, text)) for place, text in enumerate(texts)]


def said(texts: list[str], stops: list[str], *, keep: bool = False, exempt: int = 0) -> tuple[str, bool]:
    made = StopStrings(stops, keep=keep)
    text = ""
    for place, piece in enumerate(pieces(texts)):
        text += "".join(out.text for out in made.feed(piece, exempt=place < exempt))
        if made.found:
            return text, True
    return text + "".join(out.text for out in made.flush()), False


def test_the_stop_string_is_kept_on_request() -> None:
    assert said(["one t", "wo three"], ["two"], keep=True) == ("one two", True)


def test_a_stop_string_counts_only_after_the_exempt_tokens() -> None:
    assert said(["END", "E", "ND", "x", "END"], ["END"], exempt=2) == ("ENDENDx", True)
    assert said(["a", "EN", "D"], ["END"], exempt=2) == ("aEND", False)


def test_only_text_that_may_become_a_stop_string_is_held_back() -> None:
    made = StopStrings(["two"])
    out = [["".join(piece.text for piece in made.feed(piece))] for piece in pieces(["one", " t", "w", "x", "tt"])]
    assert out == [["one"], [" "], [""], ["twx"], ["t"]]


def test_a_token_comes_out_once_with_the_first_piece_of_its_text() -> None:
    made = StopStrings(["two"])
    out = [piece for fed in pieces(["at", "", "x"]) for piece in made.feed(fed)] + made.flush()
    assert "".join(piece.text for piece in out) == "atx"
    assert [piece.token.id for piece in out if piece.token] == [0, 1, 2]


def test_a_marker_is_never_divided() -> None:
    made = StopStrings([">x"])
    assert made.feed(Piece("</think>", Token(1, TokenKind.MARKER, "</think>"))) == []
    assert [piece.text for piece in made.feed(Piece("y", Token(2, TokenKind.TEXT, "y")))] == ["</think>", "y"]


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
