"""Postgres clusters for tests: made once in a run, and copied for every other data folder.

Making one takes a second of CPU. The first starts of tests/integration/local/test_up.py still make their own.
"""

from __future__ import annotations

import asyncio
import atexit
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from app.local.home import Home
from app.local.services.postgres import Postgres
from app.local.services.service_account import ServiceFolders


def add_cluster(home: Path, kind: type[Postgres] = Postgres) -> ServiceFolders:
    """Prepares the data folder `home` as if Postgres had run there once. Not for an event loop's thread."""
    folders = ServiceFolders.choose(Home.prepare(home))
    subprocess.run(["cp", "-a", *_made(kind).glob("postgres-*"), folders.folder], check=True)
    return folders


@cache
def _made(kind: type[Postgres]) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="lh-"))
    folder.chmod(0o711)  # under root Postgres runs as another user
    atexit.register(shutil.rmtree, folder)
    folders = ServiceFolders.choose(Home.prepare(folder / "home"))
    asyncio.run(kind(folders).prepare())
    return folders.folder
