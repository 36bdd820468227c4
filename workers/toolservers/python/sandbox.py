"""One sandbox with one interpreter: start it, run cells, end it.

Nothing that comes from inside is trusted. Code can spoil its own calls, but it cannot make this process wait longer,
or hold more, than the limits allow.
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
from workers.toolservers.python import jail
from workers.toolservers.python.answer import MAX_IMAGE_BYTES, Answer, AnswerReader, CallOutcome, StopReason
from workers.toolservers.python.errors import SandboxError
from workers.toolservers.python.jail.cgroups import SandboxCgroup
from workers.toolservers.python.limits import Limits
from workers.toolservers.python.output import NOTE_BYTES, PipeReader, TruncatedOutput, truncate_middle
from workers.toolservers.python.spec import SandboxSpec

START_SECONDS = 30.0
INTERRUPT_SECONDS = 2.0
"""Seconds from the interrupt to the kill, for code that ignores the interrupt."""
END_SECONDS = 5.0
ESCAPED_BYTES = 6
"""The most bytes that JSON needs for one byte of text."""

_JAILER = command_of(f"{jail.__name__}.jailer")  # not imported here: it needs Linux
_PIPES = ("requests", "answers", "stdout", "stderr")


class Sandbox:
    """Make it with `Sandbox.start`. It ends with `close`, with this process, or when its interpreter ends."""

    def __init__(self, jailer: asyncio.subprocess.Process, limits: Limits, pipes: dict[str, int]) -> None:
        self._jailer = jailer
        self._limits = limits
        self._requests = pipes["requests"]
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Answer]] = {0: asyncio.get_running_loop().create_future()}
        self._output = {name: TruncatedOutput(limits.output) for name in ("stdout", "stderr")}
        self._flooded = asyncio.Event()
        self._paused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        max_answer = MAX_IMAGE_BYTES + 2 * ESCAPED_BYTES * limits.output + 4096
        self._answer_reader = AnswerReader(max_answer, self._on_answer, self._flooded.set)
        handlers = {"answers": self._answer_reader.add, **{name: self._output_handler(name) for name in self._output}}
        self._readers = [PipeReader(pipes[name], handler) for name, handler in handlers.items()]
        self._ended: asyncio.Task[StopReason] = asyncio.create_task(self._follow_jailer())
        self._failure: str | None = None
        self._cgroup: SandboxCgroup | None = None

    @classmethod
    async def start(cls, spec: SandboxSpec) -> Sandbox:
        """A sandbox whose interpreter is ready. Raises SandboxError."""
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
        self = cls(jailer, spec.limits, ours)
        try:
            if spec.cgroups is not None:
                self._cgroup = SandboxCgroup(spec.cgroups, spec.limits, jailer.pid)
            await self._begin(spec.for_jailer(theirs))  # until then the jailer does nothing
        except BaseException:
            await self.close()
            raise
        return self

    @property
    def alive(self) -> bool:
        return not self._ended.done()

    @property
    def pid(self) -> int:
        """Process id of the jailer."""
        return self._jailer.pid

    async def run(self, code: str, stop: asyncio.Event) -> CallOutcome:
        """Runs one cell; `stop` interrupts it. Run one cell at a time."""
        number = next(self._ids)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        self._output |= {name: TruncatedOutput(self._limits.output) for name in self._output}
        self._flooded.clear()
        self._answer_reader.reset()
        await self._wait_until_paused()
        self._command("c")
        sending = asyncio.create_task(self._send({"id": number, "code": code}))
        reason = await self._wait(answer, stop)
        if reason is not None and self.alive and not await self._interrupt(answer):
            await self.close()
        sending.cancel()
        self._drain()
        self._pause()  # threads and processes that the cell left behind must not run between two calls
        del self._answers[number]
        return self._outcome(answer, reason)

    async def close(self) -> None:
        """Ends the sandbox, and waits until none of its processes is left. May be called twice."""
        assert self._jailer.stdin is not None
        self._jailer.stdin.close()
        _, late = await asyncio.wait([self._ended], timeout=END_SECONDS)
        if late:
            with contextlib.suppress(ProcessLookupError):
                self._jailer.kill()
            await asyncio.wait([self._ended])

    async def _begin(self, spec: dict[str, Any]) -> None:
        """Waits for the interpreter's first answer, which has id 0. Raises SandboxError."""
        assert self._jailer.stdin is not None
        self._jailer.stdin.write(json.dumps(spec).encode() + b"\n")
        await _first_done(self._answers[0], self._ended, seconds=START_SECONDS)
        if not self._answers[0].done():
            self._drain()
            last_line = self._output["stderr"].text().strip().rpartition("\n")[2]
            raise SandboxError(f"no sandbox here: {self._failure or last_line or 'its interpreter does not start'}")
        self._pause()

    def _pause(self) -> None:
        self._paused = asyncio.get_running_loop().create_future()
        self._command("s")

    async def _wait_until_paused(self) -> None:
        """Waits until the last `_pause` has stopped every process inside, or the sandbox has ended.

        Requests and commands take different ways, so the next request could overtake the pause. If code then forks
        while it is stopped and continued, its child would stay stopped for ever: during a fork Linux delays SIGSTOP for
        the child, but discards a SIGCONT without a handler (`prepare_signal` in kernel/signal.c).
        """
        await _first_done(self._paused, self._ended, seconds=self._limits.seconds)

    async def _wait(self, answer: asyncio.Future[Answer], stop: asyncio.Event) -> StopReason | None:
        """Waits for the answer; returns None if it came in time, or else why the call must be stopped."""
        events = {
            asyncio.create_task(stop.wait()): StopReason.CANCELLED,
            asyncio.create_task(self._flooded.wait()): StopReason.OUTPUT,
        }
        done = await _first_done(answer, self._ended, *events, seconds=self._limits.seconds)
        for task in events:
            task.cancel()
        if answer in done:
            return None
        if self._ended in done:
            return self._ended.result()
        return next((reason for task, reason in events.items() if task in done), StopReason.TIMEOUT)

    async def _interrupt(self, answer: asyncio.Future[Answer]) -> bool:
        """Interrupts the cell as Ctrl-C does; returns whether it then ended by itself."""
        self._command("i")
        await _first_done(answer, self._ended, seconds=INTERRUPT_SECONDS)
        return answer.done()

    async def _send(self, request: dict[str, Any]) -> None:
        """Writes a request as fast as the interpreter reads it, which may be never."""
        data = memoryview(json.dumps(request).encode() + b"\n")
        loop, writable = asyncio.get_running_loop(), asyncio.Event()
        while data and self.alive:
            try:
                data = data[os.write(self._requests, data) :]
            except BlockingIOError:
                loop.add_writer(self._requests, writable.set)
                try:
                    await writable.wait()
                finally:
                    if self.alive:  # else the pipe is closed, and another sandbox's may have its number
                        loop.remove_writer(self._requests)
                writable.clear()
            except OSError:
                return  # the interpreter is gone

    def _command(self, command: str) -> None:
        assert self._jailer.stdin is not None
        if self.alive:
            self._jailer.stdin.write(command.encode())

    async def _follow_jailer(self) -> StopReason:
        """Reads the jailer's messages until it ends; returns why the sandbox ended."""
        assert self._jailer.stdout is not None
        reason = StopReason.DIED
        async for line in self._jailer.stdout:
            message = json.loads(line)
            self._failure = message.get("failed", self._failure)
            if message.get("paused") and not self._paused.done():
                self._paused.set_result(None)
            if message.get("memory"):
                reason = StopReason.MEMORY
            elif message.get("ended") == 128 + signal.SIGXCPU:
                reason = StopReason.CPU
        await self._jailer.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):  # a pipe ends when no process inside holds it any more
                await asyncio.gather(*(reader.ended.wait() for reader in self._readers))
        for reader in self._readers:
            reader.close()
        asyncio.get_running_loop().remove_writer(self._requests)
        os.close(self._requests)
        if self._cgroup is not None and self._cgroup.end() and reason is StopReason.DIED:
            return StopReason.MEMORY
        return reason

    def _output_handler(self, name: str) -> Callable[[bytes], None]:
        def add(data: bytes) -> None:
            self._output[name].add(data)
            if sum(output.total for output in self._output.values()) > self._limits.flood:
                self._flooded.set()

        return add

    def _on_answer(self, answer: Answer) -> None:
        waiting = self._answers.get(answer.id)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def _drain(self) -> None:
        for reader in self._readers:
            reader.read_rest()

    def _outcome(self, future: asyncio.Future[Answer], reason: StopReason | None) -> CallOutcome:
        limit = self._limits.output + NOTE_BYTES
        answer = future.result() if future.done() else Answer(id=0)
        return CallOutcome(
            stdout=self._output["stdout"].text(),
            stderr=self._output["stderr"].text(),
            result=None if answer.result is None else truncate_middle(answer.result, limit),
            error=None if answer.error is None else truncate_middle(answer.error, limit),
            images=tuple(answer.images),
            killed=reason,
            state_lost=not self.alive,
        )


async def _first_done(*futures: asyncio.Future[Any], seconds: float) -> set[asyncio.Future[Any]]:
    """Waits until one of the futures is done, at most `seconds`; returns those that are."""
    done, _ = await asyncio.wait(futures, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    return done


def _pipes() -> tuple[dict[str, int], dict[str, int]]:
    """Makes the pipes: the ends of this process and those of the sandbox, by name. The sandbox reads `requests`."""
    ours, theirs = {}, {}
    for name in _PIPES:
        read, write = os.pipe()
        theirs[name], ours[name] = (read, write) if name == "requests" else (write, read)
    os.set_blocking(ours["requests"], False)
    return ours, theirs


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
