"""The workers of one `longhaul up`: how many of each model, under which names, with which devices."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.local.procfile import WORKER, Process
from app.local.workers.devices import VISIBLE, Device, Devices, devices_needed
from app.operations.words import count_of
from config.models import ServedModel
from config.settings import ConfigError


@dataclass(frozen=True, slots=True)
class PlannedWorker:
    """One worker: the one with `number`, from 1 on, of its model. No other worker has its devices."""

    name: str
    model: ServedModel
    number: int
    devices: tuple[Device, ...] = ()

    def process(self, command: str) -> Process:
        """The process that it is. CUDA must count devices as the driver's list does."""
        env = {"LONGHAUL_MODEL": self.model.name}
        if self.model.upstream is not None:
            urls = self.model.upstream.urls
            env["LONGHAUL_UPSTREAM"] = urls[(self.number - 1) % len(urls)]
        if self.devices:
            env |= {VISIBLE: self.device_names, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        return Process(self.name, command, env)

    @property
    def device_names(self) -> str:
        return ",".join(map(str, self.devices))


def plan(
    models: Sequence[ServedModel], count: int, devices: Devices | None, running: Iterable[PlannedWorker] = ()
) -> list[PlannedWorker]:
    """All workers, `count` for each model, or for each of its servers elsewhere.

    Those of `running` whose model is as it was stay as they are. Workers that need most devices choose first. With
    `devices` None no worker gets any. Raises ConfigError, one line, if there are too few.
    """
    kept = {(worker.model.name, worker.number): worker for worker in running if worker.model in models}
    places = [(model, number) for model in models for number in range(1, _count(model, count) + 1)]
    given = _given(places, kept, devices) if devices is not None else {}
    names = _names(models, count)
    return [
        kept.get((model.name, number))
        or PlannedWorker(names[model.name, number], model, number, given.get((model.name, number), ()))
        for model, number in places
    ]


def _count(model: ServedModel, count: int) -> int:
    return count if model.upstream is None else count * len(model.upstream.urls)


_Key = tuple[str, int]
"""A model's name, and the number of one of its workers."""


def _given(
    places: Sequence[tuple[ServedModel, int]], kept: dict[_Key, PlannedWorker], devices: Devices
) -> dict[_Key, tuple[Device, ...]]:
    """The devices of each worker that is not running yet."""
    held = {device for worker in kept.values() for device in worker.devices}
    free = [device for device in devices.all if device not in held]
    new = [place for place in places if (place[0].name, place[1]) not in kept]
    given = {}
    for model, number in sorted(new, key=lambda place: -devices_needed(place[0])):
        needed = devices_needed(model)
        if needed and "device_ids" in model.engine_args:
            raise ConfigError(
                f"model {model.name!r}: engine_args: device_ids is for a worker alone, and `longhaul up` gives each "
                f"worker devices of its own; leave it out, and name the devices for all in {VISIBLE}"
            )
        # CUDA sees at most one MIG device in a process, so an engine with several devices takes whole GPUs.
        usable = [device for device in free if device.mig is None or needed <= 1]
        chosen = tuple(usable[:needed])
        if len(chosen) < needed:
            raise ConfigError(_too_few(Counter(model.name for model, _ in places), places, devices))
        free = [device for device in free if device not in chosen]
        given[model.name, number] = chosen
    return given


def _too_few(workers: Counter[str], places: Sequence[tuple[ServedModel, int]], devices: Devices) -> str:
    needs = {model.name: devices_needed(model) for model, _ in places}
    each = ", ".join(
        f"{name!r} {needed}" + (f" for each of its {workers[name]} workers" if workers[name] > 1 else "")
        for name, needed in needs.items()
        if needed
    )
    whole = " (an engine with several takes whole GPUs)" if any(device.mig for device in devices.all) else ""
    total = sum(needs[model.name] for model, _ in places)
    more = f", or name more devices in {VISIBLE}" if devices.source.startswith(VISIBLE) else ""
    return (
        f"the workers need {count_of(total, 'device')}, and {devices.source} {len(devices.all)}{whole}: "
        f"{each}; lower --workers or tensor_parallel_size, or serve fewer models{more}"
    )


def _names(models: Sequence[ServedModel], count: int) -> dict[_Key, str]:
    """The shortest names that differ: `worker`, `worker.2`, `worker.qwen3-8b.2`, `worker.org-qwen3-8b.2`."""
    last = {model.name: _label(model.name.rsplit("/", 1)[-1]) for model in models}
    used = Counter(last.values())
    names = {}
    for model in models:
        label = last[model.name] if used[last[model.name]] == 1 else _label(model.name)
        base = WORKER if len(models) == 1 else f"{WORKER}.{label}"
        own = _count(model, count)
        for number in range(1, own + 1):
            names[model.name, number] = base if own == 1 else f"{base}.{number}"
    return names


def _label(name: str) -> str:
    return re.sub(r"[^a-z0-9.-]+", "-", name.lower())
