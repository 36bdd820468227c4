"""An operator's hour on a real `longhaul up` with keys: why project red waits, and what is done about it, by commands.

The commands know an API's URL and a key of scope `operator`, and nothing of the services.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from openai import OpenAI

from tests.e2e.conftest import SLOTS, admin_of, command, new_project, workers
from tests.support.longhaul import COMMAND, Longhaul
from tests.support.waiting import PATIENCE_SECONDS, until_sync

MODEL = "scripted"
LOOP = "a loop in their client"


def test_an_operator_finds_why_a_project_waits_and_puts_it_right(pair: Longhaul) -> None:
    key = command(pair, "keys", "create", "--admin", "--scopes", "operator", "--name", "night shift")
    far = {**os.environ, "LONGHAUL_URL": pair.url, "LONGHAUL_API_KEY": key}

    def run(*arguments: str) -> str:
        """What a command prints."""
        done = subprocess.run(
            [str(COMMAND), *arguments], env=far, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=PATIENCE_SECONDS,
        )  # fmt: skip
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    def ask(*arguments: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in run(*arguments, "--json").splitlines()]

    def begin(client: OpenAI, count: int, text: str) -> list[str]:
        asked: dict[str, Any] = {"model": MODEL, "input": text, "background": True, "metadata": {"run": "nightly"}}
        return [client.responses.create(**asked).id for _ in range(count)]

    (red, red_key), (_blue, blue_key) = (new_project(pair, name) for name in ("team red", "team blue"))
    reds, blues = (OpenAI(base_url=f"{pair.url}/v1", api_key=key, max_retries=0) for key in (red_key, blue_key))
    with reds, blues:

        def have(client: OpenAI, status: str, ids: list[str]) -> int:
            return sum(client.responses.retrieve(each).status == status for each in ids)

        # Some of red's fail; then it sends more than there are slots for.
        failed = begin(reds, 3, "/fail 3")
        until_sync(lambda: have(reds, "failed", failed) == len(failed))
        flood = begin(reds, SLOTS + 4, "/hang 5")
        with admin_of(pair) as admin:

            def queue() -> Any:
                return admin.get("/operator/queue").raise_for_status().json()["data"][0]

            until_sync(lambda: queue()["running"] > SLOTS // 2, what=lambda: f"slots are taken: {queue()}")
        (waits,) = begin(blues, 1, "/say Hi")

        # Why does it wait?
        why = ask("why", flood[-1])[0]
        assert (why["reason"], why["project_name"]) == ("behind_others", "team red")

        # It is paused, by its name.
        paused = run("pause", MODEL, "--project", "team red", "--reason", LOOP)
        assert f"longhaul resume {MODEL} --project {red}" in paused
        shown = run("status")
        assert f"Paused: project team red in {MODEL}, since " in shown and f'because of "{LOOP}"' in shown

        # What waits is cancelled, and what failed is sent again: it waits, since it is paused.
        filter_ = ("--project", "team red", "--status", "queued", "--metadata", "run=nightly", "--reason", LOOP)
        (cancelled,) = ask("responses", "cancel", *filter_, "--yes")
        assert (cancelled["state"], cancelled["done"]) == ("completed", cancelled["matched"])
        filter_ = ("--project", "team red", "--error-code", "server_error", "--reason", "mended")
        (retried,) = ask("responses", "retry", *filter_, "--yes")
        assert (retried["done"], retried["refused"]) == (len(failed), {})

        # A worker is drained: what it runs is cancelled, so it is drained soon.
        drained = ask("workers")[0]["name"]
        runs = [each["id"] for each in ask("responses", "list", "--status", "in_progress", "--limit", "100")]
        assert ask("responses", "cancel", *runs, "--yes")[0]["done"] == len(runs) > SLOTS // 2
        assert run("drain", drained, "--wait", "--reason", "a bad fan").endswith("is drained; it has no responses\n")
        until_sync(lambda: have(blues, "completed", [waits]) == 1, what="blue has its answer")

        # All is given back.
        run("undrain", drained)
        run("resume", MODEL, "--project", red, "--reason", "mended")
        until_sync(lambda: {each["state"] for each in workers(pair).values()} == {"ready"})

    with admin_of(pair) as admin:
        entries = admin.get("/organization/audit_logs", params={"limit": 100}).raise_for_status().json()["data"]
    types = [each["type"] for each in entries if each["type"].startswith(("worker", "model", "responses"))]
    assert types[:7] == [  # the newest first
        "model.resumed",
        "worker.undrained",
        "worker.drained",
        "responses.cancelled",
        "responses.retried",
        "responses.cancelled",
        "model.paused",
    ]
