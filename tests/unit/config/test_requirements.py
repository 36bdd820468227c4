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


@pytest.mark.parametrize("name", ["base.txt", "worker-cpu.txt", "tools.txt", "dev.txt"])
def test_every_pin_has_its_hashes(name: str) -> None:
    pins = {_normal(found[1]): found[2] for found in _PIN.finditer((_FOLDER / name).read_text(encoding="utf-8"))}
    text = (_FOLDER / "hashes" / name).read_text(encoding="utf-8")
    assert {_normal(found[1]): found[2] for found in _HASHED.finditer(text)} == pins, "run `make hashes`"
    assert _HASHED.sub("", text) == "", "a line of the file is neither a pin nor its hash"
