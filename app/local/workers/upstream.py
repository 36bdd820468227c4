"""The models file of `longhaul up --upstream URL`, by what the server says of its model, and that of `--model`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from config.models import VLLM_SERVER, load_models
from config.settings import ConfigError, Settings

ANSWER_SECONDS = 10.0
KEY_VARIABLE = "LONGHAUL_UPSTREAM_KEY"


async def attached(
    settings: Settings, folder: Path, urls: Sequence[str], model: str | None, tokenizer: str | None
) -> tuple[Settings, str]:
    """The settings with a models file in `folder`, and the model in it: that of this name, or the first of the server.

    Raises ConfigError.
    """
    listed = await _listed(urls[0].rstrip("/"), settings.upstream_key)
    bases = [each for each in listed if not each.get("parent")]
    names = [str(each["id"]) for each in bases]
    if not bases or (model is not None and model not in names):
        raise ConfigError(f"--model: {urls[0]} does not serve {model!r} (it has {', '.join(names) or 'none'})")
    base = bases[names.index(model) if model is not None else 0]
    found = tokenizer or _tokenizer(base, urls[0])
    adapters = [str(each["id"]) for each in listed if each.get("parent")]
    return with_models_file(settings, folder, "--upstream", _models_file(base["id"], urls, found, adapters))


def with_models_file(settings: Settings, folder: Path, option: str, text: str) -> tuple[Settings, str]:
    """The settings with a models file in `folder`, and the first model in it. Raises ConfigError about the option."""
    file = folder / "models.toml"
    file.write_text(text, encoding="utf-8")
    try:
        return settings.model_copy(update={"models": file}), load_models(file).models[0].name
    except ConfigError as error:
        raise ConfigError(f"{option}: {str(error).removeprefix(f'LONGHAUL_MODELS: {file}: ')}") from None


async def _listed(url: str, key: str | None) -> list[Mapping[str, Any]]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        async with httpx.AsyncClient(timeout=ANSWER_SECONDS, headers=headers) as client:
            answer = await client.get(f"{url}/v1/models")
            if answer.status_code in (401, 403):
                raise ConfigError(f"--upstream: {url} asks for a key; set {KEY_VARIABLE}")
            return [each for each in answer.raise_for_status().json()["data"] if each["id"]]
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ConfigError(f"--upstream: {url} does not answer as vLLM does ({type(error).__name__})") from None
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"--upstream: {url} does not list its models as vLLM does") from None


def _tokenizer(base: Mapping[str, Any], url: str) -> str:
    """Where the server has the model from: a hub id, or a folder, which has to be here as well."""
    root = str(base.get("root") or "")
    if root.startswith("/") and not Path(root).is_dir():
        raise ConfigError(
            f"--upstream: {url} has its model from {root}, which is no folder here; name the folder or hub id of its "
            "tokenizer and config with --tokenizer"
        )
    return root or str(base["id"])


def _models_file(name: str, urls: Sequence[str], tokenizer: str, adapters: Sequence[str]) -> str:
    tokenizer = str(Path(tokenizer).resolve()) if Path(tokenizer).is_dir() else tokenizer
    lines = ["[[models]]", f"name = {toml(name)}", f"engine = {toml(VLLM_SERVER)}", f"url = {toml(list(urls))}"]
    lines += [f"tokenizer = {toml(tokenizer)}"]
    for adapter in adapters:
        lines += ["[[models.adapters]]", f"name = {toml(adapter)}"]
    return "\n".join(lines) + "\n"


def toml(value: str | list[str]) -> str:
    """As TOML writes it."""
    return json.dumps(value, ensure_ascii=False)
