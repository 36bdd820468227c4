"""The API follows the models file: what it serves changes without a restart, and open streams go on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from config import models_file
from tests.support.api import MODEL, Api, serving, settings_for
from tests.support.player import Player
from tests.support.scripted import models_of
from tests.support.waiting import until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "models.toml"


@pytest.fixture
async def following(
    services: Any, db: Any, tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Api]:
    monkeypatch.setattr(models_file, "LOOK_SECONDS", 0.02)
    write(path, MODEL)
    async with serving(settings_for(services, tmp_path / "home", models=path), catalog=None) as running:
        yield running


def write(path: Path, *names: str) -> None:
    path.write_text(models_of(*names))


def spoil(path: Path) -> None:
    path.write_text("[[models]")


async def serves(api: Api, *names: str) -> bool:
    return [model["id"] for model in (await api.client.get("/v1/models")).json()["data"]] == list(names)


async def test_models_are_added_and_taken_away_while_a_stream_goes_on(
    following: Api, path: Path, player: Player
) -> None:
    async with following.streaming(background=True) as stream:
        first = await stream.event()
        assert first is not None
        play = await player.begin(first["response"]["id"])
        write(path, MODEL, "added")
        await until(lambda: serves(following, MODEL, "added"))
        assert (await following.post(model="added", background=True)).status_code == 200
        await play.finished()
        assert b"response.completed" in await stream.rest()
    write(path, "other")
    await until(lambda: serves(following, "other"))
    assert (await following.post(background=True)).status_code == 404
    assert (await following.client.get("/health/ready")).json()["models"]["without_worker"] == ["other"]


async def test_a_content_that_is_not_valid_keeps_the_models_and_is_logged_once(
    following: Api, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spoil(path)

    def complaints() -> list[str]:
        return [record.message for record in caplog.records if "not valid TOML" in record.message]

    await until(complaints)
    assert await serves(following, MODEL)
    write(path, MODEL, "added")
    await until(lambda: serves(following, MODEL, "added"))
    (complaint,) = complaints()
    assert complaint.endswith("; the models stay as they were")
