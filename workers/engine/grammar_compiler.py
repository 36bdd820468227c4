"""Compiles grammars within limits: a program of its own (app/killable), which loads xgrammar and a vocabulary once."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any, BinaryIO

from app.killable.program import JobLimits, connected, limit_cpu, serve
from app.protocol.types import Json
from workers.engine.grammar_walk import PLAIN_STEPS, STEPS, WALKS, Walker
from workers.engine.json_grammar import counters, in_json_string
from workers.engine.mask_budget import BUDGET_SECONDS
from workers.engine.schemas.loosening import loosened
from workers.engine.schemas.schema_grammar import schema_grammar
from workers.engine.schemas.tags import definitions, held

CPU_SECONDS = 2
"""CPU time for one job, to read what callers sent. A hundred strict tools take a few hundredths of a second."""
TOKENS_A_SECOND = 10_000
"""For each so many tokens of the vocabulary, compiling a tag gets a second more. With 200,000 tokens, an ordinary
`maxLength` takes up to 9 seconds."""
MAX_THREADS = 4
WALL_SECONDS = 60
MEMORY_BYTES = 2**29
"""Bytes that a job may add to the memory of its process."""
COMPILED_BYTES = 2**26
"""Bytes that a compiled grammar may hold: the engine keeps one for each running response, within a bound of all."""
MAX_DEPTH = 10_000
"""Calls of Python in each other: a schema of a hundred levels takes a thousand."""
_ALONE = "longhaul_counter"
CHEAPER = "use fewer alternatives that begin alike, and no rule with two meanings"

Compile = Callable[[str], Mapping[str, Any]]
"""Makes an answer of a source's text."""


def main() -> None:
    """The one argument is the worker's process id; stdin is a socket to it, which has the vocabulary as a line."""
    control = connected()
    with control.makefile("rb") as stream:
        compilers, seconds = _compilers(stream.readline().decode())
    limits = JobLimits(CPU_SECONDS, WALL_SECONDS, MEMORY_BYTES)
    serve(control, partial(_work, compilers, seconds), limits, bytes([seconds]))


def _compilers(vocabulary: str) -> tuple[Mapping[str, Compile], int]:
    """By the kind of source (`workers.engine.grammar_probe.Source`), and the CPU seconds for a tag."""
    import xgrammar  # takes seconds: it imports torch

    tokens = xgrammar.TokenizerInfo.deserialize_json(vocabulary)
    threads = max(1, min((os.cpu_count() or 1) // 4, MAX_THREADS))
    # with its cache, as vLLM: xgrammar has faults with it alone
    compiler = xgrammar.GrammarCompiler(tokens, max_threads=threads, cache_enabled=True)
    walker = Walker(xgrammar, tokens)

    def schema(text: str) -> Mapping[str, Any]:
        schema_grammar(json.loads(text))
        return {}

    def loose(text: str) -> Mapping[str, Any]:
        return {"ebnf": json.dumps(loosened(json.loads(text)))}

    def printed(format_: Json) -> str:
        return str(xgrammar.Grammar.from_structural_tag({"type": "structural_tag", "format": format_}))

    def counted(definition: str) -> Iterator[float]:
        """What each counter costs, which may stand behind more text than a walk takes."""
        for counter in counters(definition):
            alone = xgrammar.Grammar.from_ebnf(f"{definition}\n{_ALONE} ::= {counter}", root_rule_name=_ALONE)
            yield walker.cost(compiler.compile_grammar(alone), STEPS)

    def tag(text: str) -> Mapping[str, Any]:
        asked = json.loads(text)
        made = json.dumps(held(asked, printed))
        compiled = compiler.compile_structural_tag(made)
        if compiled.memory_size_bytes > COMPILED_BYTES:
            raise MemoryError
        seconds = max(walker.cost(compiled), *chain.from_iterable(map(counted, set(definitions(asked)))), 0.0)
        if seconds > BUDGET_SECONDS:
            raise ValueError(f"each token would take more than {1000 * BUDGET_SECONDS:.0f} ms to check; {CHEAPER}")
        return {"ebnf": made, "bytes": compiled.memory_size_bytes, "seconds": seconds}

    compilers = {
        "schema": schema,
        "loose": loose,
        "lark": lambda text: {"ebnf": in_json_string(str(xgrammar.Grammar.from_lark(text)))},
        "regex": lambda text: {"ebnf": in_json_string(str(xgrammar.Grammar.from_regex(text)))},
        "tag": tag,
    }
    walks = int((PLAIN_STEPS + STEPS * WALKS) * BUDGET_SECONDS) + 1
    return compilers, min(CPU_SECONDS + tokens.vocab_size // TOKENS_A_SECOND + walks, 255)


def _work(compilers: Mapping[str, Compile], tag_seconds: int, asked: BinaryIO, answers: BinaryIO) -> None:
    """Reads a list of (kind, text), and writes a line for each, in order."""
    sys.setrecursionlimit(MAX_DEPTH)
    sources = json.loads(asked.readline() or b"[]")
    if any(kind == "tag" for kind, _ in sources):
        limit_cpu(tag_seconds)
    for kind, text in sources:
        answers.write(json.dumps(_answer(compilers[kind], text)).encode() + b"\n")
        answers.flush()


def _answer(compile_: Compile, text: str) -> Mapping[str, Any]:
    try:
        return compile_(text)
    except Exception as error:  # xgrammar's C++ errors
        if isinstance(error, MemoryError) or "bad_alloc" in str(error):
            os.abort()
        if isinstance(error, RecursionError):
            return {"refusal": "it is nested too deeply"}
        said = str(error) if isinstance(error, (ValueError, RuntimeError)) else ""
        return {"refusal": " ".join((said or f"{type(error).__name__}: {error}").split())}


if __name__ == "__main__":
    main()
