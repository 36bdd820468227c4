"""models.toml: its entries, and one line for each error."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.models import Upstream, load_models, require_folders
from config.settings import ConfigError
from tests.unit.config.cases import NAMED, catalog, check_complaints

OTHER = '[[models]]\nname = "n"\npath = "y"\n'


def test_a_hub_id_is_one_line(tmp_path: Path) -> None:
    model = catalog(tmp_path, '[[models]]\nname = "Qwen/Qwen3-8B"\npath = "Qwen/Qwen3-8B"\n').models[0]
    assert (model.path, model.queue, model.engine) == ("Qwen/Qwen3-8B", "model.Qwen/Qwen3-8B", "vllm")
    assert (model.context_length, dict(model.engine_args)) == (None, {})
    assert (model.format, model.tool_parser, model.reasoning_parser) == ("auto", "auto", "auto")


def test_a_model_folder_is_relative_to_the_models_file(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    model = catalog(tmp_path, '[[models]]\nname = "m"\npath = "./weights"\n').models[0]
    assert model.path == str((tmp_path / "weights").resolve())


@pytest.mark.parametrize(
    ("entry", "field", "value"),
    [
        ("[models.default_sampling]\ntemperature = 0.6", "default_sampling", {"temperature": 0.6}),
        ("queue_timeout_seconds = 5.0", "queue_timeout_seconds", 5.0),
        ("run_timeout_seconds = 9.5", "run_timeout_seconds", 9.5),
        ("verbosity = true", "verbosity", True),
        ('revision = "0123abc"', "revision", "0123abc"),
        ('tool_parser = "none"', "tool_parser", None),
        ('tool_parser = "hermes"', "tool_parser", "hermes"),
        ('format = "chat"', "format", "chat"),
    ],
)
def test_an_option_of_a_model_is_read(tmp_path: Path, entry: str, field: str, value: object) -> None:
    assert getattr(catalog(tmp_path, NAMED + entry).models[0], field) == value


WRONG = [
    ("", "models"),
    ("models = []", "models"),
    ("[[models]", "is not valid TOML"),
    ('[[models]]\npath = "x"', "models.0.name"),
    ('[[models]]\nname = "a b"\npath = "x"', "models.0.name"),
    ('[[models]]\nname = "m"', "model 'm' has no path"),
    (f"{NAMED}speed = 9", "models.0.speed"),
    (f'{NAMED}context_length = "long"', "models.0.context_length"),
    (f"{NAMED}run_timeout_seconds = 0.0", "models.0.run_timeout_seconds"),
    (f'{NAMED}reasoning_parser = ""', "models.0.reasoning_parser"),
    ('[[models]]\nname = "m"\npath = "."\nrevision = "0"', "model 'm': revision is for models of a hub"),
    (f"{NAMED}[models.default_sampling]\nseed = 1", "default_sampling.seed"),
    (NAMED + NAMED, "two models have the name 'm'"),
    (f'{NAMED}adapters = [{{name = "m", path = "y"}}]', "two models have the name 'm'"),
    (f'{NAMED}queue = "q"\n{OTHER}queue = "q"', "two models have the queue 'q'"),
]


def test_an_error_of_the_models_file_is_one_line_that_names_file_and_entry(tmp_path: Path) -> None:
    check_complaints(tmp_path, WRONG)


@pytest.mark.parametrize("entry", ['path = "./nowhere"', 'path = "x"\nadapters = [{name = "a", path = "./nowhere"}]'])
def test_only_a_worker_needs_the_folders_of_its_model(tmp_path: Path, entry: str) -> None:
    (model,) = catalog(tmp_path, f'[[models]]\nname = "m"\n{entry}').models
    with pytest.raises(ConfigError, match=r"LONGHAUL_MODELS: model 'm': the path '.*/nowhere' is not a folder"):
        require_folders(model)
    (tmp_path / "nowhere").mkdir()
    require_folders(model)


def test_a_missing_models_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"LONGHAUL_MODELS: cannot read .*none\.toml: No such file"):
        load_models(tmp_path / "none.toml")


def test_a_worker_must_name_one_of_several_models(tmp_path: Path) -> None:
    two = catalog(tmp_path, NAMED + OTHER)
    assert two.choose("n").name == "n"
    with pytest.raises(ConfigError, match=r"LONGHAUL_MODEL: name the model .* \(one of m, n\)"):
        two.choose(None)
    with pytest.raises(ConfigError, match="LONGHAUL_MODEL: no model 'o' in the models file"):
        two.choose("o")
    assert catalog(tmp_path, NAMED).choose(None).name == "m"


def test_an_adapter_is_a_model_of_its_own_on_the_queue_of_its_base(tmp_path: Path) -> None:
    adapted = 'format = "harmony"\n[[models.adapters]]\nname = "m-legal"\npath = "org/legal"\n'
    models = catalog(tmp_path, NAMED + adapted)
    legal = models.get("m-legal")
    assert legal is not None and legal.harmony
    assert (legal.name, legal.base, legal.queue, legal.path) == ("m-legal", "m", "model.m", "x")
    assert [model.name for model in models.models] == ["m"]
    assert [model.name for model in models.served] == ["m", "m-legal"]
    assert [(each.name, each.path) for each in models.models[0].adapters] == [("m-legal", "org/legal")]
    assert models.choose(None).name == "m"
    with pytest.raises(ConfigError, match="'m-legal' is an adapter; workers of 'm' serve it"):
        models.choose("m-legal")


SERVER = '[[models]]\nname = "m"\nengine = "vllm-server"\ntokenizer = "./tok"\nurl = '


def test_a_server_elsewhere_has_urls_and_its_model_s_tokenizer_here(tmp_path: Path) -> None:
    model = catalog(tmp_path, SERVER + '"http://gpu-1:8000/"\nslots = 32\napi_key = "${KEY}"').models[0]
    assert model.upstream == Upstream(("http://gpu-1:8000",), "${KEY}", 32)
    assert (model.path, model.tool_parser) == (str((tmp_path / "tok").resolve()), "auto")
    assert "KEY" not in repr(model)
    two = catalog(tmp_path, SERVER + '["http://a:1", "http://b:1"]').models[0].upstream
    assert two is not None and two.slots == 64
    assert two.only(None, "of the settings") == Upstream(("http://a:1",), "of the settings")
    assert two.only("http://b:1").urls == ("http://b:1",)
    with pytest.raises(ConfigError, match="LONGHAUL_UPSTREAM"):
        two.only("http://c:1")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (NAMED + 'url = "http://a:1"', "url is for engine = 'vllm-server'"),
        ('[[models]]\nname = "m"\nengine = "vllm-server"\nurl = "http://a:1"', "needs tokenizer"),
        ('[[models]]\nname = "m"\nengine = "vllm-server"\ntokenizer = "x"', "needs url"),
        (SERVER + '"http://user:password@a:1"', "url"),
        (SERVER + '["http://a:1", "http://a:1"]', "two models have the url"),
        (SERVER + '"http://a:1"\npath = "x"', "path is for an engine of its own"),
        (NAMED + '[[models.adapters]]\nname = "a"', "the adapter 'a' has no path"),
    ],
)
def test_what_a_server_elsewhere_needs_and_what_is_for_it_alone(tmp_path: Path, entry: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        catalog(tmp_path, entry)
