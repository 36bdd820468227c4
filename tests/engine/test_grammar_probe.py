"""A grammar that takes too much ends the process that tries it, and nothing else. No engine is started."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from itertools import product
from typing import Any

import psutil
import pytest
import pytest_asyncio

from app.heavy import PROJECT
from app.killable.program import SPARES
from config.process import CHECKOUT
from tests.engine.cases import tangled
from tests.support.processes import descendants
from tests.support.waiting import until
from workers.engine.base import EngineDead, EngineError, InvalidSampling
from workers.engine.grammar_probe import MAX_CHARS, GrammarProbe, Source, Verdict

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="module")]

KEPT = 2**20
START_SECONDS = 120.0
"""How long xgrammar's import may take on a busy machine."""


def vocabulary() -> str:
    from xgrammar import TokenizerInfo

    return str(TokenizerInfo([chr(code) for code in range(128)], stop_token_ids=[0]).serialize_json())


def schema(text: Any, field: str = "text.format.schema") -> Source:
    return Source("schema", json.dumps(text), field)


def tag(schema: Any, field: str = "tools") -> Source:
    format_ = {"type": "json_schema", "json_schema": schema}
    return Source("tag", json.dumps({"type": "structural_tag", "format": format_}), field)


LIGHT = "c._compilers = lambda _: ({'schema': lambda text: (c.schema_grammar(c.json.loads(text)), {})[1]}, 9); "
"""Part of the program that reads schemas alone: it starts without xgrammar, whose import takes seconds."""


def limited(**limits: int) -> str:
    """The program with other limits."""
    changes = "".join(f"c.{name} = {value}; " for name, value in limits.items())
    return (
        f"import sys; sys.path.append({str(CHECKOUT)!r}); from workers.engine import grammar_compiler as c; "
        f"{changes}c.main()"
    )


def light(**limits: int) -> str:
    return limited(**limits).replace("c.main()", f"{LIGHT}c.main()")


ENDLESS = tangled(40)
NAMED = {"type": "object", "properties": {"name": {"type": "string"}}}


def at_work(process: subprocess.Popen[bytes]) -> list[int]:
    """The children that have a job, which limits their CPU time."""
    return [pid for pid in descendants(process.pid) if is_limited(pid)]


def is_limited(pid: int) -> bool:
    try:
        return resource.prlimit(pid, resource.RLIMIT_CPU)[0] != resource.RLIM_INFINITY
    except ProcessLookupError:
        return False


async def process_of(probe: GrammarProbe) -> subprocess.Popen[bytes]:
    """The program, once it runs."""
    return await until(lambda: probe._program.process, START_SECONDS)


async def spares_of(probe: GrammarProbe) -> set[int]:
    """The children that wait for a job, once there are as many as there shall be."""
    process = await process_of(probe)

    def spares() -> set[int] | None:
        found = {pid for pid in descendants(process.pid) if not is_limited(pid)}
        return found if len(found) == SPARES else None

    return await until(spares, START_SECONDS) or set()


async def tried(probe: GrammarProbe, sources: Sequence[Source], project: str = "p") -> list[Verdict]:
    PROJECT.set(project)
    return await probe.compile(sources)


async def child_of(probe: GrammarProbe) -> int:
    """The process of the only job, once it runs."""
    process = await process_of(probe)
    [pid] = await until(lambda: at_work(process), START_SECONDS)
    return pid


async def endless_job(probe: GrammarProbe) -> tuple[asyncio.Task[Any], int]:
    """The only job, and its process."""
    if (process := probe._program.process) is not None:
        await until(lambda: not at_work(process), START_SECONDS)
    job = asyncio.create_task(tried(probe, [schema(ENDLESS)]))
    return job, await child_of(probe)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def probe() -> AsyncIterator[GrammarProbe]:
    probe = GrammarProbe(vocabulary, KEPT)
    probe.start()
    yield probe
    probe.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def endless(probe: GrammarProbe) -> AsyncIterator[GrammarProbe]:
    """A probe whose jobs may take for ever. The other one has its program by now, with its own limits."""
    await process_of(probe)
    with pytest.MonkeyPatch.context() as patched:
        made = probe_of_endless_jobs(patched)
        yield made
        made.close()


def probe_of_endless_jobs(patched: pytest.MonkeyPatch) -> GrammarProbe:
    patched.setattr("workers.engine.grammar_probe._CODE", light(CPU_SECONDS=300))
    made = GrammarProbe(str, KEPT)
    made.start()
    return made


async def test_a_source_that_is_too_long_is_not_even_tried() -> None:
    probe = GrammarProbe(lambda: pytest.fail("a process was started"), KEPT)
    with pytest.raises(InvalidSampling, match=rf"^tools: its grammar may have {MAX_CHARS} characters"):
        await tried(probe, [Source("tag", "x" * (MAX_CHARS + 1), "tools")])
    probe.close()


