"""models.toml: its entries, and one line for each error."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.models import ModelCatalog, load_models, require_folders
from config.settings import CHECKOUT, ConfigError


def catalog(folder: Path, text: str) -> ModelCatalog:
    (folder / "models.toml").write_text(text)
    return load_models(folder / "models.toml")


def test_a_hub_id_is_one_line(tmp_path: Path) -> None:
    model = catalog(tmp_path, '[[models]]\nname = "Qwen/Qwen3-8B"\npath = "Qwen/Qwen3-8B"\n').models[0]
    assert (model.path, model.queue, model.engine) == ("Qwen/Qwen3-8B", "model.Qwen/Qwen3-8B", "vllm")
    assert model.context_length is None
    assert dict(model.engine_args) == {}


def test_a_model_folder_is_relative_to_the_models_file(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    model = catalog(tmp_path, '[[models]]\nname = "m"\npath = "./weights"\n').models[0]
    assert model.path == str((tmp_path / "weights").resolve())


def test_only_sampling_defaults_that_are_set_are_used(tmp_path: Path) -> None:
    text = '[[models]]\nname = "m"\npath = "x"\n[models.default_sampling]\ntemperature = 0.6\n'
    assert catalog(tmp_path, text).models[0].default_sampling == {"temperature": 0.6}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "models"),
        ("models = []", "models"),
        ("[[models]", "is not valid TOML"),
        ('[[models]]\npath = "x"', "models.0.name"),
        ('[[models]]\nname = "a b"\npath = "x"', "models.0.name"),
        ('[[models]]\nname = "m"', "model 'm' has no path"),
        ('[[models]]\nname = "m"\npath = "x"\nspeed = 9', "models.0.speed"),
        ('[[models]]\nname = "m"\npath = "x"\ncontext_length = "long"', "models.0.context_length"),
        ('[[models]]\nname = "m"\npath = "x"\n[models.default_sampling]\nseed = 1', "default_sampling.seed"),
        ('[[models]]\nname = "m"\npath = "x"\n[[models]]\nname = "m"\npath = "y"', "two models have the name 'm'"),
        (
            '[[models]]\nname = "m"\npath = "x"\nqueue = "q"\n[[models]]\nname = "n"\npath = "y"\nqueue = "q"',
            "two models have the queue 'q'",
        ),
    ],
)
def test_an_error_of_the_models_file_is_one_line_that_names_file_and_entry(
    tmp_path: Path, text: str, complaint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        catalog(tmp_path, text)
    message = str(caught.value)
    assert message.startswith(f"LONGHAUL_MODELS: {tmp_path}/models.toml")
    assert complaint in message
    assert "\n" not in message


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
    two = catalog(tmp_path, '[[models]]\nname = "m"\npath = "x"\n[[models]]\nname = "n"\npath = "y"\n')
    assert two.choose("n").name == "n"
    with pytest.raises(ConfigError, match=r"LONGHAUL_MODEL: name the model .* \(one of m, n\)"):
        two.choose(None)
    with pytest.raises(ConfigError, match="LONGHAUL_MODEL: no model 'o' in the models file"):
        two.choose("o")


def test_the_only_model_needs_no_name(tmp_path: Path) -> None:
    assert catalog(tmp_path, '[[models]]\nname = "m"\npath = "x"\n').choose(None).name == "m"


def test_the_models_file_of_the_checkout_serves_the_demo_model() -> None:
    assert load_models(CHECKOUT / "config" / "models.toml").models[0].name == "longhaul-demo"


def test_limits_and_verbosity_are_the_model_s_own(tmp_path: Path) -> None:
    text = (
        '[[models]]\nname = "m"\npath = "x"\nqueue_timeout_seconds = 5.0\nrun_timeout_seconds = 9.5\nverbosity = true\n'
    )
    model = catalog(tmp_path, text).models[0]
    assert (model.queue_timeout_seconds, model.run_timeout_seconds, model.verbosity) == (5.0, 9.5, True)
    with pytest.raises(ConfigError, match="run_timeout_seconds"):
        catalog(tmp_path, '[[models]]\nname = "m"\npath = "x"\nrun_timeout_seconds = 0.0\n')


def test_a_model_of_a_hub_may_be_pinned_to_a_revision(tmp_path: Path) -> None:
    pinned = '[[models]]\nname = "m"\npath = "org/m"\nrevision = "0123abc"\n'
    assert catalog(tmp_path, pinned).models[0].revision == "0123abc"
    with pytest.raises(ConfigError, match="model 'm': revision is for models of a hub"):
        catalog(tmp_path, pinned.replace("org/m", "."))


ADAPTED = '[[models]]\nname = "m"\npath = "x"\n[[models.adapters]]\nname = "m-legal"\npath = "org/legal"\n'


def test_an_adapter_is_a_model_of_its_own_on_the_queue_of_its_base(tmp_path: Path) -> None:
    models = catalog(tmp_path, ADAPTED)
    legal = models.get("m-legal")
    assert legal is not None
    assert (legal.name, legal.base, legal.queue, legal.path) == ("m-legal", "m", "model.m", "x")
    assert [model.name for model in models.models] == ["m"]
    assert [model.name for model in models.served] == ["m", "m-legal"]
    assert [(each.name, each.path) for each in models.models[0].adapters] == [("m-legal", "org/legal")]


def test_a_worker_cannot_serve_an_adapter_alone(tmp_path: Path) -> None:
    models = catalog(tmp_path, ADAPTED)
    assert models.choose(None).name == "m"
    with pytest.raises(ConfigError, match="'m-legal' is an adapter; workers of 'm' serve it"):
        models.choose("m-legal")


def test_an_adapter_has_a_unique_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="two models have the name 'm'"):
        catalog(tmp_path, ADAPTED.replace("m-legal", "m"))


def test_parsers_are_automatic_unless_they_are_set(tmp_path: Path) -> None:
    entry = '[[models]]\nname = "m"\npath = "x"\n'
    for written, parser in (("", "auto"), ('tool_parser = "none"', None), ('tool_parser = "hermes"', "hermes")):
        assert catalog(tmp_path, entry + written).models[0].tool_parser == parser
    with pytest.raises(ConfigError, match=r"models\.0\.reasoning_parser"):
        catalog(tmp_path, f'{entry}reasoning_parser = ""')


def test_a_format_is_automatic_unless_it_is_set(tmp_path: Path) -> None:
    assert catalog(tmp_path, '[[models]]\nname = "m"\npath = "x"\n').models[0].format == "auto"
    assert catalog(tmp_path, '[[models]]\nname = "m"\npath = "x"\nformat = "chat"\n').models[0].format == "chat"


def test_an_adapter_has_the_format_of_its_base(tmp_path: Path) -> None:
    text = '[[models]]\nname = "m"\npath = "x"\nformat = "harmony"\n[[models.adapters]]\nname = "a"\npath = "y"\n'
    adapter = catalog(tmp_path, text).get("a")
    assert adapter is not None and adapter.harmony
