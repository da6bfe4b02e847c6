"""Creates EAGLE-3 heads for training, and saves them in the format of speculators, which other engines load."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import LlamaConfig, PreTrainedModel

from spectr.errors import MismatchError
from spectr.models.head import HeadShape
from spectr.models.published.eagle3 import Eagle3Head
from spectr.models.published.formats import Eagle3Form, Source, Vocabulary
from spectr.models.published.sharing import only_bias_of
from spectr.models.published.states import Conventions
from spectr.models.saving import save_tensors, save_text

__all__ = ["Written", "eagle3_of", "save_eagle3"]

_SPECULATORS = "0.9.0"  # version of the format


def _states(layers: int) -> tuple[int, ...]:
    """Return the hidden states that EAGLE-3 heads read by default, adjusted so that all three exist and differ."""
    usual = (2, layers // 2, layers - 3)
    if len(set(usual)) == 3 and min(usual) >= 1:
        return usual
    if layers < 3:
        raise MismatchError(f"an EAGLE-3 head reads three hidden states, and this target has {layers} layers")
    return (1, (1 + layers) // 2, layers)


def eagle3_of(target: PreTrainedModel) -> Eagle3Head:
    """Return a new, untrained head for this target, on its device, in float32, with its embedding and output layer."""
    shape, config = HeadShape.for_target(target, 1, ()), target.config.get_text_config(decoder=True)
    size = int(getattr(target.get_output_embeddings(), "out_features", 0) or config.vocab_size)  # type: ignore[no-untyped-call]
    source = Source.of(target, size)
    decoder = LlamaConfig(
        vocab_size=1,
        hidden_size=shape.width,
        num_hidden_layers=1,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.width // shape.heads,
        intermediate_size=shape.inner,
        rms_norm_eps=float(getattr(config, "rms_norm_eps", None) or 1e-5),
        max_position_embeddings=source.context,
        rope_parameters={"rope_type": "default", "rope_theta": shape.theta},
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    states = Conventions(_states(source.layers), "the default three")
    form = Eagle3Form(decoder, source, states, Vocabulary(None, None, is_mapped=False), norm_before_residual=True)
    made = Eagle3Head(form)
    only_bias_of(made, set())
    made.to(target.device)  # type: ignore[arg-type]
    made.borrow(target)
    return made


@dataclass(frozen=True, slots=True)
class Written:
    """Metadata that is saved with the weights."""

    verifier: str  # name or path of the target
    architectures: tuple[str, ...]  # architectures of the target
    depths: int  # default draft length for other engines


def _config(head: Eagle3Head, about: Written, drafted: int) -> dict[str, Any]:
    """Return the config in the format of speculators."""
    form, decoder = head.shape, head.shape.config
    names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
             "num_hidden_layers", "rms_norm_eps", "hidden_act", "max_position_embeddings")  # fmt: skip
    layer = {name: getattr(decoder, name) for name in names}
    layer |= {"model_type": "llama", "vocab_size": form.source.vocabulary, "attention_bias": False, "mlp_bias": False,
              "rope_parameters": dict(decoder.rope_parameters), "tie_word_embeddings": False}  # fmt: skip
    proposal = {"proposal_type": "greedy", "speculative_tokens": about.depths, "verifier_accept_k": 1,
                "accept_tolerance": 0.0}  # fmt: skip
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": _SPECULATORS,
        "draft_vocab_size": drafted,
        "eagle_aux_hidden_state_layer_ids": list(form.states.chosen),
        "embed_requires_grad": False,
        "fc_norm": form.fc_norm,
        "norm_before_fc": form.norm_before_fc,
        "norm_before_residual": form.norm_before_residual,
        "norm_output": form.norm_output,
        "target_hidden_size": None,
        "tie_word_embeddings": False,
        "transformer_layer_config": layer,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": about.verifier, "architectures": list(about.architectures)},
        },
        "transformers_version": transformers.__version__,
    }


def save_eagle3(folder: Path, head: Eagle3Head, about: Written, tokens: Tensor | None = None) -> None:
    """Save a head as a folder that speculators, vLLM and SGLang load. Its output layer is the target's, and the weights
    have the dtype of that layer. With `tokens` (U,) of the target the head drafts only these."""
    output: Any = head.readout.output
    weight: Tensor = output.weight.detach()
    size = head.shape.source.vocabulary
    chosen = torch.arange(size) if tokens is None else tokens.cpu().long().sort().values
    tensors = {"lm_head.weight": weight[chosen.to(weight.device)]}
    for name, value in head.named_parameters():
        place = name.replace("readout.norm.", "norm.")
        tensors[place] = value.detach().to(weight.dtype)
    if len(chosen) < size:
        tensors["d2t"] = chosen - torch.arange(len(chosen))
        tensors["t2d"] = torch.zeros(size, dtype=torch.bool).index_fill_(0, chosen, True)
    whole = {name: value.to("cpu").contiguous() for name, value in tensors.items()}
    save_tensors(folder / "model.safetensors", whole, {"format": "pt"})
    text = json.dumps(_config(head, about, len(chosen)), indent=2, sort_keys=True) + "\n"
    save_text(folder / "config.json", text)
