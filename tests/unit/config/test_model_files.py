"""The files of a model, where transformers and Mistral put them, and what is chosen by them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from app.cli import cli
from config import model_files
from config.model_files import description, read_files, resolved
from config.models import AUTO, ServedModel, load_models
from config.settings import ConfigError

QWEN = (
    "{% if tools %}{{ tools }} <tool_call>{'name': 'f', 'arguments': {}}</tool_call>{% endif %}"
    "{% if not enable_thinking %}<think></think>{% endif %}"
)


def write(folder: Path, **files: Any) -> Path:
    """Writes files of JSON, or of text; the name's first underscores stand for dots."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def model(tmp_path: Path, entry: str) -> ServedModel:
    (tmp_path / "models.toml").write_text(f'[[models]]\nname = "m"\n{entry}\n')
    return load_models(tmp_path / "models.toml").models[0]


def qwen3(folder: Path) -> Path:
    return write(folder, config__json={"model_type": "qwen3"}, chat_template__jinja=QWEN)


def cached(folder: Path, name: str) -> Path:
    """A snapshot in a cache of the hub, as huggingface_hub lays it out."""
    entry = folder / f"models--{name.replace('/', '--')}"
    write(entry / "refs", main="abc123")
    return qwen3(entry / "snapshots" / "abc123")


@pytest.mark.parametrize(
    "files",
    [
        {"chat_template__jinja": QWEN},
        {"tokenizer_config__json": {"chat_template": QWEN}},
        {"tokenizer_config__json": {"chat_template": [{"name": "default", "template": QWEN}]}},
        {"tokenizer_config__json": {}, "chat_template__json": {"chat_template": QWEN}},
        {"tokenizer_config__json": {"chat_template": "an older one"}, "chat_template__jinja": QWEN},
    ],
)
def test_a_chat_template_is_found_wherever_transformers_looks(tmp_path: Path, files: dict[str, Any]) -> None:
    assert read_files(tmp_path, write(tmp_path, **files)).template == QWEN


def test_templates_of_several_names_count_together(tmp_path: Path) -> None:
    write(tmp_path, chat_template__jinja="plain")
    write(tmp_path / "additional_chat_templates", tool_use__jinja=QWEN)
    assert read_files(tmp_path, tmp_path).template == f"plain\n{QWEN}"


def test_a_file_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "chat_template.json").write_bytes(b"\xff")
    for broken in ("{", "[]", "\x00"):
        write(tmp_path, config__json=broken, tokenizer_config__json=broken, chat_template__jinja="")
        files = read_files(tmp_path, tmp_path)
        assert (files.model_type, files.template, files.is_mistral) == (None, "", False)


@pytest.mark.parametrize(
    ("name", "content", "marks"),
    [
        ("tekken__json", {"special_tokens": [{"token_str": "[THINK]"}]}, "[TOOL_CALLS] [THINK]"),
        ("tekken__json", {"special_tokens": []}, "[TOOL_CALLS]"),
        ("tokenizer__model.v3", "", "[TOOL_CALLS]"),
    ],
)
def test_mistrals_own_tokenizer_says_what_it_writes(tmp_path: Path, name: str, content: Any, marks: str) -> None:
    files = read_files(tmp_path, write(tmp_path, params__json={}, consolidated__safetensors="", **{name: content}))
    assert (files.template, files.is_mistral) == (marks, True)


@pytest.mark.parametrize(
    ("weights", "mode", "own"),
    [
        ("consolidated-00001-of-00002__safetensors", "auto", True),
        ("consolidated__safetensors", "hf", False),
        ("model__safetensors", "auto", False),
        ("model__safetensors", "mistral", True),
    ],
)
def test_vllm_takes_mistrals_own_tokenizer_beside_mistrals_own_weights_alone(
    tmp_path: Path, weights: str, mode: str, own: bool
) -> None:
    folder = write(tmp_path / "weights", tekken__json={}, chat_template__jinja="[TOOL_CALLS]", **{weights: ""})
    write(folder, config__json={"model_type": "mistral"})
    _, line = resolved(model(tmp_path, f'path = "./weights"\nengine_args = {{ tokenizer_mode = "{mode}" }}'))
    assert ("in its tokenizer" in line) is own


def test_a_name_and_a_path_are_enough(tmp_path: Path) -> None:
    qwen3(tmp_path / "weights")
    chosen, line = resolved(model(tmp_path, 'path = "./weights"'))
    assert (chosen.format, chosen.tool_parser, chosen.reasoning_parser) == ("chat", "hermes", "qwen3")
    assert line == (
        "format chat, tool_parser hermes, reasoning_parser qwen3 "
        "(Hermes' form: <tool_call> in its chat template; its chat template shows no calls)"
    )


@pytest.mark.parametrize(
    ("entry", "tools", "reasoning"),
    [
        ('tool_parser = "pythonic"', "pythonic", "qwen3"),
        ('tool_parser = "none"', None, "qwen3"),
        ('reasoning_parser = "none"', "hermes", None),
        ('tool_parser = "none"\nreasoning_parser = "none"', None, None),
    ],
)
def test_the_models_file_overrules_a_models_own_files(
    tmp_path: Path, entry: str, tools: str | None, reasoning: str | None
) -> None:
    qwen3(tmp_path / "weights")
    chosen, line = resolved(model(tmp_path, f'path = "./weights"\n{entry}'))
    assert (chosen.tool_parser, chosen.reasoning_parser) == (tools, reasoning)
    assert f"tool_parser {tools or 'none'}" in line


