"""The workers of a real `longhaul up`: each has devices of its own, and they follow the models file.

The driver is a stand-in (tests/support/devices.py); nothing else is.
"""

from __future__ import annotations

from pathlib import Path

from app.local.home import WORKERS_FILE
from tests.support.devices import gpu_machine, listing
from tests.support.processes import alive
from tests.support.scripted import SCRIPTED, models_of
from tests.support.upping import NAMED_SERVICES, Up, kill, longhaul
from tests.support.waiting import until_sync

ON_DEVICES = '[[models]]\nname = "{}"\npath = "org/model"\nengine_args = {{ tensor_parallel_size = {} }}\n'
WORKER = (
    "worker: mkdir -p {0}/all; "
    "echo $$ $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER > {0}/all/$LONGHAUL_MODEL.$$; exec sleep 1000\n"
)


class Machine:
    """A folder for `longhaul up`, on a machine with `count` GPUs."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.env = {**NAMED_SERVICES, **gpu_machine(folder, listing(count))}

    def up(self, models: str, *args: str, procfile: str = WORKER, **env: str) -> Up:
        """`longhaul up` with this models file."""
        file = self.folder / "served.toml"
        file.write_text(models)
        settings = {"LONGHAUL_MODELS": str(file), "LONGHAUL_SHUTDOWN_GRACE_SECONDS": "0"}
        return Up(self.folder, procfile.format(self.folder), *args, env={**self.env, **settings, **env})

    def serve(self, models: str) -> None:
        """Changes the models file."""
        (self.folder / "served.toml").write_text(models)

    def workers(self) -> dict[str, list[str]]:
        """What the living workers of each model wrote: their process ids and devices."""
        found: dict[str, list[str]] = {}
        for file in sorted((self.folder / "all").glob("*")):
            text = file.read_text()
            if text.endswith("\n") and alive(int(text.split()[0])):
                found.setdefault(file.stem, []).append(text.strip())
        return found

    def devices(self) -> dict[str, list[str]]:
        """The devices of the living workers of each model."""
        return {name: sorted(" ".join(text.split()[1:]) for text in each) for name, each in self.workers().items()}

    def listed(self) -> list[str]:
        """What `longhaul models` says of models and workers, without how the models are read."""
        env = {"LONGHAUL_HOME": str(self.folder / "home"), "LONGHAUL_MODELS": str(self.folder / "served.toml")}
        return ["\t".join(line.split("\t")[:4]) for line in longhaul("models", env=env).stdout.splitlines()]


def test_each_worker_has_devices_of_its_own_and_longhaul_models_shows_them(folder: Path) -> None:
    machine = Machine(folder, 4)
    with machine.up(ON_DEVICES.format("large", 2) + ON_DEVICES.format("small", 1) + models_of("none")) as up:
        wanted = {"large": ["0,1 PCI_BUS_ID"], "small": ["2 PCI_BUS_ID"], "none": [""]}
        until_sync(lambda: machine.devices() == wanted, what=lambda: f"{machine.devices()} {up.output}")
        assert "worker.large has the devices 0,1" in up.output
        assert machine.listed() == [
            "large\tvllm\torg/model\tqueue model.large",
            "  worker.large\tdevices 0,1",
            "small\tvllm\torg/model\tqueue model.small",
            "  worker.small\tdevices 2",
            f"none\t{SCRIPTED}\t-\tqueue model.none",
            "  worker.none\tno devices",
        ]
        up.look()
        kill(up.pid)  # It cannot tidy up.
        up.ended()
        up.gone()
        assert (folder / "home" / WORKERS_FILE).exists()
        assert not any(line.startswith(" ") for line in machine.listed())


def test_a_device_that_the_environment_hides_is_given_to_no_worker_and_one_that_died_gets_its_own_again(
    folder: Path,
) -> None:
    machine = Machine(folder, 4)
    with machine.up(ON_DEVICES.format("m", 1), "--workers", "2", CUDA_VISIBLE_DEVICES="3,1"):
        wanted = {"m": ["1 PCI_BUS_ID", "3 PCI_BUS_ID"]}
        until_sync(lambda: machine.devices() == wanted)
        before = machine.workers()
        kill(int(before["m"][0].split()[0]))
        until_sync(lambda: machine.devices() == wanted and machine.workers() != before)


def test_a_change_of_the_models_file_touches_no_other_process_and_one_that_is_wrong_or_does_not_fit_none(
    folder: Path,
) -> None:
    machine = Machine(folder, 3)
    procfile = WORKER + "calm: echo $$ > {0}/calm.pid; exec sleep 1000\n"
    first, added = ON_DEVICES.format("first", 2), ON_DEVICES.format("added", 1)
    with machine.up(first, procfile=procfile) as up:
        until_sync(lambda: machine.devices() == {"first": ["0,1 PCI_BUS_ID"]})
        calm, before = int(up.written("calm.pid")), machine.workers()
        machine.serve("[[models]")
        up.wait_for_output("is not valid TOML")
        machine.serve(first + ON_DEVICES.format("large", 2))
        up.wait_for_output(
            "the models file has changed, and the workers stay as they were: the workers need 4 devices, "
            "and nvidia-smi lists 3: 'first' 2, 'large' 2"
        )
        assert (machine.workers(), up.output.count("is not valid TOML")) == (before, 1)
        machine.serve(first + added)
        until_sync(lambda: "added" in machine.workers(), what=lambda: up.output)
        assert machine.workers() == before | {"added": machine.workers()["added"]}
        assert machine.devices()["added"] == ["2 PCI_BUS_ID"]
        assert alive(calm)
        machine.serve(added)
        until_sync(lambda: list(machine.workers()) == ["added"], what=lambda: up.output)
        machine.serve(added + ON_DEVICES.format("third", 2))
        until_sync(lambda: machine.devices().get("third") == ["0,1 PCI_BUS_ID"], what=lambda: up.output)
        assert up.process.poll() is None


def test_a_changed_model_gets_new_workers_once_the_old_ones_have_freed_their_devices(folder: Path) -> None:
    machine = Machine(folder, 2)
    slow = (
        "worker: mkdir -p {0}/all; mkdir {0}/held || touch {0}/clash; "
        "trap 'sleep 1; rmdir {0}/held; exit' TERM; "
        "echo $$ $CUDA_VISIBLE_DEVICES > {0}/all/$LONGHAUL_MODEL.$$; while :; do sleep 0.1; done\n"
    )
    with machine.up(ON_DEVICES.format("m", 1), procfile=slow):
        until_sync(lambda: machine.devices() == {"m": ["0"]})
        machine.serve(ON_DEVICES.format("m", 2))
        until_sync(lambda: machine.devices() == {"m": ["0,1"]})
        assert not (folder / "clash").exists()


def test_a_worker_that_cannot_run_waits_alone_until_the_models_file_changes(folder: Path) -> None:
    machine = Machine(folder, 2)
    (folder / "no.bad").touch()
    breakable = "worker: [ -e {0}/no.$LONGHAUL_MODEL ] && echo no such folder && exit 2; " + WORKER.partition(" ")[2]
    first, bad = ON_DEVICES.format("first", 1), ON_DEVICES.format("bad", 1)
    with machine.up(first + bad, procfile=breakable) as up:
        until_sync(lambda: "first" in machine.workers())
        before = machine.workers()
        up.wait_for_output("worker.bad ended with status 2: no such folder; starting again in 0 s")
        up.wait_for_output("worker.bad ended with status 2 again; starting again in 8 s")
        (folder / "no.bad").unlink()
        machine.serve(first + bad + "# mended\n")
        until_sync(lambda: "bad" in machine.workers(), 7.0, what=lambda: f"at once: {up.output}")
        machine.serve(first + ON_DEVICES.format("bad", 2))
        up.wait_for_output("the workers stay as they were")
        (folder / "no.bad").touch()
        deaths = up.output.count("worker.bad ended with status 2")
        kill(int(machine.workers()["bad"][0].split()[0]))
        until_sync(lambda: up.output.count("worker.bad ended with status 2") > deaths, what=lambda: up.output)
        assert machine.workers() == before
        machine.serve(first + ON_DEVICES.format("good", 1))
        until_sync(lambda: machine.devices().get("good") == ["1 PCI_BUS_ID"], what=lambda: up.output)
        assert machine.workers()["first"] == before["first"]
        assert up.process.poll() is None
