"""An operator's hour on a real `longhaul up` with keys: why project red waits, and what is done about it, by commands.

The commands know an API's URL and a key of scope `operator`, and nothing of the services.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import httpx
import pytest
from openai import OpenAI, RateLimitError

from tests.e2e.conftest import FEW_SLOTS
from tests.support.longhaul import COMMAND, Longhaul
from tests.support.waiting import PATIENCE_SECONDS, until_sync

MODEL = "scripted"
ENDLESS = "/count 1000000"
LOOP = "a loop in their client"


class Operator:
    """Who runs commands: beside the services for keys and limits, and else far from them."""

    def __init__(self, guarded: Longhaul) -> None:
        self._beside = {**os.environ, "LONGHAUL_HOME": str(guarded.home)}
        self.key = self.administer("keys", "create", "--admin", "--scopes", "operator", "--name", "night shift")
        self._far = {**os.environ, "LONGHAUL_URL": guarded.url, "LONGHAUL_API_KEY": self.key}

    def administer(self, *arguments: str) -> str:
        """What a command beside the services prints."""
        return self._run(self._beside, arguments, 0).strip()

    def run(self, *arguments: str, status: int = 0) -> str:
        """What an operator's command prints."""
        return self._run(self._far, arguments, status)

    def ask(self, *arguments: str, status: int = 0) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.run(*arguments, "--json", status=status).splitlines()]

    @staticmethod
    def _run(env: dict[str, str], arguments: tuple[str, ...], status: int) -> str:
        done = subprocess.run(
            [str(COMMAND), *arguments],
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
        assert done.returncode == status, (arguments, done.stdout, done.stderr)
        return done.stdout


def begin(client: OpenAI, count: int, text: str, **metadata: str) -> list[str]:
    return [
        client.responses.create(model=MODEL, input=text, background=True, metadata=metadata).id for _ in range(count)
    ]


def listed(http: httpx.Client, path: str, **query: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = http.get(path, params=query).raise_for_status().json()["data"]
    return found


def test_an_operator_finds_why_a_project_waits_and_puts_it_right(guarded: Longhaul) -> None:
    operator = Operator(guarded)
    red, blue = (operator.administer("projects", "create", name) for name in ("team red", "team blue"))
    keys = [operator.administer("keys", "create", "--project", each) for each in (red, blue)]
    reds, blues = (OpenAI(base_url=f"{guarded.url}/v1", api_key=key, max_retries=0) for key in keys)
    http = httpx.Client(
        base_url=f"{guarded.url}/v1/operator",
        headers={"authorization": f"Bearer {operator.key}"},
        timeout=PATIENCE_SECONDS,
    )
    with reds, blues, http:
        # Some of red's fail; then it sends more than there are slots for.
        failed = begin(reds, 3, "/fail 3")
        until_sync(lambda: all(reds.responses.retrieve(each).status == "failed" for each in failed))
        flood = begin(reds, 20, ENDLESS, run="nightly")
        until_sync(lambda: listed(http, "queue")[0]["running"] >= 2 * FEW_SLOTS, what="all slots are taken")
        (waits,) = begin(blues, 1, "/say Hi")

        # Why does it wait? Its turn, a limit, or a pause?
        why = operator.ask("why", flood[-1])[0]
        assert (why["reason"], why["project_name"]) == ("behind_others", "team red")
        assert operator.ask("why", waits)[0]["reason"] in ("behind_others", "no_slot")
        first, *others = operator.ask("queue", "--by", "project")
        assert (first["id"], first["name"], [each["id"] for each in others]) == (red, "team red", [blue])
        operator.administer("limits", "set", red, "queued_responses", "1")
        begin(reds, 1, ENDLESS, run="nightly")
        with pytest.raises(RateLimitError):
            begin(reds, 1, ENDLESS)
        (status,) = operator.ask("status")
        assert status["grade"] == "attention"
        assert (status["problems"], [each["project"] for each in status["limits"]]) == ([], [red])
        operator.administer("limits", "remove", red, "queued_responses")

        # It is paused, by its name.
        assert f"longhaul resume {MODEL} --project {red}" in operator.run(
            "pause", MODEL, "--project", "team red", "--reason", LOOP
        )
        assert operator.ask("why", flood[-1])[0]["reason"] == "paused"
        shown = operator.run("status")
        assert f"Paused: project team red in {MODEL}, since " in shown and f'because of "{LOOP}"' in shown

        # What waits is cancelled, and what failed is sent again: it waits, since it is paused.
        filter_ = ("--project", "team red", "--status", "queued", "--metadata", "run=nightly", "--reason", LOOP)
        assert operator.run("responses", "cancel", *filter_, status=1).strip() == "", "nobody said yes"
        (cancelled,) = operator.ask("responses", "cancel", *filter_, "--yes")
        assert (cancelled["state"], cancelled["done"]) == ("completed", cancelled["matched"])
        (retried,) = operator.ask(
            *("responses", "retry", "--error-code", "server_error", "--created-after", "1h", "--reason", "mended"),
            "--yes",
        )
        assert (retried["done"], retried["refused"]) == (len(failed), {})
        assert operator.ask("responses", "show", failed[0])[0]["retried_by"] is not None
        (queue,) = (each for each in operator.ask("queue", "--by", "project") if each["id"] == red)
        assert queue["waiting"] == len(failed)

        # A worker is drained: what it runs is cancelled, so it is drained soon.
        drained, other = sorted(each["name"] for each in operator.ask("workers"))
        operator.run("drain", drained, "--reason", "a bad fan")
        running_ = [each["id"] for each in operator.ask("responses", "list", "--status", "in_progress")]
        assert operator.ask("responses", "cancel", *running_, "--yes")[0]["done"] == len(running_)
        assert operator.run("drain", drained, "--wait") == f"{drained} is drained; it has no responses\n"
        until_sync(lambda: blues.responses.retrieve(waits).status == "completed", what="blue has its answer")
        assert operator.ask("responses", "show", waits)[0]["sent_to"] == other

        # All is given back.
        operator.run("undrain", drained)
        operator.run("resume", MODEL, "--project", red, "--reason", "mended")
        until_sync(lambda: len(listed(http, "responses", error_code="server_error")) == 2 * len(failed))
        assert {each["state"] for each in operator.ask("workers")} == {"ready"}
        assert operator.ask("pauses") == []
        assert "Nothing is wrong, and nothing needs attention." in operator.run("status")

    entries = [json.loads(line) for line in operator.administer("audit", "export").splitlines()]
    assert [each["type"] for each in entries if each["type"].startswith(("worker", "model", "responses"))] == [
        "model.paused",
        "responses.cancelled",
        "responses.retried",
        "worker.drained",
        "responses.cancelled",
        "worker.undrained",
        "model.resumed",
    ]
