"""Writes the golden files of published heads: outputs of the reference implementations with small random weights.

It runs in a separate environment with the packages that define the formats:

    python -m venv /tmp/oracle && /tmp/oracle/bin/pip install speculators==0.9.0 && \
        /tmp/oracle/bin/pip install --no-deps dflash==0.1.0
    /tmp/oracle/bin/python tools/golden_heads.py tests/models/golden
    /tmp/oracle/bin/python tools/golden_heads.py tests/models/golden --written FOLDER

The second form loads a head that spectr wrote for the same small target, in the way users of speculators load it, and
writes its outputs to `written.safetensors`. `FOLDER` is made by the test of that file; see there.

A case consists of a config as its publisher writes it, and the logits and tokens of a tree. The root is the last token
of a text. It has its two most likely children, each of these has two again, and the next two levels have one child per
node. All cases of a family share their weights; a case uses those that its config needs.
"""

import argparse
import json
import logging
import shutil
from contextlib import suppress
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config

WIDTH, INNER, HEADS, KV, LAYERS, SIZE, SOME = 16, 24, 4, 2, 7, 24, 14
TEXT = [3, 17, 8, 8, 21, 5, 11, 2, 19]
BRANCHING = (2, 2, 1, 1)
MASK_TOKEN = 1


def target_model() -> LlamaForCausalLM:
    """Return a small Llama whose distributions are neither uniform nor concentrated on one token."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=SIZE, hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=KV, max_position_embeddings=64, tie_word_embeddings=False,
        rms_norm_eps=1e-5,
    )  # fmt: skip
    made = LlamaForCausalLM(config).float().eval()
    for weights in made.parameters():
        torch.nn.init.normal_(weights, 1.0 if weights.dim() == 1 else 0.0, 0.2)
    return made


def random_state(model: torch.nn.Module, seed: int) -> dict[str, Tensor]:
    """Return random weights for a head: matrices around 0, norms around 1."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(value.shape, generator=generator) * 0.25 + (1.0 if value.dim() == 1 else 0.0)
        for name, value in model.state_dict().items()
        if value.is_floating_point()
    }


def offsets() -> Tensor:
    """Return the offsets from draft ids to target ids, for a subset of the tokens in order."""
    chosen = torch.tensor([0, 2, 3, 5, 6, 8, 9, 11, 14, 15, 17, 19, 20, 23])
    assert len(chosen) == SOME
    return chosen - torch.arange(SOME)


class Likeliest:
    """Grows the tree of the most likely children from the logits along its branches."""

    def __init__(self, to_target: Tensor | None) -> None:
        self.to_target = to_target
        self.logits: list[Tensor] = []
        self.tokens: list[int] = []

    def grow(self, along: Any) -> tuple[Tensor, Tensor]:
        """Return the logits and tokens of the tree.

        `along(branch)` returns the logits (D + 1, U) after the root and after each token of a branch.
        """
        level: list[list[int]] = [[]]
        for depth, count in enumerate((*BRANCHING, 0)):
            if depth == len(BRANCHING):
                break
            below = []
            for branch in level:
                found = along(branch)[len(branch)]
                self.logits.append(found)
                for draft in found.topk(count).indices.tolist():
                    token = draft if self.to_target is None else draft + int(self.to_target[draft])
                    self.tokens.append(token)
                    below.append([*branch, token])
            level = below
        return torch.stack(self.logits), torch.tensor(self.tokens)


def decoder_config(kind: str, **more: Any) -> Any:
    """Return the config of a head's layers."""
    made = Qwen3Config if kind == "qwen3" else LlamaConfig
    more = {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}, **more}
    config = made(
        vocab_size=SIZE, hidden_size=WIDTH, intermediate_size=INNER, num_attention_heads=HEADS,
        num_key_value_heads=KV, head_dim=WIDTH // HEADS, rms_norm_eps=1e-5, max_position_embeddings=16,
        tie_word_embeddings=False, **more,
    )  # fmt: skip
    config._attn_implementation = "eager"
    return config


def speculators_config(algorithm: str) -> Any:
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig

    return SpeculatorsConfig(
        algorithm=algorithm,
        proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=4)],
        default_proposal_method="greedy",
        verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
    )


def written(config: Any) -> dict[str, Any]:
    """Return a config in the form in which it is saved."""
    found: dict[str, Any] = json.loads(config.to_json_string(use_diff=True))
    return found


