"""How the workers of a queue share what is queued, so that all of them become equally full.

Whoever asks Redis first would get everything: twelve responses went to one of two idle workers. So a worker tells Redis
how many responses it has when it asks, reads what others told, and takes its share of what is queued:

    its share is one or more  it takes them
    nothing is queued         it waits for one message
    its share is nothing      others are emptier: it looks again a little later, and then takes 1, 2, 4, ... messages if
                              those others did not come

The notes in Redis are hints, as everything in Redis: without them the work is shared badly, and none is lost. A worker
that is full does not ask, so its note vanishes; so does that of a worker that died. A worker that is alone takes what
it can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

KEPT_SECONDS = 3
"""How long a note holds. A worker that has room renews it with every question, so at least once a second."""
ALONE_SECONDS = 0.5
"""How often a worker that saw no other one looks again."""
LOOK_SECONDS = 0.02
"""How soon a worker looks again if emptier workers are to take what is queued; longer where there are many workers."""
WAIT_SECONDS = 0.1
"""How long a worker waits for a message before it renews its note; longer where there are many workers."""
SECONDS_PER_WORKER = 0.001
"""Bounds what all workers of a queue ask of Redis together: some thousand questions a second."""
MAX_DOUBLINGS = 10
SAMPLE = 16
"""How many other workers a worker looks at. If there are more, those are drawn by lot."""

_SCRIPT = f"""
local now = tonumber(redis.call('TIME')[1])
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ' ' .. ARGV[3] .. ' ' .. now)
redis.call('EXPIRE', KEYS[1], {KEPT_SECONDS})
local queued = 0
for i = 2, #KEYS do queued = queued + redis.call('LLEN', KEYS[i]) end
return {{queued, now, redis.call('HLEN', KEYS[1]), redis.call('HRANDFIELD', KEYS[1], {SAMPLE + 1}, 'WITHVALUES')}}
"""


@dataclass(frozen=True, slots=True)
class Load:
    """What a worker has, and how many it runs at once."""

    responses: int
    slots: int

    @property
    def level(self) -> float:
        return self.responses / self.slots


@dataclass(frozen=True, slots=True)
class Question:
    """What to ask of Redis now: up to `count` messages, for which it may wait for `seconds`.

    If `count` is 0, nothing, for `seconds`.
    """

    count: int
    seconds: float | None = None
    """None: as long as kombu waits."""


def share(queued: int, mine: Load, others: Sequence[Load]) -> int:
    """How many of the queued responses this worker takes so that those that have less are equally full at the end."""
    loads = [mine, *others]
    while True:
        level = (queued + sum(load.responses for load in loads)) / sum(load.slots for load in loads)
        if mine.level > level:
            return 0
        fuller = [load for load in loads if load.level > level]
        if not fuller:
            return -int(-level * mine.slots // 1) - mine.responses
        loads = [load for load in loads if load.level <= level]


class Sharing:
    """One worker's part. `load` is what it has now."""

    def __init__(self, worker: str, load: Callable[[], Load], clock: Callable[[], float] = monotonic) -> None:
        self._worker = worker
        self._load = load
        self._clock = clock
        self._looked = float("-inf")
        self._workers = 1
        self._left = 0
        """Consecutive looks that found that emptier workers had taken nothing."""
        self._expected = 0
        """Messages that the next look finds if the emptier workers take nothing."""

    def question(self, client: Any, lists: Sequence[str], most: int) -> Question:
        """What to ask of these lists, for up to `most` messages. Raises what `client` (redis-py's) raises."""
        now = self._clock()
        if self._workers == 1 and now < self._looked + ALONE_SECONDS:
            return Question(most)
        self._looked = now
        mine = self._load()
        queued, others = self._look(client, lists, mine)
        if not others:
            return Question(most)
        count = min(share(max(queued, 1), mine, others), most)
        self._left = 0 if count or not queued or queued < self._expected else self._left + 1
        if self._left and self._left % 2 == 0:  # they had time
            count = min(1 << min(self._left // 2 - 1, MAX_DOUBLINGS), most)
        self._expected = queued - count
        rarer = self._workers * SECONDS_PER_WORKER
        return Question(count, rarer + (WAIT_SECONDS if count else LOOK_SECONDS))

    def _look(self, client: Any, lists: Sequence[str], mine: Load) -> tuple[int, list[Load]]:
        """Leaves a note; returns how much is queued, and the loads of others.

        If not all of them were drawn, it is the part of what is queued that those drawn and this worker are to share.
        """
        notes = notes_of(lists)
        given = (self._worker, mine.responses, mine.slots)
        queued, now, workers, found = client.eval(_SCRIPT, 1 + len(lists), notes, *lists, *given)
        others, gone = [], []
        for name, note in zip(found[::2], found[1::2], strict=True):
            responses, slots, noted = map(int, note.split())
            if noted < now - KEPT_SECONDS:
                gone.append(name)
            elif name.decode() != self._worker:
                others.append(Load(responses, slots))
        if gone:
            client.hdel(notes, *gone)
        self._workers = max(workers - len(gone), 1)
        others = others[:SAMPLE]
        return -(-queued * (len(others) + 1) // self._workers), others


def notes_of(lists: Sequence[str]) -> str:
    """The key of the notes of all workers that take from these lists."""
    return "longhaul.loads:" + min(lists)
