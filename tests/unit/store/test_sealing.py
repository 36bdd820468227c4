"""A sealer unseals its own tokens, as the kind they were sealed as, and no others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.store.sealing import KEY_BYTES, BadSeal, SealedKind, Sealer

SEALER = Sealer(bytes(range(KEY_BYTES)))


@given(st.text())
def test_a_sealed_text_is_unsealed_as_it_was(text: str) -> None:
    token = SEALER.seal(SealedKind.REASONING, text)
    assert token.isascii()
    assert SEALER.unseal(SealedKind.REASONING, token) == text


def test_the_same_text_gives_the_same_token_which_does_not_show_it() -> None:
    token = SEALER.seal(SealedKind.REASONING, "a secret thought")
    assert token == SEALER.seal(SealedKind.REASONING, "a secret thought")
    assert "secret" not in token


@given(st.text(alphabet=st.characters(min_codepoint=33, max_codepoint=126)))
def test_any_other_token_is_a_bad_seal(token: str) -> None:
    for tried in (token, "lh1_" + token):
        with pytest.raises(BadSeal):
            SEALER.unseal(SealedKind.REASONING, tried)


def test_another_key_another_kind_and_another_byte_do_not_unseal_a_token() -> None:
    token = SEALER.seal(SealedKind.REASONING, "x" * 20)
    with pytest.raises(BadSeal):
        Sealer(bytes(KEY_BYTES - 1) + b"1").unseal(SealedKind.REASONING, token)
    with pytest.raises(BadSeal):
        SEALER.unseal(SealedKind.COMPACTION, token)
    changed = token[:10] + ("A" if token[10] != "A" else "B") + token[11:]
    with pytest.raises(BadSeal):
        SEALER.unseal(SealedKind.REASONING, changed)


def test_a_token_names_its_key_and_every_key_that_is_known_unseals() -> None:
    old, new = bytes(range(KEY_BYTES)), bytes(KEY_BYTES - 1) + b"1"
    rotated = Sealer(new, 2, {1: old})
    before, after = SEALER.seal(SealedKind.REASONING, "x"), rotated.seal(SealedKind.REASONING, "x")
    assert (before[:4], after[:4]) == ("lh1_", "lh2_")
    assert [rotated.unseal(SealedKind.REASONING, token) for token in (before, after)] == ["x", "x"]
    for token in (
        after,
        after.replace("lh2_", "lh1_"),
        after.replace("lh2_", "lh9999_"),
        after.replace("lh2_", "lh02_"),
    ):
        with pytest.raises(BadSeal):
            SEALER.unseal(SealedKind.REASONING, token)
    with pytest.raises(BadSeal):
        rotated.unseal(SealedKind.REASONING, after.replace("lh2_", "lh1_"))


def test_a_token_is_bound_to_its_project() -> None:
    token = SEALER.of("proj_a").seal(SealedKind.REASONING, "a thought")
    assert SEALER.of("proj_a").unseal(SealedKind.REASONING, token) == "a thought"
    for other in (SEALER, SEALER.of("default"), SEALER.of("proj_b"), SEALER.of("")):
        with pytest.raises(BadSeal):
            other.unseal(SealedKind.REASONING, token)


def test_what_was_sealed_before_there_were_projects_is_readable_in_the_default_project_alone() -> None:
    token = SEALER.seal(SealedKind.REASONING, "a thought")
    assert SEALER.of("default").unseal(SealedKind.REASONING, token) == "a thought"
    with pytest.raises(BadSeal):
        SEALER.of("proj_a").unseal(SealedKind.REASONING, token)
