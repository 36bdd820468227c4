"""pip checks the hash of every file that it installs: the pins and their hashes say the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

_FOLDER = Path(__file__).resolve().parents[3] / "config" / "requirements"
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;]+)", re.MULTILINE)
_HASHED = re.compile(r"^([A-Za-z0-9._-]+)==(\S+).*\\\n((?: {4}--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _pins(name: str) -> dict[str, str]:
    return {_normal(found[1]): found[2] for found in _PIN.finditer((_FOLDER / name).read_text(encoding="utf-8"))}


@pytest.mark.parametrize("name", ["base.txt", "worker-cpu.txt", "tools.txt", "dev.txt"])
def test_every_pin_has_its_hashes(name: str) -> None:
    text = (_FOLDER / "hashes" / name).read_text(encoding="utf-8")
    assert {_normal(found[1]): found[2] for found in _HASHED.finditer(text)} == _pins(name), "run `make hashes`"
    assert _HASHED.sub("", text) == "", "a line of the file is neither a pin nor its hash"


def test_vllm_for_cuda_and_all_that_it_needs_have_hashes_and_the_versions_of_the_base() -> None:
    text = (_FOLDER / "hashes" / "worker-gpu.txt").read_text(encoding="utf-8")
    hashed = {_normal(found[1]): found[2] for found in _HASHED.finditer(text)}
    wanted, base = _pins("worker-gpu.txt"), _pins("base.txt")
    assert hashed.items() >= wanted.items(), "run `make hashes`"
    assert {"torch", "nvidia-cublas"} <= hashed.keys()
    assert {name: version for name, version in hashed.items() if base.get(name, version) != version} == {}
    assert _HASHED.sub("", text) == "", "a line of the file is neither a pin nor its hash"
