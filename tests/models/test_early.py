"""A model made of another model's first layers shares its weights and does not change it."""

from typing import Any

import pytest
import torch

from spectr.errors import ArgumentError, MismatchError
from spectr.models.early import truncated
from spectr.models.target import Target

NAMES = ["llama", "mistral", "qwen2", "gemma3_text", "gpt2", "gpt_neox", "opt", "falcon", "bloom", "deepseek_v3"]
NORMS = ("model.norm", "transformer.ln_f", "gpt_neox.final_layer_norm", "model.decoder.final_layer_norm")


def norm_of(model: Any) -> Any:
    """Return the norm before the output layer."""
    known = dict(model.named_modules())
    return next(known[name] for name in NORMS if name in known)


@pytest.mark.parametrize("name", NAMES)
def test_a_truncated_model_stops_after_its_layers(name: str, make: Any) -> None:
    """A truncated model has the logits of the hidden state after its layers, and the whole model is unchanged."""
    model, ids = make(name).model, torch.tensor([[5, 9, 33, 7, 8, 12, 4, 60]])
    with torch.no_grad():
        whole = model(ids, use_cache=False, output_hidden_states=True)
        short = truncated(model, 2)
        right = model.get_output_embeddings()(norm_of(model)(whole.hidden_states[2]))
        found = short(ids, use_cache=False).logits
        assert torch.allclose(found, right, atol=1e-5)
        assert (found - whole.logits).abs().max() > 1e-2
        assert torch.equal(model(ids, use_cache=False).logits, whole.logits)
    assert (model.config.num_hidden_layers, short.config.num_hidden_layers) == (3, 2)
    ours = {p.data_ptr() for p in model.parameters()}
    assert all(p.data_ptr() in ours for p in short.parameters())
    assert len(list(short.parameters())) < len(list(model.parameters()))


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "gpt2", "bloom", "deepseek_v3"])
def test_a_truncated_model_drafts_in_the_slots_of_the_whole_model(name: str, make: Any) -> None:
    """A truncated model uses the keys of the whole model's first layers, so a view of the session needs no prefill."""
    play = make(name)
    drafter = Target(truncated(play.model, 2))
    view = play.target.share(play.session)
    found = drafter.score(view, play.tokens, play.seen, play.depth)
    whole, play.model = play.model, drafter.model
    assert play.worst(found) < 5e-5
    play.model = whole
    assert play.worst(play.target.score(play.session, play.tokens, play.seen, play.depth)) < 5e-5
    play.target.keep(play.session, torch.tensor([[0, 1, 3], [0, 2, -1]]))
    drafter.keep(view, torch.tensor([[0, 1, 3], [0, 2, -1]]))
    play.model, play.target = drafter.model, drafter
    play.next_is_right(view, [play.prompts[0] + play.path(0, 3), play.prompts[1] + play.path(1, 2)])


def test_invalid_layer_counts_and_models_are_refused(make: Any) -> None:
    """Layer counts out of range, encoder-decoder models and unknown structures are refused."""
    with pytest.raises(ArgumentError, match="between 1 and 3, got 0"):
        truncated(make("llama").model, 0)
    with pytest.raises(MismatchError, match="has an encoder"):
        truncated(make("bart").model, 1)
    model = make("llama").model
    model.model.layers = torch.nn.Sequential(*model.model.layers)
    with pytest.raises(MismatchError, match="no ModuleList with its 3 layers"):
        truncated(model, 1)
