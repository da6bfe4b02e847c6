"""On unmodified models the logits of every node of a tree equal a plain forward pass of its path, also after a keep.

Negative controls show that a wrong mask or position would be detected.
"""

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSpeechSeq2Seq

from spectr.errors import ArgumentError, MismatchError
from spectr.models.target import Target
from spectr.types import TreeModel

FAMILIES = ["llama", "gemma3_text", "bloom", "falcon alibi", "t5", "umt5", "bart", "marian"]


def test_trees_and_kept_paths(play: Any) -> None:
    """The logits of a tree are right in every architecture, and so are those after an accepted path was kept."""
    logits = play.target.score(play.session, play.tokens, play.seen, play.depth)
    assert logits.shape[-1] == play.target.vocabulary
    assert play.worst(logits) < 5e-5
    play.target.keep(play.session, torch.tensor([[0, 1, 3, 6], [0, 2, -1, -1]]))
    kept = [play.prompts[0] + play.path(0, 6), play.prompts[1] + play.path(1, 2)]
    assert play.session.filled.tolist() == [len(text) for text in kept]
    play.next_is_right(play.session, kept)


def test_levels_equal_one_call(play: Any) -> None:
    """A tree that is scored depth by depth has the logits of one call; kept nodes may be padded anywhere."""
    found = []
    for first, last in ((0, 1), (1, 3), (3, 6), (6, 7)):
        assert play.session.pending == first
        level = slice(first, last)
        seen = play.seen[:, level, :last]
        found.append(play.target.score(play.session, play.tokens[:, level], seen, play.depth[:, level]))
    assert play.worst(torch.cat(found, 1)) < 5e-5
    play.target.keep(play.session, torch.tensor([[0, -1, 1, -1, 4], [-1, -1, 0, 2, -1]]))
    assert (play.session.pending, play.session.filled.tolist()) == (0, [14, 9])
    play.next_is_right(play.session, [play.prompts[0] + play.path(0, 4), play.prompts[1] + play.path(1, 2)])


@pytest.mark.parametrize("name", FAMILIES)
def test_wrong_masks_and_positions_are_seen(name: str, make: Any) -> None:
    """Negative control: a causal mask, or positions by slots, give logits that are clearly wrong."""
    play = make(name)
    causal = torch.ones_like(play.seen).tril()
    assert play.worst(play.target.score(play.session, play.tokens, causal, play.depth)) > 1e-2
    play.session.pending = 0
    slots = torch.arange(play.tokens.shape[1]).expand_as(play.tokens)
    assert play.worst(play.target.score(play.session, play.tokens, play.seen, slots)) > 1e-2


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_can_be_read_rewound_and_read_again(name: str, make: Any) -> None:
    """Rows may read different amounts, be rewound and read again; padding never overwrites a full row."""
    play = make(name)
    session = play.fresh(slots=17)
    play.target.read(session, [play.prompts[0][:1], []])
    play.target.read(session, [play.prompts[0][1:] + [7] * 5, []])
    play.target.read(session, [[], play.prompts[1]])
    texts = [play.prompts[0] + [7] * 5, play.prompts[1]]
    assert (session.filled.tolist(), session.longest) == ([16, 7], 16)
    play.next_is_right(session, texts)
    play.target.read(session, [[9], play.prompts[0][:10]])
    play.target.rewind(session, [12, 99])
    assert session.filled.tolist() == [12, 17]
    play.target.rewind(session, [12, 3])
    play.target.read(session, [[8, 9], [8] * 6])
    play.next_is_right(session, [[*texts[0][:12], 8, 9], texts[1][:3] + [8] * 6])


@pytest.mark.parametrize("name", ["llama", "deepseek_v3", "t5"])
def test_sessions_grow_and_keep_their_contents(name: str, make: Any) -> None:
    """A session that is full raises an error, and after growing it continues with the same text."""
    play = make(name)
    session = play.fresh(slots=11)
    full = [prompt + [4] * (16 - len(prompt)) for prompt in play.prompts]  # eleven slots are rounded up to sixteen
    play.target.read(session, full)
    play.target.make_room(session, 2, 5)
    with pytest.raises(ArgumentError, match="16 slots per row and 17 are needed"):
        play.next_is_right(session, full)
    play.target.make_room(session, 2, 40)
    play.target.read(session, [[4] * 20, [6]])
    play.next_is_right(session, [full[0] + [4] * 20, [*full[1], 6]])


