"""The processes that `longhaul up` keeps running: those of the Procfile, and workers that follow the models file."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from app.aio import end_tasks, run_until
from app.local.children import Child, Program
from app.local.console import Console
from app.local.errors import LocalError
from app.local.home import Home
from app.local.procfile import API, WORKER, Process, once
from app.local.restarts import StopRequest, Supervised, stop_after, supervise
from app.local.workers.devices import Devices
from app.local.workers.plan import PlannedWorker, plan
from app.local.workers.scrapes import Scrapes
from config.models import ModelCatalog
from config.models_file import ModelsFile
from config.settings import PROCESS_VARIABLE, ConfigError


@dataclass(frozen=True, slots=True)
class Wanted:
    """The workers that are wanted: `count` for each model of the models file, or for `model` alone."""

    file: ModelsFile
    model: str | None
    count: int
    devices: Devices | None

    def plan(self, catalog: ModelCatalog, running: list[PlannedWorker]) -> list[PlannedWorker]:
        """Raises ConfigError."""
        models = [model for model in catalog.models if self.model in (None, model.name)]
        return plan(models, self.count, self.devices, running)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every process of this start shares."""

    env: Mapping[str, str]
    folder: Path
    lock: int
    grace: float
    drain_seconds: float
    """How long the API may drain before that."""
    of_command: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """More variables for the processes of one command of `longhaul`."""

    def program(self, process: Process) -> Program:
        own = self.of_command.get(process.longhaul_command or "", {})
        env = {**self.env, **own, PROCESS_VARIABLE: process.name, **process.env}
        return Program(process.argv, env, self.folder, grace=self.grace, hold=(self.lock,))


@dataclass(frozen=True, slots=True)
class _Running:
    worker: PlannedWorker
    stopping: StopRequest
    task: asyncio.Task[None]


@dataclass
class Supervisor:
    """All processes of one `longhaul up` after `release`."""

    commands: Mapping[str, str]
    first: list[PlannedWorker]
    wanted: Wanted
    surroundings: Surroundings
    home: Home
    scrapes: Scrapes
    console: Console
    stopping: StopRequest
    _others_stop: StopRequest = field(default_factory=StopRequest)
    """Set once the API has drained: its answers need all others."""
    _workers: list[_Running] = field(default_factory=list)

    async def run(self) -> None:
        """Returns when every process has ended: after `stopping`, which a wrong start sets."""
        for name in (*(process.name for process in once(self.commands)), *(worker.name for worker in self.first)):
            self.console.writer_for(name)
        relaying: asyncio.Task[None] | None = None
        try:
            async with asyncio.TaskGroup() as group:
                tasks = {process.name: group.create_task(self._keep(process)) for process in once(self.commands)}
                first = [task for name, task in tasks.items() if name == API]
                relaying = asyncio.create_task(stop_after(first, self.stopping, self._others_stop))
                if WORKER in self.commands:
                    group.create_task(run_until(self._follow(group), self._others_stop.wait()))
        finally:
            if relaying is not None:
                await end_tasks(relaying)

    async def _keep(self, process: Process) -> None:
        stopping = self.stopping if process.name == API else self._others_stop
        if (reason := await self._supervise(process, stopping, is_needed=True)) is not None:
            self.stopping.fail(f"{process.name} {reason}")

    async def _keep_worker(self, worker: PlannedWorker, stopping: StopRequest) -> None:
        await self._supervise(worker.process(self.commands[WORKER]), stopping, is_needed=False)
        self._workers = [running for running in self._workers if running.worker is not worker]
        self._show()

    async def _supervise(self, process: Process, stopping: StopRequest, *, is_needed: bool) -> str | None:
        """Returns None, or why nothing must run."""
        write = self.console.writer_for(process.name)
        drain_seconds = self.surroundings.drain_seconds if process.name == API else 0.0
        log = partial(self._log_of, process.name)
        with self.scrapes.port(process) as served:
            start = partial(Child.start, self.surroundings.program(served), write)
            program = Supervised(start, log, drain_seconds, is_needed, self.wanted.file.unchanged)
            return await supervise(program, stopping)

    def _log_of(self, name: str, line: str) -> None:
        self.console.log(f"{name} {line}")

    async def _follow(self, group: asyncio.TaskGroup) -> None:
        """Starts the first workers, then starts and stops what each change of the models file asks for."""
        self._start(self.first, group)
        async for catalog in self.wanted.file.changes(self.console.log):
            try:
                workers = self.wanted.plan(catalog, [running.worker for running in self._workers])
            except ConfigError as error:
                self.console.log(f"the models file has changed, and the workers stay as they were: {error}")
                continue
            gone = [running for running in self._workers if running.worker not in workers]
            for running in gone:
                self.console.log(
                    f"{running.worker.name} stops: the models file has another entry for its model, or none"
                )
                running.stopping.set()
            if gone:  # Others may get their devices.
                await asyncio.wait([running.task for running in gone])
            kept = [running.worker for running in self._workers]
            self._start([worker for worker in workers if worker not in kept], group)

    def _start(self, workers: list[PlannedWorker], group: asyncio.TaskGroup) -> None:
        for worker in workers:
            stopping = self._others_stop.part()
            task = group.create_task(self._keep_worker(worker, stopping))
            self._workers.append(_Running(worker, stopping, task))
            if worker.devices:
                self.console.log(f"{worker.name} has the devices {worker.device_names}")
        self._show()

    def _show(self) -> None:
        workers = (running.worker for running in self._workers)
        try:
            self.home.show_workers((worker.name, worker.model.name, worker.device_names) for worker in workers)
        except LocalError as error:
            self.console.log(str(error))
