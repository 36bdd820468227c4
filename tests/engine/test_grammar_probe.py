"""A grammar that takes too much ends the process that tries it, and nothing else. No engine is started."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from config.process import CHECKOUT
from workers.engine.base import InvalidSampling
from workers.engine.grammar_probe import MAX_CHARS, SMALL, GrammarProbe

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="module")]


def vocabulary() -> str:
    from xgrammar import TokenizerInfo

    return str(TokenizerInfo([chr(code) for code in range(128)], stop_token_ids=[0]).serialize_json())


def tag_of(schema: Any) -> str:
    return json.dumps({"type": "structural_tag", "format": {"type": "json_schema", "json_schema": schema}})


def ranges(count: int) -> str:
    """Whole numbers in ranges become long grammars."""
    span = {f"p{n}": {"type": "integer", "minimum": n - 10**15, "maximum": 10**15 + n} for n in range(count)}
    return tag_of({"type": "object", "properties": span})


TOOLS = tag_of({"type": "object", "properties": {f"property_{n}": {"type": "string"} for n in range(300)}})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def probe() -> AsyncIterator[GrammarProbe]:
    probe = GrammarProbe(vocabulary)
    yield probe
    probe.close()


async def test_a_small_grammar_starts_no_process() -> None:
    probe = GrammarProbe(lambda: pytest.fail("a process was started"))
    await probe.check("x" * SMALL, "tools")
    probe.close()


async def test_a_grammar_that_is_too_long_is_not_even_tried() -> None:
    probe = GrammarProbe(lambda: pytest.fail("a process was started"))
    with pytest.raises(InvalidSampling, match=rf"^tools: its grammar may have {MAX_CHARS} characters"):
        await probe.check("x" * (MAX_CHARS + 1), "tools")
    probe.close()


async def test_a_large_grammar_of_ordinary_tools_passes(probe: GrammarProbe) -> None:
    assert len(TOOLS) > SMALL
    await probe.check(TOOLS, "tools")


async def test_a_grammar_that_the_compiler_refuses_is_refused(probe: GrammarProbe) -> None:
    with pytest.raises(InvalidSampling, match=r"^text\.format: it cannot be made a grammar: "):
        await probe.check("{" * (SMALL + 1), "text.format")


@pytest.mark.parametrize("limit", ["CPU_SECONDS", "MEMORY_BYTES"])
async def test_a_grammar_that_takes_too_much_is_refused_and_the_next_one_is_tried(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"CPU_SECONDS": 1, "MEMORY_BYTES": 64 * 2**20}[limit]
    code = (
        f"import sys; sys.path.append({str(CHECKOUT)!r}); from workers.engine import grammar_compiler as c; "
        f"c.{limit} = {small}; c.main()"
    )
    monkeypatch.setattr("workers.engine.grammar_probe._CODE", code)
    probe = GrammarProbe(vocabulary)
    with pytest.raises(InvalidSampling, match=r"^tools: "):
        await probe.check(ranges(1500), "tools")
    await probe.check(TOOLS, "tools")
    probe.close()


async def test_a_verdict_is_kept(probe: GrammarProbe) -> None:
    await probe.check(TOOLS, "tools")
    process = probe._process
    assert process is not None
    process.send_signal(signal.SIGSTOP)  # it could not answer
    await probe.check(TOOLS, "tools")
    process.send_signal(signal.SIGCONT)


async def test_closing_ends_the_process() -> None:
    probe = GrammarProbe(vocabulary)
    await probe.check(TOOLS, "tools")
    process = probe._process
    probe.close()
    assert process is not None
    assert process.returncode == -signal.SIGKILL