@pytest.mark.parametrize("name", ["llama", "qwen2", "deepseek_v3", "gemma3_text", "t5"])
def test_joint_buffers_behave_like_separate_ones(name: str, make: Any) -> None:
    """With joint buffers, as on a GPU, logits are right after keeping, growing and copying rows."""
    play = make(name)
    play.target.joint = True
    session = play.fresh()
    play.target.read(session, play.prompts)
    assert (session.cache.joint is None) == (name == "t5")
    assert play.worst(play.target.score(session, play.tokens, play.seen, play.depth)) < 5e-5
    play.target.keep(session, torch.tensor([[0, 1, 3, 6], [0, 2, -1, -1]]))
    kept = [play.prompts[0] + play.path(0, 6), play.prompts[1] + play.path(1, 2)]
    play.next_is_right(session, kept)
    play.target.make_room(session, 2, 80)
    play.next_is_right(session, kept)
    play.target.make_room(session, 3, 80)
    play.target.copy_rows(session, [1], [2], 80)
    play.next_is_right(play.target.window(session, 0, 3, session.longest), [*kept, kept[1]], [0, 1, 1])
    if session.cache.joint is not None:
        assert all(session.cache.joint.holds(layer) for layer in session.cache.layers)
        assert len(session.cache.buffers()) == 2


def test_the_bound_on_lengths_stays_a_bound(make: Any) -> None:
    """Keeping fewer tokens than possible loosens the bound on lengths; it is tightened before it costs anything."""
    play = make("llama")
    one, zero = torch.ones(2, 1, 1, dtype=torch.bool), torch.zeros(2, 1, dtype=torch.int64)
    texts = [list(prompt) for prompt in play.prompts]
    for step in range(9):
        play.target.score(play.session, torch.full((2, 1), step), one, zero)
        play.target.keep(play.session, torch.tensor([[-1] * 8 + [0], [-1] * 9]))
        texts[0].append(step)
        assert play.session.longest >= int(play.session.filled.max())
    play.next_is_right(play.session, texts)
    assert play.session.longest == 20


def test_a_view_writes_scratch_and_commits_nothing(make: Any) -> None:
    """A view of a session scores nodes without committing tokens, and follows the session's length."""
    play = make("llama")
    view = play.target.share(play.session)
    play.target.score(view, play.tokens[:, :1], play.seen[:, :1, :1], play.depth[:, :1])
    assert (view.pending, play.session.pending) == (1, 0)
    logits = play.target.score(play.session, play.tokens, play.seen, play.depth)
    assert play.worst(logits) < 5e-5
    play.target.keep(view, torch.tensor([[0], [0]]))
    play.target.rewind(view, [0, 0])
    assert (view.pending, view.filled.tolist()) == (0, [11, 7])
    play.target.keep(play.session, torch.tensor([[0, 1], [0, -1]]))
    assert view.filled.tolist() == [13, 8]
    with pytest.raises(ArgumentError, match="a view cannot read"):
        play.target.read(view, [[1], [1]])


@pytest.mark.parametrize("name", FAMILIES)
def test_a_model_is_as_before_outside_our_calls(name: str, make: Any) -> None:
    """After scoring, even after an error, the model has no hooks left and computes the same as before."""
    play = make(name)
    before = play.plain(0, play.prompts[0])
    play.target.score(play.session, play.tokens, play.seen, play.depth)
    with pytest.raises(IndexError):  # even after an error
        play.target.score(play.session, torch.full((2, 1), 999), torch.ones(2, 1, 8) > 0, torch.zeros(2, 1).long())
    assert torch.equal(play.plain(0, play.prompts[0]), before)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in play.model.modules())


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "gpt2", "bloom", "t5", "bart"])
def test_features_are_what_enters_the_output_layer(name: str, make: Any) -> None:
    """The features of a session, passed through the output layer, give the model's logits."""
    play = make(name)
    assert play.session.features is None
    session = play.fresh()
    session.feature_layers = ()
    play.target.read(session, play.prompts)
    assert session.features.shape == (2, 11, 32)
    head = play.model.get_output_embeddings()
    plain = torch.stack([play.plain(1, play.prompts[1][: n + 1]).argmax() for n in range(7)])
    assert torch.equal(head(session.features[1, :7]).argmax(-1), plain)
    logits = play.target.score(session, play.tokens, play.seen, play.depth)
    assert torch.equal(head(session.features).argmax(-1), logits.argmax(-1))


