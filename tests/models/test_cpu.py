"""The compiled CPU decoder computes what transformers does, and its logits have the same bits in a tree, alone and in a
prompt."""

import copy
from typing import Any

import pytest
import torch
from tests.architectures import PARENTS, ancestors
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from spectr.coins import SeededCoins
from spectr.draft import Plan, drafter
from spectr.models.cpu import CpuTarget, target_of
from spectr.models.cpu_program import is_known_family
from spectr.models.early import truncated
from spectr.models.head import head_of
from spectr.models.packed import PackedLinear, pack, packed_bytes
from spectr.models.target import Target
from spectr.policy import History
from spectr.types import Opening, Scene

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama wide": {"num_attention_heads": 2, "head_dim": 64, "attention_bias": True},
    "llama scaled": {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}},
    "mistral": {"sliding_window": 6},
    "qwen2": {},
    "qwen2 sliding": {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": 6},
    "qwen3": {"head_dim": 16},
    "gemma": {"head_dim": 16},
    "gemma2": {"head_dim": 32, "sliding_window": 6},
    "gemma3_text": {"head_dim": 16, "sliding_window": 6},
}


def made(name: str, **more: Any) -> PreTrainedModel:
    """Return a small random model of a family."""
    torch.manual_seed(0)
    size = {
        "vocab_size": 61, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1,
        "eos_token_id": 2,
    }  # fmt: skip
    config = AutoConfig.for_model(name.split(maxsplit=1)[0], **{**size, **FAMILIES[name], **more})
    net = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for weights in net.parameters():
            weights.normal_(0, 0.2) if weights.dim() > 1 else weights.add_(torch.randn_like(weights) * 0.1)
    return net.eval()


def packed(net: PreTrainedModel, kind: str | None = None) -> CpuTarget:
    other = copy.deepcopy(net)
    pack(other, kind)
    target = target_of(other)
    assert isinstance(target, CpuTarget)
    return target


