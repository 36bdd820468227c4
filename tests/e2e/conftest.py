"""Installations that files share (tests/support/sharing.py), also those that kill: each waits for what it needs."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from openai import AsyncOpenAI, OpenAI

from app.local.ports import free_port
from tests.e2e.gpt_oss import collector, gpt_oss
from tests.support.installations import running
from tests.support.longhaul import COMMAND, Longhaul
from tests.support.services import open_folder
from tests.support.tool_servers import ToolProcess, served_tools
from tests.support.waiting import PATIENCE_SECONDS, until_sync

__all__ = ["collector", "gpt_oss"]

SCRIPTED = """
[[models]]
name = "scripted"
engine = "tests.support.scripted:ScriptedEngine"
tool_parser = "hermes"
reasoning_parser = "qwen3"
[models.engine_args]
tokens_per_second = 400.0
max_num_seqs = 40
"""
SLOTS = 80
"""Slots of two workers."""
TO_HERE = {"LONGHAUL_WEBHOOK_NETWORKS": "127.0.0.0/8"}
"""Lets webhooks be sent to this machine."""
TOOL_SERVERS = """
[[tool_servers]]
label = "tests"
url = "{url}"
after_crash = "again"

[[tool_servers]]
label = "careful"
url = "{url}?other"
after_crash = "fail"

[[tool_servers]]
label = "python"
kind = "python"
url = "{url}?third"

[[tool_servers]]
label = "local"
command = {command}
"""


@pytest.fixture(scope="session")
def client(longhaul: Longhaul) -> Iterator[OpenAI]:
    with longhaul.client() as opened:
        yield opened


@pytest.fixture(scope="session")
def scripted_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("models") / "models.toml"
    file.write_text(SCRIPTED)
    return file


@pytest.fixture(scope="package")
def tools() -> Iterator[ToolProcess]:
    """The tool servers of `pair`."""
    with open_folder() as folder, served_tools(folder) as server:
        folder.chmod(0o755)
        yield server


class Keyed(Longhaul):
    """An installation that asks for keys. Its clients have one of a project that the first of them creates."""

    @cached_property
    def key(self) -> str:
        return new_project(self, "mine")[1]

    def client(self) -> OpenAI:
        return super().client().with_options(api_key=self.key)

    def async_client(self) -> AsyncOpenAI:
        return super().async_client().with_options(api_key=self.key)

    def http(self) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.key}"}
        return httpx.Client(base_url=self.url, timeout=PATIENCE_SECONDS, headers=headers)


@pytest.fixture(scope="package")
def pair(tools: ToolProcess) -> Iterator[Keyed]:
    """`longhaul up --workers 2` with keys, tools, metrics, two processes of the API, and logs in JSON."""
    metrics = {"LONGHAUL_METRICS_PORT": str(free_port()), "LONGHAUL_API_PROCESSES": "2"}
    said = {"LONGHAUL_AUTH": "keys", "LONGHAUL_LOG_FORMAT": "json", "LONGHAUL_LOG_REQUESTS": "summary"}
    with open_folder() as folder:
        models = folder / "models.toml"
        command = json.dumps(list(tools.command().command or ()))
        models.write_text(SCRIPTED + TOOL_SERVERS.format(url=tools.url, command=command))
        with running(Keyed(folder / "home", models, workers=2, **metrics, **said, **TO_HERE)) as installation:
            assert isinstance(installation, Keyed)
            yield installation


@pytest.fixture
def both(pair: Longhaul) -> list[str]:
    """The names of its two workers, once both take responses: one is enough for an installation to be ready."""

    def ready() -> bool:
        return [each["state"] for each in workers(pair).values()] == ["ready", "ready"]

    until_sync(ready, what=lambda: str(workers(pair)))
    return sorted(workers(pair))


def admin_of(pair: Longhaul) -> httpx.Client:
    """A client with the first admin key."""
    headers = {"Authorization": f"Bearer {(pair.home / 'admin-key').read_text().strip()}"}
    return httpx.Client(base_url=f"{pair.url}/v1", headers=headers, timeout=PATIENCE_SECONDS)


def new_project(pair: Longhaul, name: str) -> tuple[str, str]:
    """A new project, and its key."""
    with admin_of(pair) as admin:
        project = admin.post("/organization/projects", json={"name": name}).raise_for_status().json()["id"]
        accounts = f"/organization/projects/{project}/service_accounts"
        account = admin.post(accounts, json={"name": name}).raise_for_status().json()
    return project, account["api_key"]["value"]


def workers(pair: Longhaul) -> dict[str, dict[str, Any]]:
    with admin_of(pair) as admin:
        return {each["name"]: each for each in admin.get("/operator/workers").raise_for_status().json()["data"]}


def read(installation: Longhaul, statement: str, *values: Any) -> list[Any]:
    """Rows of the installation's database."""

    async def rows() -> list[Any]:
        lines = (installation.home / "services").read_text().splitlines()
        connection = await asyncpg.connect(dict(line.split("=", 1) for line in lines)["DATABASE_URL"])
        try:
            return list(await connection.fetch(statement, *values))
        finally:
            await connection.close()

    return asyncio.run(rows())


def counted(numbers: int) -> str:
    """The scripted engine's answer to `/count NUMBERS`."""
    return " ".join(str(number + 1) for number in range(numbers))


def raw_stream(longhaul: Longhaul, response_id: str, after: int = -1) -> bytes:
    parameters: dict[str, Any] = {"stream": "true", **({"starting_after": after} if after >= 0 else {})}
    return httpx.get(f"{longhaul.url}/v1/responses/{response_id}", params=parameters, timeout=60).content


def events_of(raw: bytes) -> list[dict[str, Any]]:
    frames = [frame for frame in raw.decode().split("\n\n") if frame.startswith("event:")]
    return [json.loads(frame.split("\ndata: ", 1)[1]) for frame in frames]


def command(installation: Longhaul, *arguments: str) -> str:
    """Runs a command in another terminal, which knows the data folder alone; returns what it printed."""
    env = {**os.environ, "LONGHAUL_HOME": str(installation.home)}
    done = subprocess.run([str(COMMAND), *arguments], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
