"""The code of the version before this one, for tests of upgrades."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from config.settings import CHECKOUT

VERSION = "0.2.0"
COMMIT = "a07732333f449e1178aa6f012240ebd7970fb1b7"
"""The commit of VERSION. After a release, both name the version that was just released."""


def unpack(folder: Path, names: Sequence[str]) -> None:
    """Writes these folders of the checkout, as they were in VERSION, into `folder`.

    Fails if git does not have the commit: a shallow clone lacks it.
    """
    archive = subprocess.run(["git", "archive", COMMIT, *names], cwd=CHECKOUT, capture_output=True, check=False)
    assert archive.returncode == 0, (
        f"no {VERSION} ({COMMIT}) in this checkout's history; `git fetch --unshallow` gets it: "
        f"{archive.stderr.decode(errors='replace')}"
    )
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
