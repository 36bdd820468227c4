"""The workers of a real `longhaul up`: each has devices of its own, and they follow the models file.

The driver is a stand-in (tests/support/devices.py); nothing else is.
"""

from __future__ import annotations

from pathlib import Path

from app.local.home import WORKERS_FILE
from tests.support.devices import gpu_machine, listing
from tests.support.scripted import SCRIPTED, models_of
from tests.support.upping import NAMED_SERVICES, Up, alive, kill, longhaul
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


def test_a_device_that_the_environment_hides_is_given_to_no_worker(folder: Path) -> None:
    machine = Machine(folder, 4)
    with machine.up(ON_DEVICES.format("m", 1), "--workers", "2", CUDA_VISIBLE_DEVICES="3,1"):
        until_sync(lambda: machine.devices() == {"m": ["1 PCI_BUS_ID", "3 PCI_BUS_ID"]})


def test_a_worker_that_died_gets_its_own_devices_again(folder: Path) -> None:
    machine = Machine(folder, 2)
    with machine.up(ON_DEVICES.format("m", 1), "--workers", "2"):
        wanted = {"m": ["0 PCI_BUS_ID", "1 PCI_BUS_ID"]}
        until_sync(lambda: machine.devices() == wanted)
        before = machine.workers()
        kill(int(before["m"][0].split()[0]))
        until_sync(lambda: machine.devices() == wanted and machine.workers() != before)


def test_what_does_not_fit_is_one_line_at_the_start_and_nothing_starts(folder: Path) -> None:
    machine = Machine(folder, 2)
    with machine.up(ON_DEVICES.format("large", 2) + ON_DEVICES.format("small", 1)) as up:
        assert up.ended() == 2
        assert up.output == (
            "longhaul: the workers need 3 devices, and nvidia-smi lists 2: 'large' 2, 'small' 1; "
            "lower --workers or tensor_parallel_size, or serve fewer models\n"
        )
        assert machine.workers() == {}


def test_a_model_that_is_added_gets_workers_on_free_devices_and_no_other_process_is_touched(folder: Path) -> None:
    machine = Machine(folder, 3)
    procfile = WORKER + "calm: echo $$ > {0}/calm.pid; exec sleep 1000\n"
    first, added = ON_DEVICES.format("first", 2), ON_DEVICES.format("added", 1)
    with machine.up(first, procfile=procfile) as up:
        until_sync(lambda: machine.devices() == {"first": ["0,1 PCI_BUS_ID"]})
        calm, before = int(up.written("calm.pid")), machine.workers()
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


def test_a_models_file_that_is_not_valid_or_does_not_fit_leaves_the_workers_as_they_are(folder: Path) -> None:
    machine = Machine(folder, 2)
    first = ON_DEVICES.format("first", 1)
    with machine.up(first) as up:
        until_sync(lambda: "first" in machine.workers())
        before = machine.workers()
        machine.serve("[[models]")
        up.wait_for_output("is not valid TOML")
        machine.serve(first + ON_DEVICES.format("large", 2))
        up.wait_for_output(
            "the models file has changed, and the workers stay as they were: the workers need 3 devices, "
            "and nvidia-smi lists 2: 'first' 1, 'large' 2"
        )
        assert machine.workers() == before
        assert up.output.count("is not valid TOML") == 1


BREAKABLE = "worker: [ -e {0}/no.$LONGHAUL_MODEL ] && echo no such folder && exit 2; " + WORKER.partition(" ")[2]


def test_a_model_whose_worker_cannot_run_waits_alone_and_frees_its_device_when_it_is_taken_away(folder: Path) -> None:
    machine = Machine(folder, 2)
    (folder / "no.bad").touch()
    first, bad = ON_DEVICES.format("first", 1), ON_DEVICES.format("bad", 1)
    with machine.up(first + bad, procfile=BREAKABLE) as up:
        until_sync(lambda: "first" in machine.workers())
        before = machine.workers()
        up.wait_for_output("worker.bad ended with status 2: no such folder; starting again in 0 s")
        machine.serve(first + ON_DEVICES.format("good", 1))
        until_sync(lambda: machine.devices().get("good") == ["1 PCI_BUS_ID"], what=lambda: up.output)
        assert machine.workers()["first"] == before["first"]


def test_a_worker_that_waits_is_started_at_once_when_the_models_file_changes(folder: Path) -> None:
    machine = Machine(folder, 1)
    (folder / "no.first").touch()
    first = ON_DEVICES.format("first", 1)
    with machine.up(first, procfile=BREAKABLE) as up:
        up.wait_for_output("worker ended with status 2 again; starting again in 8 s")
        (folder / "no.first").unlink()
        machine.serve(first + "# mended\n")
        until_sync(lambda: "first" in machine.workers(), 7.0, what=lambda: up.output)


def test_a_process_that_dies_while_the_models_file_is_not_valid_waits_until_it_is(folder: Path) -> None:
    machine = Machine(folder, 1)
    real = "longhaul models > {0}/said 2>&1 || exit $?; "  # It reads the file, as API and workers do.
    first = ON_DEVICES.format("first", 1)
    with machine.up(first, procfile="worker: " + real + WORKER.partition(" ")[2]) as up:
        until_sync(lambda: "first" in machine.workers(), what=lambda: up.output)
        before = machine.workers()
        machine.serve("[[models]")
        kill(int(before["first"][0].split()[0]))
        up.wait_for_output("worker ended with status 2; starting again")
        machine.serve(first)
        until_sync(lambda: "first" in machine.workers(), what=lambda: up.output)
        assert machine.workers() != before


def test_after_a_change_that_does_not_fit_a_worker_that_cannot_run_waits_alone(folder: Path) -> None:
    machine = Machine(folder, 2)
    first, second = ON_DEVICES.format("first", 1), ON_DEVICES.format("second", 1)
    with machine.up(first + second, procfile=BREAKABLE) as up:
        until_sync(lambda: len(machine.workers()) == 2)
        before = machine.workers()
        machine.serve(first + ON_DEVICES.format("second", 2))
        up.wait_for_output("the workers stay as they were")
        (folder / "no.second").touch()
        kill(int(before["second"][0].split()[0]))
        up.wait_for_output("worker.second ended with status 2: no such folder; starting again in 0")
        assert machine.workers() == {"first": before["first"]}
        assert up.process.poll() is None
