"""The cost of a grammar at each token: some walks through it, on plain text and on any.

A grammar may be cheap to compile and dear to follow, and the engine computes a mask for each token while all its
requests wait.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

from workers.engine.mask_budget import BUDGET_SECONDS, mean_after

PLAIN_STEPS = 96
"""Tokens of one walk: ambiguity costs more with each token."""
STEPS, WALKS = 24, 3
"""Walks in which each first byte is as likely as another, so that rare alternatives are met too."""
_TRIES = 8


class Walker:
    """`xgrammar` is the module; `tokens` its TokenizerInfo."""

    def __init__(self, xgrammar: Any, tokens: Any) -> None:
        self._xgrammar = xgrammar
        self._size: int = tokens.vocab_size
        texts: Sequence[bytes] = tokens.decoded_vocab
        by_byte: dict[int, list[int]] = {}
        for token, text in enumerate(texts):
            if text and token not in tokens.stop_token_ids:
                by_byte.setdefault(text[0], []).append(token)
        self._any = list(by_byte.values())
        self._plain = [[token for token in group if _is_plain(texts[token])] for group in self._any]

    def cost(self, compiled: Any, plain_steps: int = PLAIN_STEPS) -> float:
        """CPU seconds for a token at the dearest place of the walks. Beyond BUDGET_SECONDS it walks no further."""
        chance, dearest = random.Random(0), 0.0
        for steps, groups in ((plain_steps, self._plain), *([(STEPS, self._any)] * WALKS)):
            dearest = max(dearest, self._cost(compiled, steps, groups, chance))
            if dearest > BUDGET_SECONDS:
                break
        return dearest

    def _cost(self, compiled: Any, steps: int, groups: list[list[int]], chance: random.Random) -> float:
        matcher = self._xgrammar.GrammarMatcher(compiled)
        mask = self._xgrammar.allocate_token_bitmask(1, self._size)
        mean = dearest = 0.0
        for _ in range(steps):
            began = time.process_time()
            matcher.fill_next_token_bitmask(mask)
            spent = time.process_time() - began
            [words] = mask.tolist()
            token = _chosen(groups, words, chance) or _chosen(self._any, words, chance) or _first(words)
            began = time.process_time()
            if token is None or not matcher.accept_token(token) or matcher.is_terminated():
                matcher.reset()
            mean = mean_after(mean, spent + time.process_time() - began)
            dearest = max(dearest, mean)
            if dearest > BUDGET_SECONDS:
                break
        return dearest


def _is_plain(text: bytes) -> bool:
    return text.isascii() and text.replace(b" ", b"a").isalpha()


def _chosen(groups: list[list[int]], words: list[int], chance: random.Random) -> int | None:
    """An allowed token of any group; None if none is found soon."""
    for group in chance.sample(groups, len(groups)):
        for token in chance.sample(group, min(_TRIES, len(group))):
            if words[token // 32] >> token % 32 & 1:
                return token
    return None


def _first(words: list[int]) -> int | None:
    return next((32 * place + (word & -word).bit_length() - 1 for place, word in enumerate(words) if word), None)
