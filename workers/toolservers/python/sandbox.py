"""One sandbox with one interpreter in it: start, run cells, end.

What comes from inside is a stranger's word. It can spoil its own calls; it cannot make this process wait or hold more
than the limits say.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
from collections.abc import Callable, Iterable
from typing import Any

from config.process import command_of
from workers.toolservers.python.answer import MOST_IMAGE_BYTES, Answer, Answers
from workers.toolservers.python.errors import SandboxError
from workers.toolservers.python.jail import jailer as jailer_program
from workers.toolservers.python.limits import Limits
from workers.toolservers.python.outcome import Ending, Outcome
from workers.toolservers.python.output import NOTE_BYTES, Kept, PipeReader, cut
from workers.toolservers.python.spec import Builder

START_SECONDS = 30.0
INTERRUPT_SECONDS = 2.0
"""From the interrupt to the kill, for code that does not end on it."""
END_SECONDS = 5.0
ESCAPED = 6
"""Bytes that a byte of text may take in JSON."""

_JAILER = command_of(jailer_program.__name__)
_READ_ENDS = {"requests"}
"""Of the pipes, those that the sandbox reads."""


class Sandbox:
    """Make it with `Sandbox.start`; it ends with `close`, with this process, or by its own doing."""

    def __init__(self, jailer: asyncio.subprocess.Process, limits: Limits, pipes: dict[str, int]) -> None:
        self._jailer = jailer
        self._limits = limits
        self._requests = pipes["requests"]
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Answer]] = {0: asyncio.get_running_loop().create_future()}
        self._kept = {name: Kept(limits.output_bytes) for name in ("stdout", "stderr")}
        self._flooded = asyncio.Event()
        self._still: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        longest = MOST_IMAGE_BYTES + 2 * ESCAPED * limits.output_bytes + 4096
        self._answers = Answers(longest, self._answered, self._flooded.set)
        takers = {"answers": self._answers.add, **{name: self._taker(name) for name in self._kept}}
        self._taps = [PipeReader(pipes[name], take) for name, take in takers.items()]
        self._ended: asyncio.Task[Ending] = asyncio.create_task(self._follow())
        self._failure: str | None = None

    @classmethod
    async def start(cls, builder: Builder) -> Sandbox:
        """A fresh interpreter, ready. Raises SandboxError."""
        ours, theirs = _pipes()
        try:
            jailer = await asyncio.create_subprocess_exec(
                *_JAILER,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                pass_fds=tuple(theirs.values()),
                env={},
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            _close(ours.values())
            raise SandboxError(f"a sandbox's jailer cannot start: {error.strerror}") from None
        finally:
            _close(theirs.values())
        self = cls(jailer, builder.limits, ours)
        try:
            await self._begin(builder.plan(theirs))
        except BaseException:
            await self.close()
            raise
        return self

    @property
    def alive(self) -> bool:
        return not self._ended.done()

    @property
    def pid(self) -> int:
        """The jailer's."""
        return self._jailer.pid

    async def run(self, code: str, stop: asyncio.Event) -> Outcome:
        """Runs one cell; `stop` interrupts it. One at a time."""
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._kept |= {name: Kept(self._limits.output_bytes) for name in self._kept}
        self._flooded.clear()
        self._answers.expect()
        await self._stillness()
        self._command("c")
        sending = asyncio.create_task(self._send({"id": number, "code": code}))
        ending = await self._wait(answer, stop)
        if ending is not None and self.alive and not await self._interrupted(answer):
            await self.close()
        sending.cancel()
        self._drain()
        self._stop()  # whatever it left running stands still until the next call
        del self._waiting[number]
        return self._outcome(answer, ending)

    async def close(self) -> None:
        """Ends it, and waits until no process of it is left. May be called again."""
        with contextlib.suppress(ProcessLookupError):
            self._jailer.send_signal(signal.SIGTERM)
        _, late = await asyncio.wait([self._ended], timeout=END_SECONDS)
        if late:
            with contextlib.suppress(ProcessLookupError):
                self._jailer.kill()
            await asyncio.wait([self._ended])

    async def _begin(self, plan: dict[str, Any]) -> None:
        assert self._jailer.stdin is not None
        self._jailer.stdin.write(json.dumps(plan).encode() + b"\n")
        await _first(self._waiting[0], self._ended, seconds=START_SECONDS)
        if not self._waiting[0].done():
            self._drain()
            said = self._kept["stderr"].text().strip().rpartition("\n")[2]
            raise SandboxError(f"no sandbox here: {self._failure or said or 'its interpreter does not start'}")
        self._stop()

    def _stop(self) -> None:
        self._still = asyncio.get_running_loop().create_future()
        self._command("s")

    async def _stillness(self) -> None:
        """Waits until what stops the processes inside has reached them, or the sandbox has ended.

        The next request goes another way than commands do and could overtake the stop. Where code then forks while it
        is stopped and woken, its child stays stopped for ever: Linux holds back for the child what comes during a fork,
        SIGSTOP as SIGCONT, but not a SIGCONT that the process has no handler for (`prepare_signal` in kernel/signal.c).
        """
        await _first(self._still, self._ended, seconds=self._limits.seconds)

    async def _wait(self, answer: asyncio.Future[Answer], stop: asyncio.Event) -> Ending | None:
        """None where there is an answer in time."""
        events = {
            asyncio.create_task(stop.wait()): Ending.CANCELLED,
            asyncio.create_task(self._flooded.wait()): Ending.OUTPUT,
        }
        done = await _first(answer, self._ended, *events, seconds=self._limits.seconds)
        for task in events:
            task.cancel()
        if answer in done:
            return None
        if self._ended in done:
            return self._ended.result()
        return next((ending for task, ending in events.items() if task in done), Ending.TIMEOUT)

    async def _interrupted(self, answer: asyncio.Future[Answer]) -> bool:
        self._command("i")
        await _first(answer, self._ended, seconds=INTERRUPT_SECONDS)
        return answer.done()

    async def _send(self, request: dict[str, Any]) -> None:
        """Writes as the other side reads: it may take its time, and never read."""
        data = memoryview(json.dumps(request).encode() + b"\n")
        loop, writable = asyncio.get_running_loop(), asyncio.Event()
        while data and self.alive:
            try:
                data = data[os.write(self._requests, data) :]
            except BlockingIOError:
                loop.add_writer(self._requests, writable.set)
                await writable.wait()
                loop.remove_writer(self._requests)
                writable.clear()
            except OSError:
                return  # nobody is there to read

    def _command(self, command: str) -> None:
        assert self._jailer.stdin is not None
        if self.alive:
            self._jailer.stdin.write(command.encode())

    async def _follow(self) -> Ending:
        """What the jailer says, to its end."""
        assert self._jailer.stdout is not None
        ending = Ending.DIED
        async for line in self._jailer.stdout:
            message = json.loads(line)
            self._failure = message.get("failed", self._failure)
            if message.get("still") and not self._still.done():
                self._still.set_result(None)
            if message.get("memory"):
                ending = Ending.MEMORY
            elif message.get("ended") == 128 + signal.SIGXCPU:
                ending = Ending.CPU
        await self._jailer.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):  # the pipes end when nobody inside is left to hold them
                await asyncio.gather(*(tap.ended.wait() for tap in self._taps))
        for tap in self._taps:
            tap.close()
        asyncio.get_running_loop().remove_writer(self._requests)
        os.close(self._requests)
        return ending

    def _taker(self, name: str) -> Callable[[bytes], None]:
        def take(data: bytes) -> None:
            self._kept[name].add(data)
            if sum(kept.total for kept in self._kept.values()) > self._limits.flood_bytes:
                self._flooded.set()

        return take

    def _answered(self, answer: Answer) -> None:
        waiting = self._waiting.get(answer.id)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def _drain(self) -> None:
        for tap in self._taps:
            tap.drain()

    def _outcome(self, answer: asyncio.Future[Answer], ending: Ending | None) -> Outcome:
        longest = self._limits.output_bytes + NOTE_BYTES
        said = answer.result() if answer.done() else Answer(id=0)
        return Outcome(
            stdout=self._kept["stdout"].text(),
            stderr=self._kept["stderr"].text(),
            result=None if said.result is None else cut(said.result, longest),
            error=None if said.error is None else cut(said.error, longest),
            images=tuple(said.images),
            killed=ending,
            state_lost=not self.alive,
        )


async def _first(*waited: asyncio.Future[Any], seconds: float) -> set[asyncio.Future[Any]]:
    """Those of them that are done once one is, or after `seconds`."""
    done, _ = await asyncio.wait(waited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    return done


def _pipes() -> tuple[dict[str, int], dict[str, int]]:
    """Our ends and theirs, by name."""
    ours, theirs = {}, {}
    for name in ("requests", "answers", "stdout", "stderr"):
        read, write = os.pipe()
        theirs[name], ours[name] = (read, write) if name in _READ_ENDS else (write, read)
    os.set_blocking(ours["requests"], False)
    return ours, theirs


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
