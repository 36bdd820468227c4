"""No process of an engine outlives the engine's owner, whatever killed the owner.

tests/e2e/test_ranks.py kills the worker of a real engine.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress

import psutil
import pytest

from config.process import CHECKOUT
from tests.engine.cases import demo_model
from tests.engine.processes import engine_processes, pending
from tests.support.processes import alive, descendants, marked
from tests.support.waiting import until, until_sync
from workers.engine import make_engine
from workers.engine.base import EngineDead
from workers.engine.lifeline import KEY, Lifeline, bind_to_parent

MARK = "LONGHAUL_TEST_MARK"
START_SECONDS = 180.0
DEATH_SECONDS = 60.0


class Owner:
    """A running `tests.engine.owner`, marked by a variable that its descendants inherit."""

    def __init__(self, process: subprocess.Popen[str], mark: str) -> None:
        self.process = process
        self.pid = process.pid
        self.mark = mark

    def wait_ready(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def kill(self, number: signal.Signals) -> None:
        """Kills only this process, and waits until it and its descendants are gone."""
        family = descendants(self.pid)
        assert family
        os.kill(self.pid, number)
        self.process.wait()
        until_sync(lambda: not any(map(alive, family)), DEATH_SECONDS, "processes that stay")
        until_sync(lambda: not marked(MARK, self.mark), DEATH_SECONDS, "processes that stay")


Own = Callable[..., Owner]


@pytest.fixture
def own() -> Iterator[Own]:
    """Starts owners of the named kind of engine (`tests.engine.owner`), and ends them after the test."""
    owners: list[Owner] = []

    def start(kind: str) -> Owner:
        mark = uuid.uuid4().hex
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.engine.owner", kind],
            cwd=CHECKOUT,
            env={**os.environ, MARK: mark},
            stdout=subprocess.PIPE,
            text=True,
        )
        owners.append(Owner(process, mark))
        return owners[-1]

    yield start
    for owner in owners:
        for pid in {*descendants(owner.pid), *(each.pid for each in marked(MARK, owner.mark))}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        owner.process.kill()
        with owner.process:
            pass


# -- without a model -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT])
def test_killing_the_owner_kills_its_engine_and_their_children(own: Own, number: signal.Signals) -> None:
    owner = own("hung")
    owner.wait_ready()
    assert len(engine_processes(owner.pid)) == 2
    owner.kill(number)


def test_killing_an_engine_process_kills_its_children_but_not_the_owner(own: Own) -> None:
    owner = own("plain")
    owner.wait_ready()
    (engine,) = [pid for pid in engine_processes(owner.pid) if descendants(pid)]
    (device,) = descendants(engine)
    os.kill(engine, signal.SIGKILL)
    until_sync(lambda: not alive(device), DEATH_SECONDS)
    assert owner.process.poll() is None


def test_engine_processes_are_nicer_and_get_no_signals_of_the_terminal(own: Own) -> None:
    owner = own("plain")
    owner.wait_ready()
    for pid in engine_processes(owner.pid):
        assert psutil.Process(pid).nice() >= 5
        assert os.getpgid(pid) != os.getpgid(owner.pid)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_engine_processes_do_not_hear_the_signals_that_stop_their_worker(own: Own, number: signal.Signals) -> None:
    """A control group gets SIGTERM as a whole: systemd does so at each stop."""
    owner = own("plain")
    owner.wait_ready()
    engines = engine_processes(owner.pid)
    for pid in engines:
        os.kill(pid, number)
    until_sync(lambda: all(number in pending(pid) for pid in engines), DEATH_SECONDS, "they are left unheard")
    assert engine_processes(owner.pid) == engines


def test_an_engine_process_is_deaf_from_its_first_moment() -> None:
    context = multiprocessing.get_context("spawn")
    answer, question = context.Pipe()
    with Lifeline().attached():
        process = context.Process(target=question.send, args=("alive",))
        process.start()
    os.kill(process.pid or 0, signal.SIGTERM)  # long before it runs any of its code
    try:
        assert answer.poll(DEATH_SECONDS)
        assert answer.recv() == "alive"
    finally:
        process.kill()
        process.join()
        answer.close()
        question.close()


def test_a_worker_hears_signals_again_once_its_engine_runs() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with Lifeline().attached():
        pass
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_a_process_whose_parent_is_already_dead_ends_itself() -> None:
    code = "from workers.engine.lifeline import bind_to_parent; bind_to_parent(1, 0); print('lives')"
    ended = subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")


def test_the_owner_is_not_bound_to_itself() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0), os.getpgid(0)
    bind_to_parent(os.getpid(), 19)
    assert (os.getpriority(os.PRIO_PROCESS, 0), os.getpgid(0)) == before


def test_only_processes_made_under_a_lifeline_are_its_own() -> None:
    context = multiprocessing.get_context("spawn")
    line, other_line = Lifeline(), Lifeline()
    mine, free = None, context.Process(target=signal.pause)
    try:
        with line.attached():
            mine = context.Process(target=signal.pause)
            mine.start()
        free.start()
        assert line.processes() == [mine]
        assert other_line.processes() == []
        assert KEY not in vars(multiprocessing.current_process())["_config"]
        line.kill()
        assert line.wait_until_gone(DEATH_SECONDS)
        assert not mine.is_alive()
        assert free.is_alive()
    finally:
        for process in (mine, free):
            if process is not None:
                process.kill()
                process.join()


# -- with a real engine ----------------------------------------------------------------------------------------


UNCLOSED = pytest.mark.filterwarnings("ignore:Unclosed context:ResourceWarning")
"""A start that fails leaves vLLM's ZeroMQ context to the garbage collector."""


@pytest.fixture
def collected() -> Iterator[None]:
    """Collects a test's garbage within that test."""
    yield
    gc.collect()


@UNCLOSED
@pytest.mark.usefixtures("collected")
@pytest.mark.vllm
async def test_a_cancelled_start_ends_the_half_started_engine() -> None:
    before = engine_processes(os.getpid())
    engine = await asyncio.to_thread(make_engine, demo_model())
    starting = asyncio.create_task(engine.start())
    await asyncio.sleep(0)
    await until(lambda: engine_processes(os.getpid()) - before, START_SECONDS)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert engine_processes(os.getpid()) == before
    with pytest.raises(EngineDead):
        await engine.check()


@UNCLOSED
@pytest.mark.usefixtures("collected")
@pytest.mark.vllm
async def test_an_engine_that_is_killed_while_it_starts_is_dead_and_not_misconfigured() -> None:
    before = engine_processes(os.getpid())
    engine = await asyncio.to_thread(make_engine, demo_model())
    starting = asyncio.create_task(engine.start())
    await until(lambda: engine_processes(os.getpid()) - before, START_SECONDS)
    os.kill(min(engine_processes(os.getpid()) - before), signal.SIGKILL)
    with pytest.raises(EngineDead, match="longhaul-demo"):
        await starting
    await engine.stop()
    assert engine_processes(os.getpid()) == before