async def test_every_kind_of_source_gets_its_verdict(probe: GrammarProbe) -> None:
    sources = [
        schema(NAMED),
        tag(NAMED),
        Source("regex", '"+', "tools[0].format.definition"),
        Source("lark", 'start: "a"', "tools[1].format.definition"),
        Source("regex", "(", "tools[2].format.definition"),
        Source("tag", "{", "text.format"),
    ]
    verdicts = await tried(probe, sources)
    assert [bool(verdict.refusal) for verdict in verdicts] == [False, False, False, False, True, True]
    assert '\\"' in verdicts[2].ebnf  # inside a JSON string
    assert verdicts[1].size > 1000  # what the engine's cache holds of it


async def test_a_value_in_a_schema_that_looks_like_a_grammar_is_a_value(probe: GrammarProbe) -> None:
    for value in ({"type": "grammar"}, {"type": "grammar", "grammar": "no grammar"}):
        [verdict] = await probe.compile([tag({"const": value})])
        assert not verdict.refusal


async def test_the_threads_of_a_machine_with_many_cores_have_room_beside_the_grammar(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("workers.engine.grammar_probe._CODE", f"import os; os.cpu_count = lambda: 64; {limited()}")
    many = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(100)}}
    probe = GrammarProbe(vocabulary, KEPT)
    probe.start()
    try:
        [verdict] = await tried(probe, [tag(many)])
        assert not verdict.refusal
    finally:
        await asyncio.to_thread(probe.close)


async def test_a_grammar_that_is_cheap_to_compile_and_dear_at_each_token_is_refused(probe: GrammarProbe) -> None:
    meanings = " | ".join(" ".join(["x"] * count) for count in range(2, 40))  # of each text: with each letter more
    [made] = await tried(probe, [Source("lark", f"start: x\nx: {meanings} | /[a-z ]/", "tools[0].format.definition")])
    formats: list[Any] = [{"type": "grammar", "grammar": made.ebnf}, {"type": "json_schema", "json_schema": NAMED}]
    tags = [json.dumps({"type": "structural_tag", "format": each}) for each in formats]
    dear, cheap = await tried(probe, [Source("tag", each, "tools[0].format") for each in tags])
    assert dear.refusal.startswith("each token would take more than 30 ms to check")
    assert not cheap.refusal


async def test_a_counter_that_is_dear_is_refused_also_behind_more_text_than_a_walk_takes() -> None:
    from xgrammar import TokenizerInfo

    words = ["".join(letters) for letters in product("bcdfghijklmnpqr", repeat=4)]  # a large vocabulary, as models have
    many = [*(chr(code) for code in range(128)), *words]
    probe = GrammarProbe(lambda: str(TokenizerInfo(many, stop_token_ids=[0]).serialize_json()), KEPT)
    probe.start()
    try:
        texts = ("(axe){200}[^x]{0,2000}", "(axe){200}[^x]*")
        made = await tried(probe, [Source("regex", text, "tools[0].format.definition") for text in texts])
        formats = [{"type": "grammar", "grammar": each.ebnf} for each in made]
        tags = [json.dumps({"type": "structural_tag", "format": each}) for each in formats]
        dear, cheap = await tried(probe, [Source("tag", each, "tools[0].format.definition") for each in tags])
        assert dear.refusal.startswith("each token would take more than 30 ms to check")
        assert not cheap.refusal
    finally:
        await asyncio.to_thread(probe.close)


async def test_a_refusal_is_kept_and_costs_nothing_again(probe: GrammarProbe) -> None:
    for _ in range(2):
        with pytest.raises(InvalidSampling, match=r"^text.format.schema: its grammar takes more"):
            await tried(probe, [schema(ENDLESS)])
        process = probe._program.process
        assert process is not None
        process.send_signal(signal.SIGSTOP)  # it could not answer
    process.send_signal(signal.SIGCONT)


async def test_what_took_too_much_behind_others_is_not_refused_for_ever(probe: GrammarProbe) -> None:
    """The limits are those of a whole job."""
    source = schema(tangled(13))
    for field in ("tools[0].parameters", "tools[1].parameters"):
        others = [schema(tangled(13, str(count)), "tools[9].parameters") for count in range(400)]  # a minute
        with pytest.raises(InvalidSampling):
            await tried(probe, [*others, Source("schema", source.text, field)])
    [verdict] = await tried(probe, [source])
    assert not verdict.refusal


async def test_a_project_has_one_job_at_a_time_and_leaves_the_other_place(endless: GrammarProbe) -> None:
    jobs = [asyncio.create_task(tried(endless, [schema(tangled(40, str(count)))], "attacker")) for count in range(6)]
    await child_of(endless)
    [verdict] = await tried(endless, [schema(NAMED)], "victim")
    assert not verdict.refusal
    for job in jobs:
        job.cancel()
    await asyncio.wait(jobs)


