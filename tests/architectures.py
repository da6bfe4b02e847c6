"""Small random models of many architectures, which tests of models share.

Weights are drawn with a large scale, since a wrong mask or position hardly shows with the default one.
"""

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedModel

__all__ = ["ALL", "CAUSAL", "ENCODERS", "PARENTS", "ancestors", "tiny_model"]

Settings = dict[str, object]

BASE: Settings = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT: Settings = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 128, "num_key_value_heads": 4}
MOE: Settings = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 8}
WINDOW: Settings = {"sliding_window": 6}
LATENT: Settings = {
    "q_lora_rank": 16,
    "kv_lora_rank": 12,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
CAUSAL: dict[str, Settings] = {
    "llama": {},
    "mistral": WINDOW,
    "qwen2": {},
    "qwen2 sliding": {"use_sliding_window": True, "max_window_layers": 1, **WINDOW},
    "qwen3": {"head_dim": 8},
    "phi3": {},
    "gemma2": {"head_dim": 8, **WINDOW},
    "gemma3_text": {"head_dim": 8, **WINDOW},
    "gpt_oss": {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "rope_parameters": None, **WINDOW},
    "deepseek_v3": LATENT,
    "olmo2": {},
    "granite": {},
    "stablelm": {},
    "cohere2": WINDOW,
    "smollm3": {},
    "mixtral": {"num_local_experts": 4},
    "qwen3_moe": MOE,
    "gpt_neox": {},
    "gpt2": GPT,
    "gptj": {**GPT, "rotary_dim": 8},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "falcon": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "falcon alibi": {"alibi": True, "multi_query": False, "new_decoder_architecture": False},
    "falcon alibi eager": {"alibi": True, "multi_query": True, "new_decoder_architecture": False},
    "bloom": {"n_layer": 3, "n_head": 4, "num_key_value_heads": 4},
}
T5: Settings = {
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 14,
    "decoder_start_token_id": 0,
}
BART: Settings = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
}
ENCODERS: dict[str, Settings] = {
    "t5": {**T5, "feed_forward_proj": "relu"},
    "t5 gated": {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "num_decoder_layers": 3},
    "mt5": T5,
    "umt5": T5,
    "bart": BART,
    "mbart": BART,
    "marian": BART,
    "pegasus": BART,
    "plbart": BART,
    "blenderbot": BART,
    "blenderbot-small": BART,
}
ALL = [*CAUSAL, *ENCODERS]
EAGER = {"gemma2", "gptj", "gpt_oss", "falcon alibi eager", "bloom", "umt5"}  # umt5: before 5.18 its sdpa looks ahead
PARENTS = [0, 0, 0, 1, 1, 2, 3]


def tiny_model(name: str) -> PreTrainedModel:
    """Return a small random model of an architecture of `CAUSAL` or `ENCODERS`."""
    torch.manual_seed(0)
    own = CAUSAL.get(name) or ENCODERS.get(name) or {}
    base = {k: v for k, v in BASE.items() if name in CAUSAL or "token" in k or k == "vocab_size"}
    config = AutoConfig.for_model(name.split(maxsplit=1)[0], **{**base, **own})
    if name in ENCODERS and "d_kv" not in own:
        config.max_position_embeddings = 128
    auto = AutoModelForCausalLM if name in CAUSAL else AutoModelForSeq2SeqLM
    model = auto.from_config(config, **({"attn_implementation": "eager"} if name in EAGER else {}))
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() > 1:
                weights.normal_(0, 0.25)
    return model.eval()


def ancestors(parents: list[int]) -> Tensor:
    """Return (N, N) bool: whether the column is the row's node or an ancestor of it."""
    seen = torch.eye(len(parents), dtype=torch.bool)
    for node in range(1, len(parents)):
        seen[node] |= seen[parents[node]]
    return seen