def loaded(model: torch.nn.Module, weights: dict[str, Tensor], target: LlamaForCausalLM, own_embedding: bool) -> None:
    """Load the weights that a case needs, with the target's embedding if the file has none."""
    state = model.state_dict()
    some = {name: weights[name][: len(value)] for name, value in state.items() if name in weights}
    if not own_embedding:
        some["embed_tokens.weight"] = target.get_input_embeddings().weight.detach()
    if "d2t" in state and state["d2t"] is not None:
        some["d2t"] = offsets()
    missing, strange = model.load_state_dict(some, strict=False)
    assert not strange, strange
    assert all(name.startswith(("verifier", "t2d", "rotary")) for name in missing), missing
    model.eval()


def eagle3_cases(target: LlamaForCausalLM, weights: dict[str, Tensor]) -> dict[str, Any]:
    """Return the cases of speculators' eagle3, over the flags of its config."""
    from speculators.models.eagle3 import Eagle3SpeculatorConfig
    from speculators.models.eagle3.core import Eagle3DraftModel

    flags = product((False, True), ("plain", "norm_before_fc", "fc_norm"), (False, True), (False, True),
                    ("llama", "qwen3"), (False, True))  # fmt: skip
    cases, biggest = {}, {}
    for residual, before, output, drafted, kind, embeds in flags:
        config = Eagle3SpeculatorConfig(
            transformer_layer_config=decoder_config(kind, num_hidden_layers=1),
            draft_vocab_size=SOME if drafted else SIZE,
            norm_before_residual=residual,
            norm_before_fc=before == "norm_before_fc",
            fc_norm=before == "fc_norm",
            norm_output=output,
            eagle_aux_hidden_state_layer_ids=[2, 3, 5],
            speculators_config=speculators_config("eagle3"),
        )
        model = Eagle3DraftModel(config).float()
        for name, value in random_state(model, 2).items():
            if name not in biggest or biggest[name].numel() < value.numel():
                biggest[name] = value
        weights.update(biggest)
        cases[(residual, before, output, drafted, kind, embeds)] = (config, model)
    found = {}
    for key, (config, model) in cases.items():
        loaded(model, weights, target, key[-1])
        name = "-".join(
            ["residual" if key[0] else "plain", key[1], "normed" if key[2] else "raw", "some" if key[3] else "all",
             key[4], "own" if key[5] else "shared"]
        )  # fmt: skip
        logits, tokens = eagle3_tree(model, target, [2, 3, 5], offsets() if key[3] else None)
        found[name] = {"config": written(config), "logits": logits, "tokens": tokens}
    return found


