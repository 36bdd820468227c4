"""The models file is read again when its content has changed, and a content that is not valid changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from config import models_file
from config.models_file import ModelsFile
from config.settings import ConfigError, load_settings
from tests.support.scripted import models_of as entries


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "models.toml"
    file.write_text(entries("one"))
    return file


def opened(path: Path) -> ModelsFile:
    return ModelsFile(load_settings(models=path))


def names(file: ModelsFile) -> list[str]:
    return [model.name for model in file.catalog.models]


def test_a_new_content_counts_once_two_looks_have_found_it(path: Path) -> None:
    file = opened(path)
    path.write_text(entries("one", "two"))
    assert not file.look()
    assert names(file) == ["one"]
    assert file.look()
    assert names(file) == ["one", "two"]
    assert not file.look()


def test_a_file_that_is_being_written_takes_no_model_away(path: Path) -> None:
    path.write_text(entries("one", "two", "three"))
    file = opened(path)
    for half in (entries("one"), entries("one", "two"), entries("one", "two", "three")):
        path.write_text(half)
        assert not file.look()
    assert not file.look()
    assert names(file) == ["one", "two", "three"]


@pytest.mark.parametrize("text", ["[[models]", "", entries("one", "one"), None])
def test_a_content_that_is_not_valid_is_refused_once_and_changes_nothing(path: Path, text: str | None) -> None:
    file = opened(path)
    path.unlink() if text is None else path.write_text(text)
    assert not file.look()
    with pytest.raises(ConfigError, match=f"LONGHAUL_MODELS: .*{path}"):
        file.look()
    assert not file.look()
    assert names(file) == ["one"]
    path.write_text(entries("two"))
    file.look()
    assert file.look()
    assert names(file) == ["two"]


def test_another_text_of_the_same_models_is_no_change(path: Path) -> None:
    file = opened(path)
    path.write_text("# the same\n" + entries("one"))
    assert not file.look()
    assert not file.look()


def test_a_link_that_leads_to_another_folder_is_a_change_as_kubernetes_makes_it(tmp_path: Path) -> None:
    for folder, content in (("..1", entries("one")), ("..2", entries("one", "two"))):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "models.toml").write_text(content)
    data, path = tmp_path / "..data", tmp_path / "models.toml"
    data.symlink_to("..1")
    path.symlink_to("..data/models.toml")
    file = opened(path)
    (tmp_path / "..next").symlink_to("..2")
    (tmp_path / "..next").replace(data)
    (tmp_path / "..1" / "models.toml").unlink()
    file.look()
    assert file.look()
    assert names(file) == ["one", "two"]


async def test_whatever_reading_raises_the_next_change_is_seen(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models_file, "LOOK_SECONDS", 0)
    file, said = opened(path), list[str]()
    looks = iter([RecursionError("of its text"), ConfigError("it is wrong"), True])

    def look() -> bool:
        found = next(looks)
        if isinstance(found, Exception):
            raise found
        return bool(found)

    monkeypatch.setattr(file, "look", look)
    assert await anext(file.changes(said.append)) is file.catalog
    assert said == [f"{each}; the models stay as they were" for each in ("RecursionError", "it is wrong")]
