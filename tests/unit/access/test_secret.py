"""The form of an API key."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.access import secret
from app.access.secret import hash_of, is_well_formed, new_secret, shown


def test_a_new_key_is_well_formed_and_never_the_same() -> None:
    made = {new_secret() for _ in range(1000)}
    assert len(made) == 1000
    assert all(is_well_formed(each) and len(each) == secret.LENGTH and each.startswith("sk-lh-") for each in made)


@given(st.integers(0, secret.LENGTH - 1), st.sampled_from("0aZz-é "))
def test_a_key_with_one_wrong_character_is_refused_without_a_query(position: int, char: str) -> None:
    right = new_secret()
    wrong = right[:position] + char + right[position + 1 :]
    assert is_well_formed(wrong) == (wrong == right)


@given(st.text(max_size=80))
def test_no_other_text_is_well_formed(text: str) -> None:
    assert not is_well_formed(text)


def test_what_is_shown_tells_keys_apart_and_hides_their_middle() -> None:
    key = new_secret()
    assert shown(key) == f"{key[:10]}...{key[-4:]}"
    assert len(hash_of(key)) == 32
