"""Published heads with the weights and logits of their reference implementations, as `tools/golden_heads.py` wrote
them, and folders in the layouts of their publishers."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

import spectr
from spectr.models.published.making import Written, eagle3_of, save_eagle3
from spectr.policy import History
from spectr.types import Opening, Scene

__all__ = [
    "CASES",
    "GOLDEN",
    "Case",
    "Files",
    "WrittenCase",
    "drafted",
    "golden_target",
    "legacy",
    "nested",
    "own_dspark",
    "random_head",
    "with_settings",
    "write_eagle3",
    "write_head",
]


GOLDEN = Path(__file__).parent / "models" / "golden"
Files = tuple[dict[str, Any], dict[str, Tensor]]
"""A config and tensors, as they are in a folder."""


@cache
def _about() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / "heads.json").read_text(encoding="utf-8"))
    return found


@cache
def _tensors() -> dict[str, Tensor]:
    return load_file(GOLDEN / "heads.safetensors")


def _below(prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in _tensors().items() if name.startswith(prefix)}


@cache
def golden_target(dtype: torch.dtype = torch.float32, device: str = "cpu") -> PreTrainedModel:
    """Return the target with which the reference implementations were run."""
    net = LlamaForCausalLM(LlamaConfig(**_about()["target"]))
    net.load_state_dict(_below("target/"))
    return net.eval().requires_grad_(False).to(device, dtype)  # type: ignore[arg-type]


class Case:
    """The files of one case, and the reference implementation's logits for a tree below the text."""

    def __init__(self, family: str, name: str) -> None:
        self.family, self.name = family, name
        self.logits, self.tokens = (_tensors()[f"{family}/cases/{name}/{part}"] for part in ("logits", "tokens"))
        self.is_mapped = self.logits.shape[1] < 24
        self.text: list[int] = _about()["text"]
        self.branching: list[int] = _about()["branching"]

    def files(self) -> Files:
        """Return the files in the speculators format, or in DFlash's own."""
        config = json.loads(json.dumps(_about()[self.family][self.name]))
        weights = _below(f"{self.family}/weights/")
        unused = {"rotary_emb.inv_freq"}
        if self.family == "eagle3":
            layers = int(config["transformer_layer_config"]["num_hidden_layers"])
            unused |= {name for name in weights if name.startswith("layers.") and int(name.split(".")[1]) >= layers}
            unused |= set() if self.name.startswith("peagle") else {"mask_hidden"}
            unused |= set() if self.name.endswith("own") else {"embed_tokens.weight"}
            unused |= set() if "norm_before_fc" in self.name else {"input_norm.weight"}
            unused |= set() if config["fc_norm"] else {f"fc_norm.{at}.weight" for at in range(3)}
            if config["transformer_layer_config"]["model_type"] == "llama":
                unused |= {name for name in weights if name.endswith(("q_norm.weight", "k_norm.weight"))}
        else:
            unused |= {"embed_tokens.weight"} | (set() if self.is_mapped else {"lm_head.weight"})
            kinds = {"gated": "gate_proj", "rnn": "joint_proj"}
            unused |= {
                name for name in weights if name.startswith("markov_head.")
                and not ("dspark" in self.name and (".markov_w" in name or kinds.get(self._markov, "-") in name))
            }  # fmt: skip
            unused |= set() if "dspark" in self.name else {n for n in weights if n.startswith("confidence_head")}
        kept = {name: value.clone() for name, value in weights.items() if name not in unused}
        if self.is_mapped:
            kept["d2t"] = _tensors()["d2t"].clone()
            kept["lm_head.weight"] = kept["lm_head.weight"][: self.logits.shape[1]].clone()
            kept["t2d"] = torch.zeros(24, dtype=torch.bool)
            if "markov_head.markov_w2.weight" in kept:
                few = kept["markov_head.markov_w2.weight"][: self.logits.shape[1]]
                kept["markov_head.markov_w2.weight"] = few.clone()
        if self.name.startswith("own-"):
            kept["fc.weight"] = kept["fc.weight"][:, :32].clone()
        return config, kept

    @property
    def _markov(self) -> str:
        return next((kind for kind in ("gated", "rnn") if kind in self.name), "vanilla")

    def rows(self) -> Tensor:
        """The target's tokens to which the logits belong."""
        count = torch.arange(self.logits.shape[1])
        return count + _tensors()["d2t"] if self.is_mapped else count


