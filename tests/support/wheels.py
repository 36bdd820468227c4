"""Longhaul's wheel in a virtual environment of its own, which has the declared dependencies and nothing else.

The dependencies are links to the files that this environment has, so an installation costs a second and asks no index.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from config.process import CHECKOUT

ENGINE = Path("tests", "support", "scripted")
"""The engine of models that need no vLLM. An operator may have one, too."""
_LEFT_OUT = ("torchvision", "torchaudio", "torchcodec", "triton")
"""What vLLM's CPU build declares and does not need (config/requirements/worker-cpu.txt)."""
_RUN = "#!{}\nimport sys\nfrom longhaul_server import main\nsys.exit(main())\n"


def install(folder: Path, *extras: str) -> Path:
    """Builds the wheel and installs it, with these extras, below `folder`; returns the command `longhaul`."""
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    places = {"base": str(environment), "platbase": str(environment)}
    packages = Path(sysconfig.get_path("purelib", vars=places))
    _, built = build(CHECKOUT, folder)
    with zipfile.ZipFile(built) as wheel:
        wheel.extractall(packages)
    shutil.copytree(CHECKOUT / ENGINE, packages / ENGINE, ignore=shutil.ignore_patterns("__pycache__"))
    (own,) = distributions(name="longhaul-server", path=[str(packages)])
    for dependency in _closure(own, extras):
        _link(dependency, packages)
    command = environment / "bin" / "longhaul"
    command.write_text(_RUN.format(python))
    command.chmod(0o755)
    return command


def build(sources: Path, folder: Path, **env: str) -> tuple[Path, Path]:
    """Builds the sdist and the wheel of a checkout into `folder`."""
    targets = [*("--target", "sdist"), *("--target", "wheel"), "--directory", str(folder)]
    command = [sys.executable, "-m", "hatchling", "build", *targets]
    subprocess.run(command, cwd=sources, env={**os.environ, **env}, check=True, capture_output=True, timeout=300)
    (sdist,), (wheel,) = folder.glob("longhaul_server-*.tar.gz"), folder.glob("longhaul_server-*.whl")
    return sdist, wheel


def _closure(root: Distribution, extras: tuple[str, ...]) -> list[Distribution]:
    """What pip would install beside `root`: its dependencies, and theirs."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(root, extra) for extra in ("", *extras)]
    while waiting:
        owner, extra = waiting.pop()
        for line in owner.requires or ():
            wanted = Requirement(line)
            if wanted.marker is not None and not wanted.marker.evaluate({"extra": extra}):
                continue
            name = canonicalize_name(wanted.name)
            try:
                dependency = root if name == canonicalize_name(root.name) else distribution(name)
            except PackageNotFoundError:
                if name not in _LEFT_OUT:
                    raise
                continue
            if dependency is not root:
                found[name] = dependency
            news = {(name, each) for each in ("", *wanted.extras)} - seen
            seen |= news
            waiting += [(dependency, each) for _, each in news]
    return list(found.values())


def _link(dependency: Distribution, packages: Path) -> None:
    """Links packages as folders, with what is compiled of them: to compile vLLM's again takes 10 seconds of CPU."""
    files = [file for file in dependency.files or () if ".." not in file.parts and "__pycache__" not in file.parts]
    tops = {file.parent for file in files if file.name == "__init__.py"}
    for part in {next((folder for folder in reversed(file.parents) if folder in tops), file) for file in files}:
        target = packages / part
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(Path(str(dependency.locate_file(part))))
