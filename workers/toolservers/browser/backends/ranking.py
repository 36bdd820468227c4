"""Which text fits a query best: Okapi BM25, words compared without regard to case."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping

_WORD = re.compile(r"\w+")
_SATURATION = 1.5
_LENGTH_WEIGHT = 0.75
_SUMMARY = 240
"""Characters of a summary."""


def words_of(text: str) -> Counter[str]:
    """How often each word stands in `text`."""
    return Counter(word.casefold() for word in _WORD.findall(text))


def rank(query: str, texts: Mapping[str, Counter[str]]) -> list[str]:
    """The keys of the texts that have any word of `query`, the best first."""
    wanted = list(words_of(query))
    usual = sum(words.total() for words in texts.values()) / max(1, len(texts)) or 1.0
    rarity = {word: _rarity(sum(word in words for words in texts.values()), len(texts)) for word in wanted}
    scores = {
        key: sum(rarity[word] * _weight(words[word], words.total() / usual) for word in wanted)
        for key, words in texts.items()
    }
    return sorted((key for key, score in scores.items() if score > 0), key=lambda key: -scores[key])


def _rarity(having: int, all_of_them: int) -> float:
    return math.log(1 + (all_of_them - having + 0.5) / (having + 0.5))


def _weight(count: int, relative_length: float) -> float:
    return count * (_SATURATION + 1) / (count + _SATURATION * (1 - _LENGTH_WEIGHT + _LENGTH_WEIGHT * relative_length))


def summary(query: str, text: str) -> str:
    """A piece of `text` around the first place that has the rarest word of `query` found in it."""
    places = [(match.group().casefold(), match.start()) for match in _WORD.finditer(text)]
    counts = Counter(word for word, _ in places)
    found = sorted((counts[word], word) for word in words_of(query) if counts[word])
    if not found:
        return text[:_SUMMARY]
    middle = next(place for word, place in places if word == found[0][1])
    start = max(0, middle - _SUMMARY // 2)
    return ("…" if start else "") + text[start : start + _SUMMARY]