@pytest.mark.parametrize(
    ("entry", "harmony"),
    [("", True), ('format = "chat"', False), ('format = "harmony"', True), ('tool_parser = "openai"', True)],
)
def test_harmony_follows_from_the_type_unless_the_models_file_says_otherwise_and_brings_its_own_parsers(
    tmp_path: Path, entry: str, harmony: bool
) -> None:
    write(tmp_path / "weights", config__json={"model_type": "gpt_oss"})
    chosen, _ = resolved(model(tmp_path, f'path = "./weights"\n{entry}'))
    assert (chosen.harmony, chosen.tool_parser, chosen.is_resolved) == (harmony, None, True)


def test_a_tokenizer_of_its_own_folder_brings_the_template(tmp_path: Path) -> None:
    write(tmp_path / "weights", config__json={"model_type": "qwen3"})
    tokenizer = write(tmp_path / "tokenizer", chat_template__jinja=QWEN)
    entry = f'path = "./weights"\nengine_args = {{ tokenizer = "{tokenizer}" }}'
    assert resolved(model(tmp_path, entry))[0].tool_parser == "hermes"


def test_a_hub_id_in_the_cache_is_read_without_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached(tmp_path / "hub", "org/m")
    served = model(tmp_path, f'path = "org/m"\nengine_args = {{ download_dir = "{tmp_path / "hub"}" }}')
    with mock.patch("config.model_files._files", wraps=model_files._files) as reads:
        assert "tool_parser hermes" in description(served)
    assert reads.call_count == 1
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert resolved(served)[0].reasoning_parser == "qwen3"


def test_a_hub_id_that_is_not_here_is_left_to_its_worker(tmp_path: Path) -> None:
    served = model(tmp_path, f'path = "org/m"\nengine_args = {{ download_dir = "{tmp_path}" }}')
    assert (served.format, served.tool_parser, served.reasoning_parser) == (AUTO, AUTO, AUTO)
    assert description(served) == (
        "format auto, tool_parser auto, reasoning_parser auto "
        "(its worker reads its files, which are not on this machine)"
    )


def test_files_that_cannot_be_had_are_an_error_that_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    served = model(tmp_path, f'path = "org/m"\nengine_args = {{ download_dir = "{tmp_path}" }}')
    with pytest.raises(ConfigError, match=r"^model 'm': its files .* set format, tool_parser, reasoning_parser and"):
        resolved(served)


def test_what_is_no_hub_id_names_no_family(tmp_path: Path) -> None:
    chosen, line = resolved(model(tmp_path, 'path = "s3://bucket/m"'))
    assert (chosen.format, chosen.tool_parser, chosen.reasoning_parser) == ("chat", None, None)
    assert line.endswith("(its files name no family that is known)")


def test_longhaul_models_says_what_was_chosen_and_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    qwen3(tmp_path / "weights")
    model(tmp_path, 'path = "./weights"\n[[models]]\nname = "n"\nengine = "tests.support.scripted:ScriptedEngine"')
    monkeypatch.setenv("LONGHAUL_MODELS", str(tmp_path / "models.toml"))
    monkeypatch.setenv("LONGHAUL_HOME", str(tmp_path / "home"))
    cli(["models"], standalone_mode=False)
    first, second = capsys.readouterr().out.splitlines()
    assert "tool_parser hermes, reasoning_parser qwen3 (Hermes' form: <tool_call> in its chat template; " in first
    assert second.endswith("\tformat chat, tool_parser none, reasoning_parser none")


def test_longhaul_models_names_the_parsers_that_the_models_file_sets_against_its_files(tmp_path: Path) -> None:
    qwen3(tmp_path / "weights")
    said = description(model(tmp_path, 'path = "./weights"\ntool_parser = "pythonic"\nreasoning_parser = "qwen3"'))
    assert "; tool_parser pythonic is set, its files say hermes" in said
    assert "reasoning_parser qwen3 is set" not in said


def test_a_model_that_is_resolved_needs_no_files(tmp_path: Path) -> None:
    entry = 'path = "org/m"\nformat = "chat"\ntool_parser = "hermes"\nreasoning_parser = "none"\ndefault_sampling = {}'
    served = model(tmp_path, entry)
    assert resolved(served) == (served, "format chat, tool_parser hermes, reasoning_parser none")


RECOMMENDED = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [1, 2]}


@pytest.mark.parametrize(
    ("recommended", "entry", "sampling"),
    [
        (RECOMMENDED, "", {"temperature": 0.6, "top_k": 20, "top_p": 0.95}),
        (RECOMMENDED, "default_sampling = {}", {}),
        (RECOMMENDED, "default_sampling = { top_k = 5 }", {"top_k": 5}),
        # A recommendation that no request may have is none.
        ({"temperature": "hot"}, "", {}),
        ({"top_p": 1.5, "top_k": 20}, "", {}),
        ({"temperature": None}, "", {}),
    ],
)
def test_sampling_follows_from_what_its_makers_recommend_unless_the_models_file_has_some(
    tmp_path: Path, recommended: dict[str, Any], entry: str, sampling: dict[str, float]
) -> None:
    write(qwen3(tmp_path / "weights"), generation_config__json=recommended)
    chosen, line = resolved(model(tmp_path, f'path = "./weights"\n{entry}'))
    assert chosen.default_sampling == sampling
    assert ("default_sampling temperature=0.6 top_p=0.95 top_k=20 (" in line) is (len(sampling) == 3)
