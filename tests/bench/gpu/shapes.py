"""The shapes of the measured models: their published configs, and the memory that their weights and KV caches take.

The weights are vLLM's dummies. A model with dummy weights writes no harmony, so Longhaul and `vllm serve` would find no
text in its answers. The shape of gpt-oss-20b is therefore served with a chat template, which takes three settings:

* Another `model_type`: vLLM uses harmony for gpt_oss.
* The name of gpt-oss's kernels for MXFP4, which vLLM (0.32) chooses by the same `model_type`.
* A reasoning parser. For the architecture vLLM chooses one that reads no text; `deepseek_v3` passes all text on while
  thinking is off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

BYTES_OF_BFLOAT16 = 2
BYTES_OF_MXFP4 = 4.25 / 8
"""4 bits, and an 8-bit scale for each 32 of them."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A model without its weights. `config` is what its config.json says."""

    name: str
    config: Mapping[str, Any]
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    """vLLM's, on top of those of every shape."""
    reasoning_parser: str = "none"
    """As in a models file."""

    @property
    def weight_bytes(self) -> int:
        """Of embeddings, attention and MLPs; norms, biases and routers are less than a hundredth."""
        config = self.config
        hidden, width = config["hidden_size"], config["head_dim"]
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        embeddings = 2 * config["vocab_size"] * hidden
        attention = config["num_hidden_layers"] * hidden * width * 2 * (heads + kv_heads)
        mlp = (
            config["num_hidden_layers"] * 3 * hidden * config["intermediate_size"] * config.get("num_local_experts", 1)
        )
        mlp_bytes = BYTES_OF_MXFP4 if "quantization_config" in config else BYTES_OF_BFLOAT16
        size: float = BYTES_OF_BFLOAT16 * (embeddings + attention) + mlp_bytes * mlp
        return round(size)

    def kv_bytes(self, tokens: int) -> int:
        """Of so many tokens in all; layers with a sliding window count as the others, so it may be too much."""
        config = self.config
        values: int = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]
        return tokens * values * BYTES_OF_BFLOAT16


QWEN3_8B = Shape(
    "qwen3-8b",
    {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "initializer_range": 0.02,
        "intermediate_size": 12288,
        "max_position_embeddings": 40960,
        "max_window_layers": 36,
        "model_type": "qwen3",
        "num_attention_heads": 32,
        "num_hidden_layers": 36,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
)

GPT_OSS_20B = Shape(
    "gpt-oss-20b",
    {
        "architectures": ["GptOssForCausalLM"],
        "attention_bias": True,
        "attention_dropout": 0.0,
        "eos_token_id": 200002,
        "experts_per_token": 4,
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 2880,
        "initial_context_length": 4096,
        "initializer_range": 0.02,
        "intermediate_size": 2880,
        "layer_types": ["sliding_attention", "full_attention"] * 12,
        "max_position_embeddings": 131072,
        "model_type": "gpt_oss",
        "num_attention_heads": 64,
        "num_experts_per_tok": 4,
        "num_hidden_layers": 24,
        "num_key_value_heads": 8,
        "num_local_experts": 32,
        "output_router_logits": False,
        "pad_token_id": 199999,
        "quantization_config": {
            "modules_to_not_convert": [
                "model.layers.*.self_attn",
                "model.layers.*.mlp.router",
                "model.embed_tokens",
                "lm_head",
            ],
            "quant_method": "mxfp4",
        },
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "rope_type": "yarn",
            "truncate": False,
        },
        "rope_theta": 150000,
        "router_aux_loss_coef": 0.9,
        "sliding_window": 128,
        "swiglu_limit": 7.0,
        "tie_word_embeddings": False,
        "use_cache": True,
        "vocab_size": 201088,
    },
    engine_args={
        "hf_overrides": {"model_type": "gpt_oss_chat", "quantization_config": {"quant_method": "gpt_oss_mxfp4"}}
    },
    reasoning_parser="deepseek_v3",
)

SHAPES = (QWEN3_8B, GPT_OSS_20B)