def more_eagle3_cases(target: LlamaForCausalLM, weights: dict[str, Tensor]) -> dict[str, Any]:
    """Return the cases of eagle3 with other rotary settings and with more than one layer."""
    from speculators.models.eagle3 import Eagle3SpeculatorConfig
    from speculators.models.eagle3.core import Eagle3DraftModel

    near = {"factor": 4.0, "original_max_position_embeddings": 8, "rope_theta": 100.0}
    asked: dict[str, tuple[str, dict[str, Any]]] = {
        "rope-llama3": ("llama", {"rope_parameters": {
            "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, **near}}),
        "rope-yarn": ("llama", {"rope_parameters": {"rope_type": "yarn", **near}}),
        "rope-linear": ("qwen3", {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 100.0}}),
        "layers-llama": ("llama", {"num_hidden_layers": 2}),
        "layers-qwen3": ("qwen3", {"num_hidden_layers": 3}),
    }  # fmt: skip
    found, models = {}, {}
    for name, (kind, more) in asked.items():
        config = Eagle3SpeculatorConfig(
            transformer_layer_config=decoder_config(kind, **{"num_hidden_layers": 1, **more}),
            draft_vocab_size=SOME,
            norm_before_residual=True,
            eagle_aux_hidden_state_layer_ids=[2, 3, 5],
            speculators_config=speculators_config("eagle3"),
        )
        models[name] = (config, Eagle3DraftModel(config).float())
        for key, value in random_state(models[name][1], 7).items():
            weights.setdefault(key, value)
    for name, (config, model) in models.items():
        loaded(model, weights, target, False)
        logits, tokens = eagle3_tree(model, target, [2, 3, 5], offsets())
        found[name] = {"config": written(config), "logits": logits, "tokens": tokens}
    return found


def peagle_cases(target: LlamaForCausalLM, weights: dict[str, Tensor]) -> dict[str, Any]:
    """Return the cases of speculators' peagle, which predicts all depths from mask tokens in one causal pass."""
    from speculators.models.peagle import core
    from speculators.models.peagle.config import PEagleSpeculatorConfig

    found = {}
    asked = {"peagle": ("llama", {}), "peagle-normed": ("qwen3", {"fc_norm": True, "norm_before_residual": True})}
    for name, (kind, more) in asked.items():
        config = PEagleSpeculatorConfig(
            transformer_layer_config=decoder_config(kind, num_hidden_layers=2),
            draft_vocab_size=SOME,
            eagle_aux_hidden_state_layer_ids=[2, 3, 5],
            mask_token_id=MASK_TOKEN,
            speculators_config=speculators_config("peagle"),
            **more,
        )
        model: Any = core.PEagleDraftModel(config).float()
        for key, value in random_state(model, 9).items():
            weights.setdefault(key, value)
        loaded(model, weights, target, False)
        found[name] = {"config": written(config)}
        found[name]["logits"], found[name]["tokens"] = peagle_tree(model, core, target)
    return found


def peagle_tree(model: Any, core: Any, target: LlamaForCausalLM) -> tuple[Tensor, Tensor]:
    """Compute the tree from one pass over the text and the mask tokens that belong to its last token."""
    text, root, depths = torch.tensor([TEXT[1:] + [0] * 4]), len(TEXT) - 2, len(BRANCHING)
    with torch.no_grad():
        hidden = target(torch.tensor([TEXT]), output_hidden_states=True).hidden_states
        joined = torch.cat([hidden[at] for at in (2, 3, 5)], -1)[:, :-1]
        joined = torch.nn.functional.pad(joined, (0, 0, 0, 4), value=3.0)
        count = text.shape[1]
        places = torch.cat([torch.arange(count), torch.full((depths - 1,), root)])
        depth = torch.cat([torch.zeros(count, dtype=torch.long), torch.arange(1, depths)])
        core.generate_cod_sample_indices = lambda **_: (places, depth)
        outputs: list[Tensor] = []

        def stop(_: Any, __: Any, made: Tensor) -> None:
            outputs.append(made)
            raise StopIteration  # the model would compute a loss next, which needs a GPU

        model.lm_head.register_forward_hook(stop)
        with suppress(StopIteration):
            model(joined, text, torch.zeros_like(text), verifier_last_hidden_states=torch.zeros(1, count, WIDTH))
    laws = torch.cat([outputs[0][0, root : root + 1], outputs[0][0, count:]])
    return Likeliest(offsets()).grow(lambda _: laws)


def eagle3_tree(
    model: Any, target: LlamaForCausalLM, states: list[int], to_target: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Compute the tree below the last token of the text."""
    outputs: list[Tensor] = []
    hook = model.lm_head.register_forward_hook(lambda _, __, found: outputs.append(found))

    @torch.no_grad()
    def along(branch: list[int]) -> Tensor:
        text = torch.tensor([TEXT + branch])
        hidden = target(text, output_hidden_states=True).hidden_states
        joined = torch.cat([hidden[at] for at in states], -1)[:, :-1]
        outputs.clear()
        model(joined, text[:, 1:], torch.zeros_like(text[:, 1:]), ttt_steps=len(branch) + 1)
        root = len(TEXT) - 2  # the last token of the text, counted without the first
        return torch.stack([found[0, root] for found in outputs])

    made = Likeliest(to_target).grow(along)
    hook.remove()
    return made


def block_cases(target: LlamaForCausalLM, weights: dict[str, Tensor]) -> dict[str, Any]:
    """Return the cases of DFlash and DSpark in speculators' format."""
    from speculators.models.dflash.config import DFlashSpeculatorConfig
    from speculators.models.dflash.core import DFlashDraftModel
    from speculators.models.dspark.config import DSparkSpeculatorConfig
    from speculators.models.dspark.core import DSparkDraftModel

    full = {"layer_types": ["full_attention"] * 2}
    sliding = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4, "use_sliding_window": True}
    asked: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
        "dflash": ("", full, {}),
        "dflash-some": ("", full, {"draft_vocab_size": SOME}),
        "dflash-sliding": ("", sliding, {}),
        "dflash-sliding-both-ways": ("", sliding, {"sliding_window_non_causal": True}),
        "dflash-anchor": ("", full, {"sample_from_anchor": True}),
        "dspark": ("vanilla", full, {}),
        "dspark-some": ("vanilla", full, {"draft_vocab_size": SOME}),
        "dspark-sliding": ("vanilla", sliding, {}),
        "dspark-gated": ("gated", full, {"draft_vocab_size": SOME}),
        "dspark-rnn": ("rnn", full, {}),
        "dspark-rnn-later": ("rnn", full, {"sample_from_anchor": False}),
    }
    models: dict[str, Any] = {}
    for name, (markov, kinds, more) in asked.items():
        common = {
            "transformer_layer_config": decoder_config("qwen3", num_hidden_layers=2, **kinds),
            "draft_vocab_size": SIZE,
            "block_size": 5,
            "aux_hidden_state_layer_ids": [2, 3, 5],
            "mask_token_id": MASK_TOKEN,
            "speculators_config": speculators_config("dspark" if markov else "dflash"),
            **more,
        }
        if markov:
            config: Any = DSparkSpeculatorConfig(**common, markov_rank=6, markov_head_type=markov)
            models[name] = (config, DSparkDraftModel(config).float())
        else:
            config = DFlashSpeculatorConfig(**common)
            models[name] = (config, DFlashDraftModel(config).float())
        for key, value in random_state(models[name][1], 5).items():
            if key not in weights or weights[key].numel() < value.numel():
                weights[key] = value
    found = {}
    for name, (config, model) in models.items():
        loaded(model, weights, target, False)
        if config.draft_vocab_size == SIZE:
            model.lm_head.weight.data.copy_(target.lm_head.weight)
        to_target = offsets() if config.draft_vocab_size == SOME else None
        logits, tokens = block_tree(model, target, [2, 3, 5], to_target)
        found[name] = {"config": written(config), "logits": logits, "tokens": tokens}
    return found


def block_tree(
    model: Any, target: LlamaForCausalLM, states: list[int], to_target: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Compute the tree from one pass for the block after the text.

    With a Markov head the logits of a branch also depend on its tokens.
    """
    size = model.block_size
    text = torch.tensor([TEXT + [0] * (size + 1)])  # padding that an anchor block must not see
    with torch.no_grad():
        hidden = target(text[:, : len(TEXT)], output_hidden_states=True).hidden_states
        joined = torch.cat([hidden[at] for at in states], -1)
        joined = torch.nn.functional.pad(joined, (0, 0, 0, size + 1), value=3.0)
        mask = torch.zeros_like(text, dtype=torch.bool)
        mask[0, len(TEXT) - 1] = True
        out = model._backbone_forward(
            joined, text, mask, torch.zeros(1, text.shape[1], WIDTH), torch.zeros_like(text), max_anchors=1
        )
        states_of_block, base = out[0][0], out[1][0]
    from_root = model.config.sample_from_anchor
    first = 0 if from_root else 1

    @torch.no_grad()
    def along(branch: list[int]) -> Tensor:
        found = base
        if getattr(model, "markov_head", None) is not None:
            tokens = [TEXT[-1], *branch] if from_root else [TEXT[-1], TEXT[-1], *branch]
            parents = torch.tensor([tokens + [0] * (size - len(tokens))])[:, :size]
            found = base + model.markov_head.block_bias(prev_token_ids=parents, hidden_states=states_of_block[None])[0]
        return found[first:]

    return Likeliest(to_target).grow(along)


def dflash_cases(target: LlamaForCausalLM, weights: dict[str, Tensor]) -> dict[str, Any]:
    """Return the cases of DFlash in its own format."""
    from dflash.model import DFlashDraftModel, _output_head, _raw_input_embeddings, extract_context_feature

    full = {"layer_types": ["full_attention"] * 2}
    sliding = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4, "use_sliding_window": True}
    asked = {
        "own-dflash": (full, {"target_layer_ids": [1, 3]}, {}),
        "own-dflash-last": (full, {"target_layer_ids": [1, LAYERS - 1]}, {}),
        "own-dflash-default": (full, {}, {}),
        "own-dflash-sliding": (sliding, {"target_layer_ids": [1, 3]}, {}),
        "own-dflash-causal": (full, {"target_layer_ids": [1, 3]}, {"is_causal": True}),
        "own-dflash-scaled": (full, {"target_layer_ids": [1, 3], "input_embedding_scale": 1.5, "output_multiplier": 0.5,
                              "final_logit_softcapping": 2.0}, {}),
    }  # fmt: skip
    found = {}
    for name, (kinds, inner, more) in asked.items():
        config = decoder_config("qwen3", num_hidden_layers=2, **kinds)
        config.architectures = ["DFlashDraftModel"]
        config.num_target_layers, config.block_size = LAYERS, 5
        config.dflash_config = {"mask_token_id": MASK_TOKEN, **inner}
        for key, value in more.items():
            setattr(config, key, value)
        model = DFlashDraftModel(config).float().eval()
        state = {key: weights[key] for key in model.state_dict() if key != "fc.weight"}
        state["fc.weight"] = weights["fc.weight"][:, : model.fc.in_features]
        model.load_state_dict(state)
        with torch.no_grad():
            ids = torch.tensor([TEXT])
            hidden = target(ids, output_hidden_states=True).hidden_states
            text = extract_context_feature(hidden, model.target_layer_ids)[:, :-1]
            block = torch.tensor([[TEXT[-1], *[MASK_TOKEN] * 4]])
            scale = config.dflash_config.get("input_embedding_scale", 1.0)
            places = torch.arange(len(TEXT) - 1 + 5)[None]
            states = model(places, None, _raw_input_embeddings(target, block, scale), text)[:, 1:]
            logits = model.compute_logits(states, _output_head(target))[0]
        grown, tokens = Likeliest(None).grow(lambda _: logits)  # noqa: B023  used at once
        found[name] = {"config": written(config), "logits": grown, "tokens": tokens}
    return found


def read_back(written_by_us: Path, folder: Path) -> None:
    """Load a head in speculators' format, with the weights it shares with the target from the target's folder."""
    from speculators.models.eagle3 import Eagle3SpeculatorConfig
    from speculators.models.eagle3.core import Eagle3DraftModel

    target = target_model()
    with TemporaryDirectory() as place:
        target.save_pretrained(place)
        copy = Path(place) / "head"
        shutil.copytree(written_by_us, copy)
        text = json.loads((copy / "config.json").read_text(encoding="utf-8"))
        text["speculators_config"]["verifier"]["name_or_path"] = place
        (copy / "config.json").write_text(json.dumps(text), encoding="utf-8")
        config = Eagle3SpeculatorConfig.from_pretrained(copy)
        config.transformer_layer_config._attn_implementation = "eager"
        model = Eagle3DraftModel.from_pretrained(copy, config=config).float().eval()
        for value in [*model.parameters(), *model.buffers()]:
            value.data = value.data.clone()  # some are memory-mapped from files that are about to be deleted
        assert torch.equal(model.embed_tokens.weight, target.get_input_embeddings().weight)
    states = list(config.eagle_aux_hidden_state_layer_ids)
    logits, tokens = eagle3_tree(model, target, states, model.d2t if model.use_draft_vocab else None)
    save_file({"logits": logits.contiguous(), "tokens": tokens.to(torch.int32)}, folder / "written.safetensors")
    print(f"read back {written_by_us}")


def main(folder: Path) -> None:
    """Write all cases of all families."""
    target = target_model()
    eagle: dict[str, Tensor] = {}
    block: dict[str, Tensor] = {}
    cases = {"eagle3": eagle3_cases(target, eagle), "block": block_cases(target, block)}
    cases["eagle3"].update(more_eagle3_cases(target, eagle))
    cases["eagle3"].update(peagle_cases(target, eagle))
    cases["block"].update(dflash_cases(target, block))
    tensors = {f"target/{name}": value.detach().clone() for name, value in target.state_dict().items()}
    for family, weights in (("eagle3", eagle), ("block", block)):
        kept = {name: value for name, value in weights.items() if not name.startswith("verifier")}
        tensors.update({f"{family}/weights/{name}": value for name, value in kept.items()})
        for name, case in cases[family].items():
            tensors[f"{family}/cases/{name}/logits"] = case["logits"].contiguous()
            tensors[f"{family}/cases/{name}/tokens"] = case["tokens"].to(torch.int32)
    tensors["d2t"] = offsets()
    save_file(tensors, folder / "heads.safetensors")
    about = {
        "target": written(target.config),
        "text": TEXT,
        "branching": BRANCHING,
        **{family: {name: case["config"] for name, case in found.items()} for family, found in cases.items()},
    }
    (folder / "heads.json").write_text(
        json.dumps(about, separators=(",", ":"), sort_keys=True) + "\n", encoding="utf-8"
    )
    print(f"{sum(map(len, cases.values()))} cases in {folder}")


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="the folder for the golden files")
    parser.add_argument("--written", type=Path, help="the folder of a head that spectr wrote")
    given = parser.parse_args()
    if given.written is None:
        main(given.folder)
    else:
        read_back(given.written, given.folder)