def words(count: int, seed: int = 1) -> list[int]:
    return torch.randint(3, 61, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


PROMPTS = [words(21), words(13, 2)]
TREE = torch.tensor([words(len(PARENTS), 3), words(len(PARENTS), 4)])
SEEN = ancestors(PARENTS).repeat(2, 1, 1)


def played(target: Target) -> tuple[torch.Tensor, ...]:
    """Return the logits of a tree on two rows of different lengths, of one more token after an accepted path, and the
    features."""
    session = target.open(2, 64, feature_layers=(0, 1))
    target.read(session, PROMPTS)
    tree = target.score(session, TREE, SEEN, SEEN.sum(-1) - 1)
    target.keep(session, torch.tensor([[0, 2, 5], [0, 1, -1]]))
    one, zero = torch.ones(2, 1, 1, dtype=torch.bool), torch.zeros(2, 1, dtype=torch.int64)
    after = target.score(session, torch.tensor([[5], [6]]), one, zero)
    held = session.store.features
    assert held is not None
    return tree, after, held[0, : 21 + 3], held[1, : 13 + 2]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_numbers_of_transformers(name: str) -> None:
    """Logits of trees, logits after an accepted path, and features equal those of transformers in every family."""
    net = made(name)
    for ours, theirs in zip(played(packed(net)), played(Target(net)), strict=True):
        assert (ours - theirs).abs().max() < 1e-5 * theirs.abs().max()


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("threads", [1, 3])
def test_a_tree_is_plain_decoding_to_the_bit(name: str, threads: int) -> None:
    """Every node of a tree has the logits of its path read token by token, for any chunk size."""
    target = packed(made(name))
    target.threads = threads
    tree = played(target)[0]
    one, zero = torch.ones(1, 1, 1, dtype=torch.bool), torch.zeros(1, 1, dtype=torch.int64)
    for row, prompt in enumerate(PROMPTS):
        for node in range(len(PARENTS)):
            path = TREE[row][SEEN[row, node]].tolist()
            session = target.open(1, 64)
            target.chunk = 1 + node
            target.read(session, [prompt + path[:-1]])
            alone = target.score(session, torch.tensor([path[-1:]]), one, zero)
            assert torch.equal(alone[0, 0], tree[row, node])


def test_a_row_does_not_depend_on_the_other_rows() -> None:
    """A row's logits have the same bits alone and in a batch, and if only some of them are computed."""
    target = packed(made("llama"))
    session = target.open(17, 64)
    target.read(session, [words(3 + row, row) for row in range(17)])
    one, zero = torch.ones(17, 1, 1, dtype=torch.bool), torch.zeros(17, 1, dtype=torch.int64)
    together = target.score(session, torch.arange(17)[:, None], one, zero)
    for row in range(17):
        alone = target.open(1, 64)
        target.read(alone, [words(3 + row, row)])
        found = target.score(alone, torch.tensor([[row]]), one[:1], zero[:1], only=zero[:1])
        assert torch.equal(found[0], together[row])


@pytest.mark.parametrize("kind", [None, "INT8"])
def test_packed_layers_work_in_modules_of_transformers(kind: str | None) -> None:
    """Modules of transformers with packed layers compute what the compiled decoder does, and gradients flow."""
    net = made("qwen2")
    pack(net, kind)
    text = torch.tensor([PROMPTS[0]])
    with torch.no_grad():
        theirs = net(text).logits[0, -1]
    target = target_of(net)
    session = target.open(1, 64)
    target.read(session, [PROMPTS[0][:-1]])
    one, zero = torch.ones(1, 1, 1, dtype=torch.bool), torch.zeros(1, 1, dtype=torch.int64)
    ours = target.score(session, text[:, -1:], one, zero)[0, 0]
    assert (ours - theirs).abs().max() < 1e-5 * theirs.abs().max()
    states = torch.randn(1, 64, requires_grad=True)
    net.get_output_embeddings()(states).sum().backward()  # type: ignore[no-untyped-call]
    assert states.grad is not None
    assert states.grad.abs().max() > 0


def test_int8_weights_are_close_and_small() -> None:
    """int8 weights with a scale per row are within one percent of the originals and take less than 0.3 of the bytes."""
    net = made("llama")
    exact, rounded = packed(net), packed(net, "INT8")
    assert packed_bytes(rounded.model)["INT8"] < 0.3 * packed_bytes(exact.model)["F32"]
    with torch.no_grad():
        for module, other in zip(net.modules(), rounded.model.modules(), strict=False):
            if isinstance(other, PackedLinear):
                assert (module.weight - other.weight).norm() < 0.01 * module.weight.norm()


def test_an_early_exit_shares_the_weights() -> None:
    """An early exit uses the packed layers of the whole model, and has the logits of its first layers."""
    target = packed(made("llama"))
    early = target_of(truncated(target.model, 2))
    assert isinstance(early, CpuTarget)
    assert early.program.layers[0] is target.program.layers[0]
    reference = Target(truncated(made("llama"), 2))
    for ours, theirs in zip(played(early), played(reference), strict=True):
        assert (ours - theirs).abs().max() < 1e-5 * theirs.abs().max()


def test_unknown_configs_are_not_compiled() -> None:
    """Configs with unsupported sizes, activations or families are not compiled."""
    known: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    assert is_known_family(AutoConfig.for_model("llama", **known))
    for change in ({"intermediate_size": 100}, {"hidden_act": "relu"}, {"num_attention_heads": 16}):
        assert not is_known_family(AutoConfig.for_model("llama", **{**known, **change}))
    assert not is_known_family(AutoConfig.for_model("gpt2"))


@pytest.mark.parametrize("light", [False, True])
def test_compiled_heads_draft_what_plain_ones_do(light: bool) -> None:
    """The features of a tree of three depths, on two rows of different lengths that grow by steps of several tokens."""
    net = made("llama")
    pack(net)
    target = target_of(net)
    head = head_of(net, 2, (1,), light=light)
    with torch.no_grad():
        for weights in head.parameters():
            weights.normal_(0, 0.2) if weights.dim() > 1 else weights.add_(torch.randn_like(weights) * 0.1)
    pack(head)
    head.eval()
    compiled = target_of(head)
    assert isinstance(compiled, CpuTarget)
    texts = [[*PROMPTS[0], *words(9, 5)], [*PROMPTS[1], *words(9, 6)]]
    session = target.open(2, 64, feature_layers=(1,))
    target.read(session, [text[:-10] for text in PROMPTS])
    plan = Plan("fixed", tree=(3, 2, 1))
    draftings = [
        drafter("feature", head=one, target=target, plan=plan, feature_layers=(1,)).open(Opening(2, 60, 61, session))
        for one in (compiled, Target(head))
    ]
    lengths = [len(text) - 10 for text in PROMPTS]
    for drafting in draftings:
        for row, text in enumerate(texts):
            drafting.begin(row, text[: lengths[row] + 1], 60, None)
        drafting.read(0, [text[:length] for text, length in zip(texts, lengths, strict=True)], [0, 0])
    for accepted in (2, 0, 1, 3):
        known = [text[: length + 1] for text, length in zip(texts, lengths, strict=True)]
        root, active, warm = torch.tensor([text[-1] for text in known]), torch.ones(2) > 0, torch.ones(2)
        for drafting in draftings:
            scene = Scene(
                History.of(known, 61), root, active, SeededCoins(root, root), lambda x, _: x, lambda x, _: x, warm,
                max(map(len, known)),
            )  # fmt: skip
            drafting.propose(scene)
        mine, meant = (drafting._predicted for drafting in draftings)  # type: ignore[attr-defined]
        assert mine.shape == meant.shape == (2, 10, 64)
        assert torch.allclose(mine, meant, atol=1e-4 * float(meant.abs().max()))
        fresh = [text[length : length + 1 + accepted] for text, length in zip(texts, lengths, strict=True)]
        target.read(session, fresh)
        lengths = [length + 1 + accepted for length in lengths]
        for drafting in draftings:
            drafting.keep(torch.tensor([[1, 4, 10][:accepted] + [-1] * (3 - accepted)] * 2))
