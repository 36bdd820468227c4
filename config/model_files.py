"""A model's own files, and what they say of its family: of a folder, or of a hub id's snapshot on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from config.families import ModelFiles, Reading, reading_of
from config.models import AUTO, NONE, DefaultSampling, ServedModel
from config.settings import ConfigError

_NEEDED = [
    *("config.json", "generation_config.json", "tokenizer_config.json", "*.jinja", "chat_template.json"),
    *("tekken.json", "tokenizer.model.v*"),
]
"""The files of a hub id that say its family; vLLM gets the rest."""
_MISTRAL_WEIGHTS = "consolidated*.safetensors"
_FIELDS = ("format", "tool_parser", "reasoning_parser")


def resolved(model: ServedModel) -> tuple[ServedModel, str]:
    """The model with what its files say of its family, and a line about it. Downloads the files of a hub id.

    Blocks. Raises ConfigError if they cannot be had.
    """
    if model.is_resolved:
        return model, _line(model, model, "")
    _, reading = _read(model, download=True)
    chosen = model.resolved(reading)
    return chosen, _line(model, chosen, reading.reason)


def description(model: ServedModel) -> str:
    """A line about the model's family, and what it refuses, as far as files on this machine say it."""
    try:
        files, reading = _read(model, download=False)
    except ConfigError:
        away = "its worker reads its files, which are not on this machine"
        return _line(model, model, "" if model.is_resolved else away)
    line = _line(model, model, "") if model.is_resolved else _line(model, model.resolved(reading), reading.reason)
    proof = None
    with suppress(ImportError):  # jinja may be missing where no worker runs
        proof = files.proof(reading, images=model.images)
    return "; ".join([line, *_overruled(model, reading), *(proof.lines() if proof is not None else ())])


def _overruled(model: ServedModel, reading: Reading) -> Iterator[str]:
    """Where the models file sets another parser than the files say. Its worker proves whether it reads calls."""
    if model.format == "harmony" or reading.format == "harmony":
        return
    for name in ("tool_parser", "reasoning_parser"):
        chosen, read = getattr(model, name), getattr(reading, name)
        if chosen != read and AUTO not in (chosen, read):
            yield f"{name} {chosen or NONE} is set, its files say {read or NONE}"


def _line(model: ServedModel, chosen: ServedModel, reason: str) -> str:
    values = ", ".join(f"{field} {getattr(chosen, field) or NONE}" for field in _FIELDS)
    if chosen.default_sampling:
        values += (
            f", default_sampling {' '.join(f'{name}={value:g}' for name, value in chosen.default_sampling.items())}"
        )
    return f"{values} ({reason})" if reason else values


def _read(model: ServedModel, *, download: bool) -> tuple[ModelFiles, Reading]:
    """Raises ConfigError if the files cannot be had."""
    try:
        files = _files(model, download=download)
        return files, reading_of(files)
    except ValueError:  # no hub id, but what else vLLM loads from
        return ModelFiles(), reading_of(ModelFiles())
    except (ImportError, OSError) as error:
        what = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise ConfigError(
            f"model {model.name!r}: its files cannot be read ({what}). "
            "Without them, set format, tool_parser, reasoning_parser and default_sampling in the models file"
        ) from None


def _files(model: ServedModel, *, download: bool) -> ModelFiles:
    """Raises what huggingface_hub raises: ValueError for what is no hub id."""
    args = model.engine_args
    tokenizer, revision = args.get("tokenizer"), args.get("tokenizer_revision")
    folder = _folder(model.path, model.revision, args, download)
    written = folder if tokenizer is None else _folder(tokenizer, revision, args, download)
    source, at = (model.path, model.revision) if tokenizer is None else (tokenizer, revision)
    return read_files(folder, written, _tokenizer_mode(written, source, at, args, download))


def _folder(path: str, revision: str | None, args: Mapping[str, Any], download: bool) -> Path:
    """The folder with a model's files, or those of a hub id that are needed. Raises what huggingface_hub raises."""
    if Path(path).is_dir():
        return Path(path)
    from huggingface_hub import snapshot_download  # vLLM brings it; where no worker runs it may be missing

    return Path(
        snapshot_download(
            path,
            revision=revision,
            cache_dir=args.get("download_dir"),
            token=args.get("hf_token"),
            local_files_only=not download,
            allow_patterns=_NEEDED,
        )
    )


def _tokenizer_mode(folder: Path, source: str, revision: str | None, args: Mapping[str, Any], download: bool) -> str:
    """vLLM's, with "mistral" for a hub id with weights in Mistral's own form: the files that are needed lack them."""
    mode: str = args.get("tokenizer_mode", "auto")
    if mode != "auto" or Path(source).is_dir() or not download or _mistral_marks(folder) is None:
        return mode
    from huggingface_hub import list_repo_files

    try:
        names = list_repo_files(source, revision=revision, token=args.get("hf_token"))
    except OSError:  # away: what is in the cache decides
        return mode
    return "mistral" if any(fnmatch(name, _MISTRAL_WEIGHTS) for name in names) else "hf"


def read_files(folder: Path, tokenizer: Path, tokenizer_mode: str = "auto") -> ModelFiles:
    """What the files in both folders say. A file that is missing or cannot be read says nothing."""
    model_type = _json(folder / "config.json").get("model_type")
    # As vLLM chooses: Mistral's own tokenizer only beside weights in Mistral's own form.
    mistrals = tokenizer_mode == "mistral" or (tokenizer_mode == "auto" and any(tokenizer.glob(_MISTRAL_WEIGHTS)))
    marks = _mistral_marks(tokenizer) if mistrals else None
    templates = dict(_templates(tokenizer)) if marks is None else {}
    return ModelFiles(
        model_type=model_type if isinstance(model_type, str) else None,
        template="\n".join(templates.values()) if marks is None else marks,
        is_mistral=marks is not None,
        default_sampling=_sampling(_json(folder / "generation_config.json")),
        templates=templates,
    )


def _sampling(recommended: Mapping[str, Any]) -> Mapping[str, float]:
    """The sampling parameters among what a model's makers recommend; none if one is out of bounds."""
    try:
        return DefaultSampling.model_validate(
            {name: recommended.get(name) for name in DefaultSampling.model_fields}
        ).model_dump(exclude_none=True)
    except ValidationError:
        return {}


def _templates(folder: Path) -> Iterator[tuple[str, str]]:
    """The chat templates by name, in the places where transformers looks for them."""
    paths = [("default", folder / "chat_template.jinja")]
    paths += [(path.stem, path) for path in sorted(folder.glob("additional_chat_templates/*.jinja"))]
    if files := [(name, text) for name, path in paths if (text := _text(path))]:
        yield from files
        return
    for file, name in (("tokenizer_config.json", "default"), ("chat_template.json", "processor")):
        found = _json(folder / file).get("chat_template")
        for template in found if isinstance(found, list) else [{"name": name, "template": found}]:
            if isinstance(template, dict) and isinstance(template.get("template"), str):
                yield str(template.get("name")), template["template"]


def _mistral_marks(folder: Path) -> str | None:
    """The marks that Mistral's own tokenizer writes; None: the model has another tokenizer."""
    if not (folder / "tekken.json").is_file():
        return "[TOOL_CALLS]" if any(folder.glob("tokenizer.model.v*")) else None
    return "[TOOL_CALLS] [THINK]" if '"[THINK]"' in _text(folder / "tekken.json") else "[TOOL_CALLS]"


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(_text(path) or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