class WrittenCase(Case):
    """A head that spectr wrote, and the logits that speculators computed with it."""

    def __init__(self, found: Path) -> None:
        made = load_file(found)
        self.family, self.name, self.is_mapped = "eagle3", "written", True
        self.logits, self.tokens = made["logits"], made["tokens"]
        self.text, self.branching = _about()["text"], _about()["branching"]

    def files(self) -> Files:
        raise NotImplementedError("written by write_eagle3")


def write_eagle3(folder: Path) -> Path:
    """Write a head with golden weights for the golden target, in the folder layout of training."""
    folder.mkdir(parents=True, exist_ok=True)
    head = eagle3_of(golden_target())
    weights = _below("eagle3/weights/")
    named = {name: weights[name.replace("readout.norm.", "norm.")] for name in head.state_dict()}
    head.load_state_dict(named)
    chosen = torch.arange(len(_tensors()["d2t"])) + _tensors()["d2t"]
    save_eagle3(folder, head, Written("somebody/target", ("LlamaForCausalLM",), 4), chosen)
    return folder


CASES = [(family, name) for family in ("eagle3", "block") for name in _about()[family]]


def legacy(files: Files) -> Files:
    """Return an EAGLE-3 head in its authors' format."""
    config, tensors = files
    settings = config["transformer_layer_config"]
    names = (
        "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "rms_norm_eps", "hidden_act",
        "max_position_embeddings", "vocab_size", "head_dim",
    )  # fmt: skip
    made = {name: settings[name] for name in names}
    rope = dict(settings["rope_parameters"])
    theta, kind = rope.pop("rope_theta"), rope.pop("rope_type")
    made.update(
        architectures=["LlamaForCausalLMEagle3"], model_type="llama", num_hidden_layers=1, rope_theta=theta,
        rope_scaling=None if kind == "default" else {"type": kind, **rope}, torch_dtype="float16",
        tie_word_embeddings=False,
        draft_vocab_size=config["draft_vocab_size"], bos_token_id=1, eos_token_id=2, use_cache=True,
    )  # fmt: skip
    return made, {name.replace("layers.0.", "midlayer."): value for name, value in tensors.items()}


def nested(files: Files) -> Files:
    """Return an EAGLE-3 head in the format of SpecForge and NVIDIA: settings in a section of their own, layers
    counted."""
    config, tensors = files
    made, tensors = legacy(files)
    ids = [at - 1 for at in config["eagle_aux_hidden_state_layer_ids"]]
    flags = {name: config[name] for name in ("norm_before_residual", "norm_before_fc", "norm_output")}
    made["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": ids, "use_aux_hidden_state": True, **flags}
    return made, {name.replace("midlayer.", "layers.0."): value for name, value in tensors.items()}


def own_dspark(files: Files) -> Files:
    """Return a DSpark head in its authors' format."""
    config, tensors = files
    made = {**config["transformer_layer_config"], "architectures": ["Qwen3DSparkModel"], "model_type": "qwen3"}
    for name in ("block_size", "mask_token_id", "markov_rank", "markov_head_type", "sample_from_anchor"):
        made[name] = config[name]
    made["target_layer_ids"] = [at - 1 for at in config["aux_hidden_state_layer_ids"]]
    made["num_target_layers"] = 7
    return made, {f"model.{name}": value for name, value in tensors.items()}


def write_head(folder: Path, files: Files, file: str = "model.safetensors") -> Path:
    """Write a folder with a head."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(files[0]), encoding="utf-8")
    if file.endswith(".bin"):
        torch.save(files[1], folder / file)
    else:
        save_file(files[1], folder / file)
    return folder


def drafted(
    case: Case, folder: Path, unread: int = 2, net: PreTrainedModel | None = None, **options: Any
) -> tuple[Tensor, Tensor]:
    """Return the logits (N, V) and tokens (N,) of the tree that the drafter of a folder draws below the text.

    The last `unread` tokens of the text are read in the step's first call."""
    lm = spectr.load(net or golden_target(), str(folder), rule="match", tree=tuple(case.branching), **options)
    drafter: Any = lm.engine.drafter
    target, text, device = lm.engine.target, case.text, lm.engine.target.device
    one = torch.ones(1, dtype=torch.float64, device=device)
    session = target.open(1, 60, feature_layers=drafter.feature_layers)
    target.read(session, [text[:-1]])
    drafting = drafter.open(Opening(1, 50, 24, session, device))
    drafting.begin(0, text, 50, None)
    drafting.read(0, [text[:-unread]], [0])
    seen: list[Tensor] = []

    def ranked(logits: Tensor, _: Tensor) -> Tensor:
        seen.append(logits)
        return logits

    history, root = History.of([text], 24, device), torch.tensor([text[-1]], device=device)
    scene = Scene(history, root, one > 0, None, ranked, ranked, one, len(text))  # type: ignore[arg-type]
    draft = drafting.propose(scene)
    drafting.keep(torch.full((1, len(case.branching)), -1, device=device))
    return torch.cat(seen, 1)[0].cpu(), draft.tokens[0, 1:].cpu()


