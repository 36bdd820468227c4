"""How Flower's process begins."""

from __future__ import annotations

import os
import subprocess
import sys

from config.settings import CHECKOUT

URLS = {"REDIS_URL": "redis://127.0.0.1:1/0", "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"}
CODE = "from app.flower.main import flower_app; print(flower_app.main)"


def start(env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name not in URLS and "LONGHAUL" not in name}
    args = [sys.executable, "-c", CODE]
    return subprocess.run(args, env=clean | env, cwd=CHECKOUT, capture_output=True, text=True, timeout=60, check=False)


def test_flowers_app_connects_to_nothing_when_it_is_loaded() -> None:
    done = start(URLS)
    assert (done.returncode, done.stdout) == (0, "longhaul\n"), done.stderr
