"""The tiny gpt-oss as a folder that vLLM loads: made from the compact one on first use, and kept in build/."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from config.models import ServedModel

COMPACT = Path(__file__).parent / "gpt_oss"
BUILT = Path(__file__).parents[2] / "build" / "test-models"
_KEPT = ("config.json", "generation_config.json")
_BY_TOKEN = ("model.embed_tokens.weight", "lm_head.weight")


def script() -> dict[str, dict[str, Any]]:
    """The transcripts that it knows, by name."""
    loaded = json.loads((COMPACT / "script.json").read_text(encoding="utf-8"))
    return {transcript["name"]: transcript for transcript in loaded}


def gpt_oss_folder() -> Path:
    """The folder; the first call makes it in some seconds. Needs torch."""
    digest = hashlib.sha256()
    for file in sorted(COMPACT.iterdir()):
        digest.update(file.read_bytes())
    folder = BUILT / f"gpt_oss-{digest.hexdigest()[:12]}"
    if not folder.is_dir():
        BUILT.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix="gpt_oss-", dir=BUILT))
        _write(made)
        try:
            made.rename(folder)  # a second process finds the folder there
        except OSError:
            shutil.rmtree(made)
    return folder


def gpt_oss_model(**changes: Any) -> ServedModel:
    """The model's entry of a models file; `changes` are fields of ServedModel."""
    fields: dict[str, Any] = {
        "name": "tiny-gpt-oss",
        "path": str(gpt_oss_folder()),
        "queue": "model.tiny-gpt-oss",
        "context_length": 4096,
        "engine": "vllm",
        "engine_args": dict(ENGINE_ARGS),
        "default_sampling": {"temperature": 0.0},
        "format": "harmony",
        **changes,
    }
    return ServedModel(**fields)


ENGINE_ARGS = {
    "dtype": "float32",
    "enforce_eager": True,
    "block_size": 32,
    "kv_cache_memory_bytes": 1 << 28,
    "max_num_seqs": 64,
    "scheduling_policy": "priority",
}


def _write(folder: Path) -> None:
    """Its weights have rows for the tokens of its script alone: an unused token gets a zero row, whose logit is 0."""
    import torch
    from safetensors.torch import load_file, save_file

    from tests.models.tokenizer import SIZE, write

    for name in _KEPT:
        shutil.copy(COMPACT / name, folder / name)
    write(folder)
    weights = load_file(COMPACT / "compact.st")  # not *.safetensors: vLLM would load it
    used = weights.pop("used")
    for name in _BY_TOKEN:
        rows = weights[name]
        weights[name] = torch.zeros(SIZE, rows.shape[1], dtype=rows.dtype)
        weights[name][used] = rows[1:]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