def _decoder_tensors(first: int, width: int, layers: int) -> dict[str, tuple[int, ...]]:
    """Return the tensor shapes of decoder layers, the first of which has input width `first`."""
    found: dict[str, tuple[int, ...]] = {"norm.weight": (width,)}
    for at in range(layers):
        reads, name = first if at == 0 else width, f"layers.{at}"
        found |= {
            f"{name}.self_attn.q_proj.weight": (width, reads), f"{name}.self_attn.k_proj.weight": (width // 2, reads),
            f"{name}.self_attn.v_proj.weight": (width // 2, reads), f"{name}.self_attn.o_proj.weight": (width, width),
            f"{name}.mlp.gate_proj.weight": (48, width), f"{name}.mlp.up_proj.weight": (48, width),
            f"{name}.mlp.down_proj.weight": (width, 48), f"{name}.input_layernorm.weight": (width,),
            f"{name}.post_attention_layernorm.weight": (width,), f"{name}.self_attn.q_norm.weight": (width // 4,),
            f"{name}.self_attn.k_norm.weight": (width // 4,),
        }  # fmt: skip
    return found


def random_head(net: PreTrainedModel, kind: str, folder: Path) -> Path:
    """Write a random head for a Llama of `tests.tiny`: eagle3, peagle, dflash or dspark.

    It drafts all tokens but one, so that it has a draft vocabulary."""
    width, size = net.config.hidden_size, net.config.vocab_size
    states = [1, 2, net.config.num_hidden_layers]
    settings = {
        "model_type": "qwen3", "hidden_size": width, "intermediate_size": 48, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": width // 4, "num_hidden_layers": 2, "rms_norm_eps": 1e-5,
        "hidden_act": "silu", "vocab_size": size, "max_position_embeddings": 32,
    }  # fmt: skip
    config = {"speculators_model_type": kind, "transformer_layer_config": settings, "draft_vocab_size": size - 1}
    shapes = _decoder_tensors(2 * width if "eagle" in kind else width, width, 2)
    shapes |= {"fc.weight": (width, 3 * width), "lm_head.weight": (size - 1, width)}
    if "eagle" in kind:
        config |= {"eagle_aux_hidden_state_layer_ids": states, "norm_before_residual": True}
        config |= {"mask_token_id": size - 2} if kind == "peagle" else {}
        shapes["layers.0.hidden_norm.weight"] = (width,)
        shapes |= {"mask_hidden": (1, 1, 3 * width)} if kind == "peagle" else {}
    else:
        config |= {"aux_hidden_state_layer_ids": states, "block_size": 7, "mask_token_id": size - 2}
        shapes["hidden_norm.weight"] = (width,)
    if kind == "dspark":
        config |= {"markov_rank": 4, "markov_head_type": "rnn", "sample_from_anchor": True}
        shapes |= {"markov_head.markov_w1.weight": (size, 4), "markov_head.markov_w2.weight": (size - 1, 4)}
        shapes |= {"markov_head.joint_proj.weight": (12, 8 + width), "markov_head.joint_proj.bias": (12,)}
    if kind == "dflash":
        config |= {"sample_from_anchor": True}
    generator = torch.Generator().manual_seed(3)
    tensors = {
        name: 0.3 * torch.randn(shape, generator=generator) + (1.0 if "norm" in name else 0.0)
        for name, shape in shapes.items()
    }
    return write_head(folder, (config, {**tensors, "d2t": (torch.arange(size - 1) > 3).long()}))


def with_settings(config: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """Return a speculators config with other settings of its decoder layers."""
    return {**config, "transformer_layer_config": {**config["transformer_layer_config"], **settings}}
