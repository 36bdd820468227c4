"""Seals: closed here, opened here, by nobody else and as nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.store.sealing import KEY_BYTES, BadSeal, Seal, Sealed

SEAL = Seal(bytes(range(KEY_BYTES)))


@given(st.text())
def test_what_was_closed_opens_again(text: str) -> None:
    token = SEAL.close(Sealed.REASONING, text)
    assert token.isascii()
    assert SEAL.open(Sealed.REASONING, token) == text


def test_the_same_text_has_the_same_seal_and_does_not_show() -> None:
    token = SEAL.close(Sealed.REASONING, "a secret thought")
    assert token == SEAL.close(Sealed.REASONING, "a secret thought")
    assert "secret" not in token


@given(st.text(alphabet=st.characters(min_codepoint=33, max_codepoint=126)))
def test_anything_else_is_a_bad_seal(token: str) -> None:
    for tried in (token, "lh1_" + token):
        with pytest.raises(BadSeal):
            SEAL.open(Sealed.REASONING, tried)


def test_another_key_another_kind_and_another_byte_do_not_open_it() -> None:
    token = SEAL.close(Sealed.REASONING, "x" * 20)
    with pytest.raises(BadSeal):
        Seal(bytes(KEY_BYTES - 1) + b"1").open(Sealed.REASONING, token)
    with pytest.raises(BadSeal):
        SEAL.open(Sealed.COMPACTION, token)
    changed = token[:10] + ("A" if token[10] != "A" else "B") + token[11:]
    with pytest.raises(BadSeal):
        SEAL.open(Sealed.REASONING, changed)
