"""The network: gpt-oss's architecture, very small, on a reduced vocabulary or on the whole one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import GptOssConfig, GptOssForCausalLM

from tests.models.gpt_oss_training.vocabulary import SIZE, Vocabulary

CONTEXT_LENGTH = 8192
WIDTH, LAYERS, HEADS, KV_HEADS, HEAD_WIDTH, EXPERTS = 64, 4, 4, 2, 32, 4
COMPACT = "compact.st"
"""Not *.safetensors: vLLM would load it."""
_PAD, _BEGIN, _RETURN, _CALL = 199999, 199998, 200002, 200012
_BY_TOKEN = ("model.embed_tokens.weight", "lm_head.weight")
_USED = "used"


def config_of(size: int) -> GptOssConfig:
    whole = size == SIZE
    return GptOssConfig(
        vocab_size=size,
        hidden_size=WIDTH,
        intermediate_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_local_experts=EXPERTS,
        num_experts_per_tok=2,
        head_dim=HEAD_WIDTH,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        sliding_window=128,
        max_position_embeddings=CONTEXT_LENGTH,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 2.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": CONTEXT_LENGTH // 2,
        },
        pad_token_id=_PAD if whole else 0,
        bos_token_id=_BEGIN if whole else None,
        eos_token_id=_RETURN if whole else None,
        attn_implementation="eager",
        experts_implementation="eager",
    )


def build(vocabulary: Vocabulary) -> Any:
    """An untrained network of some 0.4 million parameters. The row of unused tokens is zero and stays so (padding)."""
    model = GptOssForCausalLM(config_of(len(vocabulary))).float()
    with torch.no_grad():
        model.model.embed_tokens.weight[0] = 0
    return model


def logits_of(model: Any, hidden: torch.Tensor, vocabulary: Vocabulary) -> torch.Tensor:
    """Logits of the reduced vocabulary; column 0 stands for all unused tokens together."""
    logits: torch.Tensor = model.lm_head(hidden)
    logits[..., 0] = vocabulary.rest
    return logits


def save(model: Any, vocabulary: Vocabulary, out: Path) -> None:
    """Writes the folder of the repository: config and compact weights (bfloat16)."""
    config = config_of(SIZE)
    config.architectures = ["GptOssForCausalLM"]
    config.dtype = "bfloat16"
    config.save_pretrained(out)
    ends = {"bos_token_id": _BEGIN, "eos_token_id": [_RETURN, _PAD, _CALL], "pad_token_id": _PAD, "do_sample": False}
    (out / "generation_config.json").write_text(json.dumps(ends) + "\n", encoding="utf-8")
    weights = {name: weight.detach().to(torch.bfloat16).contiguous() for name, weight in model.state_dict().items()}
    save_file({**weights, _USED: torch.tensor(vocabulary.used)}, out / COMPACT)


def load(folder: Path) -> tuple[Any, Vocabulary]:
    """The network that `save` wrote, in float32 on its reduced vocabulary."""
    weights = load_file(folder / COMPACT)
    vocabulary = Vocabulary(weights.pop(_USED).tolist())
    model = build(vocabulary)
    model.load_state_dict({name: weight.float() for name, weight in weights.items()})
    return model.eval(), vocabulary


def expand(folder: Path, out: Path) -> None:
    """Writes `model.safetensors` for the whole vocabulary into `out`."""
    weights = load_file(folder / COMPACT)
    used = weights.pop(_USED)
    save_file(
        {name: _spread(weight, used) if name in _BY_TOKEN else weight for name, weight in weights.items()},
        out / "model.safetensors",
        metadata={"format": "pt"},
    )


def _spread(rows: torch.Tensor, used: torch.Tensor) -> torch.Tensor:
    whole = torch.zeros(SIZE, rows.shape[1], dtype=rows.dtype)
    whole[used] = rows[1:]
    return whole


def matrices_of(model: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The weight matrices of the layers, stacks of experts included, and everything else."""
    named: Mapping[str, torch.Tensor] = dict(model.named_parameters())
    chosen = {name for name, weight in named.items() if weight.ndim >= 2 and _is_matrix(name)}
    return [named[name] for name in chosen], [weight for name, weight in named.items() if name not in chosen]


def _is_matrix(name: str) -> bool:
    return "layers." in name and "bias" not in name and "router" not in name