async def test_a_caller_who_leaves_ends_its_job(endless: GrammarProbe) -> None:
    job, child = await endless_job(endless)
    job.cancel()
    await until(lambda: not psutil.pid_exists(child))
    [verdict] = await tried(endless, [schema(NAMED)])
    assert not verdict.refusal


async def test_a_job_gets_a_child_that_was_forked_before_and_its_place_is_filled(endless: GrammarProbe) -> None:
    spares = await spares_of(endless)
    job, child = await endless_job(endless)
    assert child in spares
    job.cancel()
    await until(lambda: not psutil.pid_exists(child))
    assert child not in await spares_of(endless)


async def test_children_that_are_killed_while_they_wait_are_replaced(endless: GrammarProbe) -> None:
    killed = await spares_of(endless)
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    await until(lambda: not any(map(psutil.pid_exists, killed)))
    [verdict] = await tried(endless, [schema({**NAMED, "title": "after a kill"})])
    assert not verdict.refusal


async def test_a_child_that_is_killed_from_outside_is_no_verdict(endless: GrammarProbe) -> None:
    job, first = await endless_job(endless)
    os.kill(first, signal.SIGKILL)
    await until(lambda: not psutil.pid_exists(first))
    os.kill(await child_of(endless), signal.SIGKILL)
    with pytest.raises(EngineError, match="ended from outside") as raised:
        await job
    assert not isinstance(raised.value, InvalidSampling)


async def test_a_program_that_is_killed_starts_again(endless: GrammarProbe) -> None:
    job, child = await endless_job(endless)
    first = endless._program.process
    assert first is not None
    first.kill()
    await until(lambda: not psutil.pid_exists(child))  # it dies with the program
    await until(lambda: endless._program.process not in (None, first), START_SECONDS)
    job.cancel()
    [verdict] = await tried(endless, [schema(NAMED)])
    assert not verdict.refusal


async def test_a_grammar_that_takes_too_much_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "workers.engine.grammar_probe._CODE", limited(CPU_SECONDS=60, MEMORY_BYTES=2**20, COMPILED_BYTES=1000)
    )
    probe = GrammarProbe(vocabulary, KEPT)
    wide = {"type": "object", "properties": {f"field{number}": {"type": "string"} for number in range(5000)}}
    for large in (schema(wide), tag(NAMED)):  # to make, and to keep
        with pytest.raises(InvalidSampling, match="its grammar takes more than"):
            await tried(probe, [large])
    probe.close()


async def test_a_job_that_got_too_little_time_on_a_busy_machine_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.engine.grammar_probe._CODE", light(CPU_SECONDS=60, WALL_SECONDS=1))
    probe = GrammarProbe(str, KEPT)
    for _ in range(2):
        with pytest.raises(EngineError, match=r"^text\.format\.schema: the machine is too busy") as raised:
            await tried(probe, [schema(ENDLESS)])
        assert not isinstance(raised.value, InvalidSampling)
    probe.close()


async def test_a_job_that_takes_too_much_in_the_middle_of_an_answer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import os, signal\n"
        "def work(compilers, seconds, asked, answers):\n"
        "    asked.readline()\n"
        '    answers.write(b\'{"refusal": "ha\')\n'
        "    answers.flush()\n"
        "    os.kill(os.getpid(), signal.SIGXCPU)\n"
    )
    program = light().replace("c.main()", "c._work = work; c.main()")
    monkeypatch.setattr("workers.engine.grammar_probe._CODE", code + program)
    probe = GrammarProbe(str, KEPT)
    with pytest.raises(InvalidSampling, match="its grammar takes more than 2 seconds"):
        await tried(probe, [schema(NAMED)])
    probe.close()


async def test_no_job_outlives_its_worker() -> None:
    code = (
        "import asyncio, sys; sys.path.append(sys.argv[1]); from tests.engine.test_grammar_probe import *\n"
        "async def main():\n"
        "    probe = probe_of_endless_jobs(pytest.MonkeyPatch())\n"
        "    job = asyncio.create_task(probe.compile([schema(tangled(40))]))\n"
        "    print(await child_of(probe), probe._program.process.pid, flush=True)\n"
        "    await job\n"
        "asyncio.run(main())\n"
    )
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, str(CHECKOUT)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert worker.stdout is not None
    pids = (await worker.stdout.readline()).split()
    assert len(pids) == 2
    worker.kill()
    await worker.wait()
    for pid in pids:
        await until(lambda pid=int(pid): not psutil.pid_exists(pid))


async def test_closing_ends_the_program_and_its_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = probe_of_endless_jobs(monkeypatch)
    job, child = await endless_job(probe)
    behind = asyncio.create_task(tried(probe, [schema({**NAMED, "title": "behind"})]))
    process = await process_of(probe)
    await asyncio.to_thread(probe.close)
    assert process.returncode == -signal.SIGKILL
    for each in (job, behind):
        with pytest.raises(EngineDead):
            await each
    await until(lambda: not psutil.pid_exists(child))