def test_prompts_need_no_logits_of_all_their_tokens(make: Any) -> None:
    """Prefill computes logits for one position per chunk only."""
    widths = []
    for name in ("llama", "t5"):
        play = make(name)
        head = play.model.get_output_embeddings()
        handle = head.register_forward_hook(lambda _, __, out: widths.append(out.shape[1]))
        play.target.read(play.session, [[5] * 9, [6] * 9])
        handle.remove()
    assert widths == [1] * 6


def driven(name: str, **settings: object) -> Target:
    config = AutoConfig.for_model(name, num_hidden_layers=2, hidden_size=32, vocab_size=61, **settings)
    return Target(AutoModelForCausalLM.from_config(config))


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("mamba", {}, "recurrent state"),
        ("mpt", {"d_model": 32, "n_heads": 4, "n_layers": 1}, "no position_ids"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "longest text"),
    ],
)
def test_models_that_cannot_be_scored_on_trees_are_refused(name: str, settings: dict[str, object], reason: str) -> None:
    with pytest.raises(MismatchError, match=reason):
        driven(name, **settings)


def test_sound_is_refused() -> None:
    config = AutoConfig.for_model("whisper", d_model=24, encoder_layers=1, decoder_layers=1)
    with pytest.raises(MismatchError, match="images or sound"):
        Target(AutoModelForSpeechSeq2Seq.from_config(config))


def test_sources_are_checked(make: Any) -> None:
    """Sources are refused without an encoder, required with one, and must fit; the last source counts."""
    play = make("llama")
    with pytest.raises(MismatchError, match="has no encoder"):
        play.target.encode_row(play.session, 0, [5])
    play = make("bart")
    session = play.target.open(2, 20)
    with pytest.raises(MismatchError, match="call encode_row before"):
        play.target.read(session, play.prompts)
    with pytest.raises(MismatchError, match="call encode_row before"):
        play.target.score(session, play.tokens, play.seen, play.depth)
    with pytest.raises(ArgumentError, match="128 positions, got one of 129"):
        play.target.encode_row(session, 0, [5] * 129)
    with pytest.raises(ArgumentError, match="at least one token"):
        play.target.encode_row(session, 1, [])
    for row, source in ((0, play.sources[0]), (1, play.sources[0]), (0, play.sources[1])):  # the last call counts
        play.target.encode_row(session, row, source)
    play.target.read(session, play.prompts)
    play.next_is_right(session, play.prompts, [1, 0])


def test_errors_name_the_limits(make: Any) -> None:
    """Errors state the limit that was exceeded and what was given."""
    play = make("llama")
    target: TreeModel = play.target
    assert (target.context, target.vocabulary, target.device.type) == (128, 61, "cpu")
    with pytest.raises(ArgumentError, match="48 tokens, got one of 60"):
        target.read(target.open(1, 48), [[5] * 60])
    with pytest.raises(ArgumentError, match="at least one row"):
        target.open(0, 8)
    with pytest.raises(ArgumentError, match="one text for each of 2 rows"):
        target.read(play.session, [[5]])
    with pytest.raises(ArgumentError, match="at least 0, got"):
        target.rewind(play.session, [4, -1])
    with pytest.raises(ArgumentError, match="0 scratch nodes were scored before these 7"):
        target.score(play.session, play.tokens, torch.ones(2, 7, 9, dtype=torch.bool), play.depth)
    session = target.open(1, 4)
    target.read(session, [[5, 6, 7] * 4])
    with pytest.raises(ArgumentError, match="16 slots per row and 19 are needed"):
        target.score(session, play.tokens[:1], play.seen[:1], play.depth[:1])
    assert play.target.cache_bytes(2, 100) == 2 * 2 * 100 * 3 * 2 * 8 * 4
