"""As `custom_generate`, spectr respects the settings of transformers."""

from typing import Any

import pytest
import torch
from tests import tiny
from tests.tiny import word_tokenizer
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    MinPLogitsWarper,
    PreTrainedModel,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteria,
    T5Config,
    T5ForConditionalGeneration,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

import spectr
from spectr.engine import Engine, Request, Result
from spectr.errors import ArgumentError, MismatchError
from spectr.policy import History, Past, Policy


def llama(seed: int, dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    return tiny.llama(
        seed, 24, dtype=dtype, num_key_value_heads=4, max_position_embeddings=128, eos_token_id=2, pad_token_id=0,
        bos_token_id=1,
    )  # fmt: skip


@pytest.fixture(scope="module")
def net() -> PreTrainedModel:
    return llama(1)


PARTS = [[3, 4], [8, 9]]
TRIE = {(): [3, 4], (3,): [5], (4,): [6, 9], (3, 5): [2], (4, 6): [2], (4, 9): [7, 2], (4, 9, 7): [2]}


def of_its_row(row: int, text: torch.Tensor) -> list[int]:
    """Allow different tokens for each row of the batch; raise for rows that do not exist."""
    assert text[:7].tolist() == IDS[row].tolist()
    return PARTS[row]


def on_the_trie(_: int, text: torch.Tensor) -> list[int]:
    return TRIE.get(tuple(text[7:].tolist()), [])


IDS = torch.tensor([[5, 6, 7, 5, 6, 7, 5], [0, 0, 0, 9, 8, 9, 8]])
MASK = (IDS > 0).long()
GREEDY = [
    {},
    {"repetition_penalty": 1.4},
    {"no_repeat_ngram_size": 2, "min_new_tokens": 12},
    {"bad_words_ids": [[7, 5], [11]], "max_new_tokens": 9},
]


@pytest.mark.parametrize(
    ("drafter", "flags"),
    [
        pytest.param(drafter, flags, marks=() if (i + j) % 2 == 0 else pytest.mark.slow)
        for i, drafter in enumerate(["lookup", "ngram", "model", "none"])
        for j, flags in enumerate(GREEDY)
    ],
)
def test_greedy_is_that_of_transformers(net: PreTrainedModel, flags: dict[str, object], drafter: str) -> None:
    """Greedy texts equal those of transformers, with and without padding, with the processors that it builds."""
    settings = {"do_sample": False, "max_new_tokens": 20, **flags}
    drafts = llama(2) if drafter == "model" else drafter
    for ids, mask in ((IDS[:1], MASK[:1]), (IDS, MASK)):
        meant = net.generate(ids, attention_mask=mask, **settings)
        found = net.generate(ids, attention_mask=mask, custom_generate=spectr.hf.generate, drafter=drafts, **settings)
        assert found.tolist() == meant.tolist()


def test_sampled_text_is_a_function_of_the_seed(net: PreTrainedModel) -> None:
    """A seed fixes the text for any drafter; without one, torch's global generator decides."""
    settings = {"do_sample": True, "temperature": 0.8, "top_p": 0.9, "max_new_tokens": 16, "attention_mask": MASK}

    def text(seed: int | None = 4, **more: object) -> list[list[int]]:
        found = net.generate(IDS, custom_generate=spectr.hf.generate, seed=seed, **settings, **more)
        return found.tolist()

    assert text(drafter="none") == text(drafter="lookup") == text(drafter=llama(2), drafts=2, length=3, nodes=6)
    assert text(5) != text(4)
    torch.manual_seed(3)
    first = text(None)
    torch.manual_seed(3)
    assert text(None) == first


RICH: dict[str, Any] = {
    "do_sample": True, "temperature": 0.8, "top_k": 18, "top_p": 0.97, "min_p": 0.005, "typical_p": 0.97,
    "epsilon_cutoff": 0.004, "eta_cutoff": 0.01, "repetition_penalty": 1.3, "no_repeat_ngram_size": 3,
    "bad_words_ids": [[9], [4, 6], [2]], "suppress_tokens": [8], "begin_suppress_tokens": [5, 10],
    "forced_eos_token_id": 2, "min_length": 12, "eos_token_id": [2, 3], "pad_token_id": 0,
}  # fmt: skip


def text_of(ids: torch.Tensor) -> str:
    return " ".join(f"w{id_}" for id_ in ids.tolist())


@pytest.fixture
def rich() -> PreTrainedModel:
    """A model whose generation_config has many settings; in float64, so that near-ties do not change texts."""
    net = llama(1).double()
    net.generation_config = GenerationConfig(**RICH)
    return net


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """A list of all requests that engines receive."""
    seen: list[Request] = []
    run = Engine.generate

    def spy(engine: Engine, requests: list[Request]) -> list[Result]:
        seen.extend(requests)
        return run(engine, requests)

    monkeypatch.setattr(Engine, "generate", spy)
    return seen


def test_a_model_has_one_policy_inside_transformers_and_out(rich: PreTrainedModel, asked: list[Request]) -> None:
    """`spectr.load` and `custom_generate` give the same distribution after every text, and the same text for a seed."""
    lm, ids = spectr.load(rich, "ngram", tokenizer=word_tokenizer(24)), IDS[:1]
    for seed in range(5):
        outside = lm.generate(text_of(ids[0]), 14, seed=seed)
        inside = rich.generate(ids, custom_generate=spectr.hf.generate, drafter="none", seed=seed, max_new_tokens=14)
        assert inside[0, 7:].tolist() == outside.tokens
        assert outside.tokens[-1] in {2, 3}
    mine, theirs = (request.policy for request in asked[:2])
    assert not mine.processors
    assert len(theirs.processors) > 5  # those that transformers built
    paths = torch.randint(3, 24, (1, 40, 13), generator=torch.Generator().manual_seed(0))
    paths[0, :, :] = torch.where(torch.arange(13) < torch.arange(40)[:, None] % 14, paths[0], -1)
    logits = 3 * torch.randn(1, 40, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    laws = [
        policy(logits, Past(History.of([ids[0].tolist()], 24, stops=lm.opened.stops, limits=[14]), paths)).softmax(-1)
        for policy in (mine, theirs)
    ]
    torch.testing.assert_close(laws[0], laws[1], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("drafter", ["none", "lookup", pytest.param("ngram", marks=pytest.mark.slow)])
def test_temperature_0_is_greedy_and_keeps_the_penalties(rich: PreTrainedModel, drafter: str) -> None:
    lm = spectr.load(rich, drafter, tokenizer=word_tokenizer(24))
    for ids in (IDS[:1], IDS[1:, 3:]):
        meant = rich.generate(ids, do_sample=False, max_new_tokens=30)[0, ids.shape[1] :].tolist()
        found = lm.generate(text_of(ids[0]), 30, temperature=0).tokens
        assert found == meant
        assert found != lm.generate(text_of(ids[0]), 30, temperature=0, repetition_penalty=1.0).tokens
        inside = rich.generate(
            ids, custom_generate=spectr.hf.generate, drafter=drafter, do_sample=False, max_new_tokens=30
        )
        assert inside[0, ids.shape[1] :].tolist() == meant


def test_a_greedy_config_decodes_greedily(rich: PreTrainedModel) -> None:
    rich.generation_config.do_sample = False
    lm = spectr.load(rich, "ngram", tokenizer=word_tokenizer(24))
    meant = rich.generate(IDS[:1], max_new_tokens=20)[0, 7:].tolist()
    assert lm.generate(text_of(IDS[0]), 20, seed=3).tokens == meant
    assert lm.generate(text_of(IDS[0]), 20, seed=3, temperature=1.0).tokens != meant


def test_settings_of_a_call_override_those_of_the_model(rich: PreTrainedModel, asked: list[Request]) -> None:
    lm = spectr.load(rich, "none", tokenizer=word_tokenizer(24))
    own = dict(lm.opened.settings)
    for given in ({}, {"temperature": 1.0}, {"top_k": 0}, {"repetition_penalty": 1.0}, {"suppress_tokens": ()},
                  {"bad_words": "w4"}, {"logit_bias": {8: 2.0}}):  # fmt: skip
        lm.generate(text_of(IDS[0]), 2, **given)
        words = {"bad_words": [[4], [4]]} if "bad_words" in given else {}
        assert asked[-1].policy == Policy(**{**own, **given, **words})
    assert own["suppress_tokens"] == (8,)
    streamed = "".join(lm.stream(text_of(IDS[0]), 6, seed=1))
    assert streamed == lm.generate(text_of(IDS[0]), 6, seed=1).text


def warpers(**settings: float) -> list[Any]:
    """Return the processors that transformers builds for these settings."""
    kinds = {"temperature": TemperatureLogitsWarper, "top_k": TopKLogitsWarper, "top_p": TopPLogitsWarper,
             "min_p": MinPLogitsWarper, "typical_p": TypicalLogitsWarper}  # fmt: skip
    return [kind(settings[name]) for name, kind in kinds.items() if name in settings]


def test_processors_become_settings_of_a_policy() -> None:
    """Filters at the end of the processors become settings if they have the order and options of a policy."""
    from spectr.hf import _split_settings

    settings = {"temperature": 0.7, "top_k": 9, "top_p": 0.8, "min_p": 0.1, "typical_p": 0.9}
    penalty, every = RepetitionPenaltyLogitsProcessor(1.3), warpers(**settings)
    assert _split_settings([penalty, *every]) == ([penalty], settings)
    assert _split_settings([*every, penalty]) == ([*every, penalty], {})  # filters before a penalty cannot be moved
    assert _split_settings(every[::-1]) == (every[:0:-1], {"temperature": 0.7})  # wrong order
    for odd in (TopPLogitsWarper(0.8, min_tokens_to_keep=2), TopKLogitsWarper(5, filter_value=-9.0)):
        assert _split_settings([every[0], odd]) == ([every[0], odd], {})


FEWER = [{"temperature": 0.7}, {"top_k": 5}, {"temperature": 1.3, "top_p": 0.8}]  # parts of the other settings


@pytest.mark.parametrize(
    "flags", [{"top_k": 9, "min_p": 0.1},
              {"temperature": 0.9, "top_p": 0.9, "typical_p": 0.8, "repetition_penalty": 1.2},
              *(pytest.param(flags, marks=pytest.mark.slow) for flags in FEWER)], ids=str
)  # fmt: skip
def test_settings_give_the_texts_of_processors(
    net: PreTrainedModel, flags: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts are the same whether filters run as settings of the policy or as processors."""

    def texts() -> list[list[list[int]]]:
        settings = {"do_sample": True, "max_new_tokens": 40, "attention_mask": MASK, "top_k": 0, **flags}
        return [
            net.generate(IDS, custom_generate=spectr.hf.generate, seed=seed, drafter="ngram", **settings).tolist()
            for seed in range(3)
        ]

    found = texts()
    monkeypatch.setattr("spectr.hf._split_settings", lambda processors: (processors, {}))
    assert found == texts()


def test_custom_processors_and_criteria(net: PreTrainedModel) -> None:
    """Custom logits processors and stopping criteria have the same effect as in transformers."""

    class Odd(LogitsProcessor):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            parity = (input_ids.sum(-1, keepdim=True) + torch.arange(scores.shape[-1])) % 2
            return scores.masked_fill(parity == 0, -torch.inf)

    class Nine(StoppingCriteria):
        def __call__(self, input_ids: torch.Tensor, scores: object, **_: object) -> torch.Tensor:
            return torch.full((len(input_ids),), input_ids.shape[1] >= 16)

    settings = {"do_sample": False, "max_new_tokens": 30, "logits_processor": [Odd()], "stopping_criteria": [Nine()]}
    meant = net.generate(IDS[:1], **settings)
    assert meant.shape[1] <= 16
    assert net.generate(IDS[:1], custom_generate=spectr.hf.generate, **settings).tolist() == meant.tolist()


def test_unsupported_settings_are_refused(net: PreTrainedModel) -> None:
    with pytest.raises(ArgumentError, match="num_beams=3"):
        net.generate(IDS[:1], custom_generate=spectr.hf.generate, num_beams=3, max_new_tokens=4)
    for flags, name in (
        ({"encoder_repetition_penalty": 1.5}, "EncoderRepetitionPenalty"),
        ({"encoder_no_repeat_ngram_size": 2}, "EncoderNoRepeatNGram"),
        ({"guidance_scale": 1.5}, "UnbatchedClassifierFreeGuidance"),
    ):
        with pytest.raises(ArgumentError, match=name):
            net.generate(IDS[:1], custom_generate=spectr.hf.generate, max_new_tokens=4, **flags)
    embedded = net.get_input_embeddings()(IDS[:1]).detach()  # type: ignore[no-untyped-call]
    with pytest.raises(ArgumentError, match="must be given as input_ids, got inputs_embeds"):
        net.generate(inputs_embeds=embedded, custom_generate=spectr.hf.generate, max_new_tokens=4)
    with pytest.raises(ArgumentError, match="rule must be a name"):
        net.generate(IDS[:1], custom_generate=spectr.hf.generate, rule=None, max_new_tokens=4)
    with pytest.raises(ArgumentError, match="return_dict_in_generate"):
        net.generate(IDS[:1], custom_generate=spectr.hf.generate, return_dict_in_generate=True, max_new_tokens=4)
    config = T5Config(vocab_size=24, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0)
    with pytest.raises(MismatchError, match=r"spectr\.load"):
        T5ForConditionalGeneration(config).generate(IDS[:1], custom_generate=spectr.hf.generate, max_new_tokens=4)


@pytest.mark.parametrize("drafter", ["none", "lookup", "ngram", "model"])
@pytest.mark.parametrize("function", [of_its_row, on_the_trie])
def test_a_prefix_constraint_gets_the_number_of_its_row(net: PreTrainedModel, drafter: str, function: object) -> None:
    """`prefix_allowed_tokens_fn` gets the index of its row, with padding, with rows that end early, and with a function
    that allows nothing outside of its trie and after the end."""
    settings = {"do_sample": False, "max_new_tokens": 12, "attention_mask": MASK, "prefix_allowed_tokens_fn": function}
    drafts = llama(2) if drafter == "model" else drafter
    for flags in ({}, {"repetition_penalty": 1.3}):
        meant = net.generate(IDS, **settings, **flags)
        found = net.generate(IDS, custom_generate=spectr.hf.generate, drafter=drafts, **settings, **flags)
        assert found.tolist() == meant.tolist()


def test_a_model_in_training_stays_in_training() -> None:
    net, small = llama(1).train(), llama(2).train()
    net.model.norm.eval()
    found = net.generate(IDS[:1], custom_generate=spectr.hf.generate, drafter=small, max_new_tokens=4, do_sample=False)
    assert net.training
    assert small.training
    assert not net.model.norm.training
    rule = spectr.rule("race")
    again = net.generate(
        IDS[:1], custom_generate=spectr.hf.generate, drafter=None, rule=rule, max_new_tokens=4, do_sample=False
    )
    assert found.tolist() == again.tolist()


@pytest.mark.gpu
def test_steps_are_captured_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that do not need the host are captured, and the text equals that of eager steps."""
    net, settings = llama(1, torch.float32).to("cuda"), {"do_sample": True, "top_k": 5, "max_new_tokens": 40}  # type: ignore[arg-type]

    def text() -> list[list[int]]:
        found = net.generate(IDS[:1].to("cuda"), custom_generate=spectr.hf.generate, seed=3, drafter="none", **settings)
        return found.tolist()

    captured = text()
    monkeypatch.setattr("spectr.engine._can_capture", lambda *_: False)  # then steps are not captured
    assert captured == text()
