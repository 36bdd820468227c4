"""`LONGHAUL_AUTH=keys longhaul up`: two projects of one installation, with the commands and the official client."""

from __future__ import annotations

import os
import stat
import subprocess
from contextlib import ExitStack
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from tests.support.longhaul import COMMAND, Longhaul
from tests.support.waiting import PATIENCE_SECONDS, until_sync

MODEL = "scripted"


def command(installation: Longhaul, *arguments: str) -> str:
    """Runs a command in another terminal, which knows the data folder alone; returns what it printed."""
    env = {**os.environ, "LONGHAUL_HOME": str(installation.home)}
    done = subprocess.run([str(COMMAND), *arguments], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def client_of(installation: Longhaul, key: str) -> OpenAI:
    return OpenAI(base_url=f"{installation.url}/v1", api_key=key, max_retries=0)


def completed(client: OpenAI, response_id: str) -> Any:
    def final() -> Any:
        response = client.responses.retrieve(response_id)
        return response if response.status == "completed" else None

    return until_sync(final, what=f"{response_id} is completed")


def test_two_projects_work_side_by_side_and_neither_sees_the_other(guarded: Longhaul) -> None:
    with ExitStack() as stack:
        clients = []
        for name in ("red", "blue"):
            project = command(guarded, "projects", "create", name)
            key = command(guarded, "keys", "create", "--project", project, "--name", name)
            clients.append(stack.enter_context(client_of(guarded, key)))
        made = [client.responses.create(model=MODEL, input="Hello!", background=True) for client in clients]
        answers = [completed(client, response.id) for client, response in zip(clients, made, strict=True)]
        for client, own, other in zip(clients, answers, reversed(answers), strict=True):
            continued = client.responses.create(model=MODEL, input="Again!", previous_response_id=own.id)
            assert continued.status == "completed"
            with pytest.raises(openai.NotFoundError):
                client.responses.retrieve(other.id)
            with pytest.raises(openai.BadRequestError, match="not found"):
                client.responses.create(model=MODEL, input="Again!", previous_response_id=other.id)


def test_the_first_admin_key_lies_where_up_says(guarded: Longhaul) -> None:
    file = guarded.home / "admin-key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    until_sync(lambda: f"The first admin key: {file}" in guarded.log.read_text(), what="the welcome")
    key = file.read_text().strip()
    assert key not in guarded.log.read_text()
    with client_of(guarded, key) as client:
        client.models.list()
        with pytest.raises(openai.PermissionDeniedError, match="belongs to no project"):
            client.responses.create(model=MODEL, input="Hello!")
    assert httpx.get(f"{guarded.url}/v1/models", timeout=PATIENCE_SECONDS).status_code == 401
