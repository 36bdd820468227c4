"""Ranks texts by a query, with Okapi BM25; case does not matter."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping

_WORD = re.compile(r"\w+")
_SATURATION = 1.5
_LENGTH_WEIGHT = 0.75
_SUMMARY_CHARS = 240


def words_of(text: str) -> Counter[str]:
    """How often each word occurs in `text`."""
    return Counter(word.casefold() for word in _WORD.findall(text))


def rank(query: str, texts: Mapping[str, Counter[str]]) -> list[str]:
    """The keys of the texts that have a word of `query`, best first."""
    wanted = list(words_of(query))
    mean_length = sum(words.total() for words in texts.values()) / max(1, len(texts)) or 1.0
    rarity = {word: _rarity(sum(word in words for words in texts.values()), len(texts)) for word in wanted}
    scores = {
        key: sum(rarity[word] * _weight(words[word], words.total() / mean_length) for word in wanted)
        for key, words in texts.items()
    }
    return sorted((key for key, score in scores.items() if score > 0), key=lambda key: -scores[key])


def _rarity(matching: int, total: int) -> float:
    return math.log(1 + (total - matching + 0.5) / (matching + 0.5))


def _weight(count: int, relative_length: float) -> float:
    return count * (_SATURATION + 1) / (count + _SATURATION * (1 - _LENGTH_WEIGHT + _LENGTH_WEIGHT * relative_length))


def summary(query: str, text: str) -> str:
    """A piece of `text` around the first occurrence of the query's rarest word in it."""
    occurrences = [(match.group().casefold(), match.start()) for match in _WORD.finditer(text)]
    counts = Counter(word for word, _ in occurrences)
    found = sorted((counts[word], word) for word in words_of(query) if counts[word])
    if not found:
        return text[:_SUMMARY_CHARS]
    middle = next(position for word, position in occurrences if word == found[0][1])
    start = max(0, middle - _SUMMARY_CHARS // 2)
    return ("…" if start else "") + text[start : start + _SUMMARY_CHARS]
