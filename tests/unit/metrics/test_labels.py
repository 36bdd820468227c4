"""Labels stay few, however many projects there are."""

from __future__ import annotations

from app.metrics.labels import Bounded, top


def test_the_first_values_keep_their_names_and_later_ones_are_other() -> None:
    labels = Bounded(2)
    assert [labels.label(each) for each in ("a", "b", "c", "a", "c")] == ["a", "b", "other", "a", "other"]


def test_the_largest_amounts_have_names_and_the_rest_is_one_sum() -> None:
    amounts = {"a": 1, "b": 5, "c": 2, "d": 3}
    assert top(amounts, 2) == {"b": 5, "d": 3, "other": 3}
    assert sum(top(amounts, 2).values()) == sum(amounts.values())
    assert top(amounts, 4) == amounts
