"""Which worker takes a response: the one that has read the beginning of its prompt, or the emptiest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b

from app.scheduling.loads import Load

SURPLUS = 0.5
"""How much more of its slots may be taken in the worker that has read a prefix than in the emptiest one.

A response that moves is computed from its first token. One that stays has a slot, and shares steps with more others.
With less, chance alone makes agents move, and what they read again makes more of them move
(docs/internals/performance.md)."""
MAX_DRAWN = 2**14


@dataclass(frozen=True, slots=True)
class Candidate:
    """A response that needs a worker."""

    id: str
    nodes: Sequence[str | None] = ()
    """The workers that have read the beginning of its prompt, the best first."""
    affinity: int | None = None
    """A number that it has in common with those whose prompts begin alike (64 bits, signed)."""


def places(candidates: Sequence[Candidate], loads: Sequence[Load], room: Callable[[Load], int]) -> dict[str, str]:
    """The node for each candidate, by its id, as far as the workers have `room`: the first ones get it.

    First each candidate takes its preferred worker, unless that has SURPLUS more of its slots taken than the emptiest
    one has. Then the others fill the emptiest ones.
    """
    left = {load.node: free for load in loads if (free := room(load)) > 0}
    slots = {load.node: load.slots for load in loads if load.node in left}
    has = {load.node: load.has for load in loads if load.node in left}
    if not left:
        return {}
    found: dict[str, str] = {}

    def give(candidate: Candidate, node: str) -> None:
        found[candidate.id] = node
        left[node] -= 1
        has[node] += 1

    most = min(has[node] / slots[node] for node in left) + SURPLUS
    for candidate in candidates:
        node = preferred(candidate, slots)
        if node is not None and left[node] > 0 and has[node] <= slots[node] * most:
            give(candidate, node)
    for candidate in candidates:
        if candidate.id not in found and (open_ := [node for node in left if left[node] > 0]):
            give(candidate, min(open_, key=lambda node: ((has[node] + 1) / slots[node], node)))
    return {candidate.id: found[candidate.id] for candidate in candidates if candidate.id in found}


def preferred(candidate: Candidate, nodes: Collection[str]) -> str | None:
    """The one of these nodes that has read the beginning of its prompt.

    If none is known to, it is that which its affinity falls to: each worker draws a number for each affinity, and the
    lowest wins. So nothing is stored, and if a worker comes or goes, only its own move.
    """
    known = next((node for node in candidate.nodes if node in nodes), None)
    affinity = candidate.affinity
    if known is not None or affinity is None:
        return known
    return min(nodes, key=lambda node: _drawn(node, affinity), default=None)


@lru_cache(MAX_DRAWN)
def _drawn(node: str, affinity: int) -> bytes:
    return blake2b(node.encode(), digest_size=8, salt=affinity.to_bytes(8, signed=True)).digest()


def with_placed(loads: Sequence[Load], placed: Mapping[str, str]) -> list[Load]:
    """The loads once the workers have these in foreground places as well."""
    more = Counter(placed.values())
    return [replace(load, foreground=load.foreground + more[load.node]) for load in loads]
