"""Tries everything that becomes a grammar before the engine gets it, in processes that may die of it
(`grammar_compiler.py`). Nothing else in the worker's process reads a caller's schema or grammar.

The engine compiles a grammar again, in its own process, where nothing bounds it. What the probe compiles within its
limits, the engine compiles within them, too (docs/internals/decisions/grammars.md).
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cachetools import LRUCache

from app.bounds import Bound
from app.heavy import PROJECT
from app.killable.jobs import AT_A_LIMIT, TOO_LATE, KillableProgram, ProgramClosed, ProgramFailed
from config.process import code_running
from workers.engine import grammar_compiler
from workers.engine.base import EngineDead, EngineError, InvalidSampling
from workers.engine.grammar_compiler import CPU_SECONDS, MEMORY_BYTES, WALL_SECONDS
from workers.engine.mask_budget import Cost

log = logging.getLogger("longhaul.engine")

PLACES = 2
"""Jobs at once. A project holds one of them at most, so another one's job finds a place or the next turn."""
MAX_CHARS = 2**20
"""Characters of one source."""
ATTEMPTS = 2
"""How often a job is tried whose process is ended from outside, as by the kernel of a machine without memory."""
_CODE = code_running(grammar_compiler.__name__)
_OVERHEAD_BYTES = 512
"""Bytes that a verdict holds besides its texts."""


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a grammar: a caller's text, or a schema or tag that was made of it."""

    kind: Literal["schema", "loose", "lark", "regex", "tag"]
    """`loose`: a schema of which only that counts which can be held. `lark` and `regex` define the input of a custom
    tool, `tag` is a structural tag (xgrammar's JSON)."""
    text: str
    field: str
    """The source's field of the request, for messages."""

    @property
    def key(self) -> bytes:
        return hashlib.sha256(f"{self.kind} {self.text}".encode(errors="surrogatepass")).digest()


@dataclass(frozen=True, slots=True)
class Verdict:
    refusal: str = ""
    """Why it cannot be made a grammar; empty: it can."""
    ebnf: str = ""
    """For a definition: the grammar of its text inside a JSON string. For a tag: what the engine gets. For a loose
    schema: the schema that can be held."""
    too_costly: bool = False
    """The grammar takes more than a job may."""
    size: int = 0
    """Bytes that the engine's cache holds of it, or this one."""
    cost: Cost = field(default_factory=Cost)
    """Cost of a tag."""


class GrammarProbe:
    """`vocabulary` makes the model's vocabulary (xgrammar's JSON); it is called once, in a thread.

    `kept_bytes` bounds the verdicts that are kept. A structural tag counts with the bytes of its compiled grammar. The
    engine's own cache has to hold more than that: then a tag with a verdict here is still compiled there.
    """

    def __init__(self, vocabulary: Callable[[], str], kept_bytes: int) -> None:
        self._program = KillableProgram("grammars", lambda: _CODE, lambda: vocabulary().encode() + b"\n")
        self._turns = Bound("grammars", PLACES)
        self._verdicts: LRUCache[bytes, Verdict] = LRUCache(kept_bytes, getsizeof=lambda verdict: verdict.size)

    def start(self) -> None:
        """Starts the process. Returns at once; the first job waits for it."""
        self._program.start()

    async def compile(self, sources: Sequence[Source]) -> list[Verdict]:
        """A verdict on each of the sources, which share the limits of one job. Projects take turns.

        Raises InvalidSampling, which names the field, for a source that takes too much. Raises EngineError if the
        process was ended from outside: that says nothing about the sources. A caller that is cancelled ends its job.
        """
        for source in sources:
            if len(source.text) > MAX_CHARS:
                reason = f"its grammar may have {MAX_CHARS} characters, but it has {len(source.text)}"
                raise InvalidSampling(f"{source.field}: {reason}")
        found: dict[bytes, Verdict] = {}
        if self._left(sources, found):
            with await self._turns.wait(PROJECT.get()):
                if left := self._left(sources, found):  # the job before may have been the same
                    await self._try(left, found)
        return [found[source.key] for source in sources]

    def close(self) -> None:
        """Ends the process. Whoever waits for it gets EngineDead. Blocks."""
        self._program.close()

    def _left(self, sources: Sequence[Source], found: dict[bytes, Verdict]) -> list[Source]:
        """The sources without a verdict; `found` gets those that there are. Raises InvalidSampling."""
        left = []
        for source in sources:
            if (verdict := self._verdicts.get(source.key)) is None:
                left.append(source)
            elif verdict.too_costly:
                raise self._too_costly(source)
            else:
                found[source.key] = verdict
        return left

    async def _try(self, sources: Sequence[Source], found: dict[bytes, Verdict]) -> None:
        for _ in range(ATTEMPTS):
            verdicts, status = await self._ask(sources)
            for source, verdict in zip(sources, verdicts, strict=False):
                found[source.key] = verdict
                self._keep(source, verdict)
            left = sources[len(verdicts) :]
            if not left:
                return
            if self._program.is_closed:
                raise EngineDead("the engine is not running")
            if status in AT_A_LIMIT:
                if not verdicts:  # it took too much alone
                    self._keep(left[0], Verdict(too_costly=True, size=_OVERHEAD_BYTES))
                raise self._too_costly(left[0])
            if status == TOO_LATE:
                reason = f"the machine is too busy to compile its grammar within {WALL_SECONDS} seconds"
                raise EngineError(f"{left[0].field}: {reason}; send the request again")
            log.warning("the process that tries grammars was ended from outside (status %s)", status)
            sources = left
        raise EngineError("the process that tries grammars was ended from outside; send the request again")

    def _too_costly(self, source: Source) -> InvalidSampling:
        seconds = self._program.ready if source.kind == "tag" else CPU_SECONDS
        return InvalidSampling(
            f"{source.field}: its grammar takes more than {seconds} seconds of CPU time or {MEMORY_BYTES // 2**20} MiB "
            "to compile; use fewer properties, shorter patterns or smaller ranges"
        )

    async def _ask(self, sources: Sequence[Source]) -> tuple[list[Verdict], int | None]:
        """The verdicts on the first of the sources, and, if not on all, how the child ended; None: it is not known."""
        question = json.dumps([(source.kind, source.text) for source in sources]).encode() + b"\n"
        try:
            answers, status = await self._program.ask(_once(question), len(sources), MEMORY_BYTES)
        except ProgramClosed:
            raise EngineDead("the engine is not running") from None
        except ProgramFailed as error:
            raise EngineError(str(error)) from None
        return list(map(_verdict, answers)), status

    def _keep(self, source: Source, verdict: Verdict) -> None:
        if verdict.size <= self._verdicts.maxsize:
            self._verdicts[source.key] = verdict


async def _once(piece: bytes) -> AsyncIterator[bytes]:
    yield piece


def _verdict(answer: Mapping[str, Any]) -> Verdict:
    refusal, ebnf = answer.get("refusal", ""), answer.get("ebnf", "")
    cost = Cost(answer.get("seconds", 0.0), answer.get("bytes", 0))
    return Verdict(refusal, ebnf, size=cost.size + len(refusal) + len(ebnf) + _OVERHEAD_BYTES, cost=cost)
