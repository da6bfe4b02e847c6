"""`spectr.load` and `LM`: texts, streams, conversations, statistics, and error messages."""

from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

import spectr
from spectr.errors import ArgumentError, MismatchError, SpectrError, UnknownNameError
from spectr.lm.output import TextHandle

ASK = "the quick brown fox jumps over the quick brown"


def test_the_text_does_not_depend_on_the_drafter(folder: Path, small: Path) -> None:
    """Under the race all drafters, also several at once, give the text of plain decoding."""
    plain = spectr.load(str(folder), drafter="none")
    meant = plain.generate(ASK, 40, seed=5, temperature=0.9)
    for drafter in ("lookup", "ngram", "early_exit", "random", str(small), f"lookup+{small}", ["lookup", "ngram"]):
        lm = spectr.load(str(folder), drafter=drafter)
        found = lm.generate(ASK, 40, seed=5, temperature=0.9)
        assert found.tokens == meant.tokens
        assert found.text == meant.text
        assert found.stats.emitted == len(found.tokens)
    assert meant.stats.block_efficiency == 1
    assert meant.text == plain.tokenizer.decode(meant.tokens, skip_special_tokens=True)


def test_options_reach_the_drafter(folder: Path) -> None:
    """Drafts, length, nodes, layers, order and text are passed to the drafter."""
    lm = spectr.load(str(folder), "early_exit", drafts=3, length=2, nodes=6, layers=1)
    assert lm.engine.drafter.plan.budget == spectr.trees.Budget(6, 3, 2)  # type: ignore[attr-defined]
    chains = spectr.load(str(folder), "ngram", "optimal", drafts=3, length=2)
    assert (chains.engine.drafter.siblings, chains.engine.drafter.nodes) == ("iid", 7)
    assert spectr.load(str(folder), "random", "block").engine.drafter.nodes == 5
    learnt = spectr.load(str(folder), "ngram", text="the quick brown fox " * 20, order=5)
    guess = learnt.generate("the quick", 12, raw=True, temperature=0, allowed=lambda _: None)
    assert guess.stats.drafted > 0


def test_batches_and_seeds(folder: Path) -> None:
    """Each text of a batch has its own seed, with which it can be generated alone."""
    lm = spectr.load(str(folder))
    prompts = [ASK, "tides", ASK]
    rows = lm.generate(["tides", ASK], 20, seed=3, n=2, raw=True)
    assert rows[0].seed == 3
    alone = [lm.generate(p, 20, seed=rows[i].seed, raw=True) for i, p in enumerate(["tides", "tides", ASK, ASK])]
    assert [out.tokens for out in rows] == [out.tokens for out in alone]
    assert len({out.seed for seed in (3, 4) for out in lm.generate([ASK] * 4, 1, seed=seed)}) == 8  # all differ
    one = lm.generate(ASK, 20, seed=3, n=2)
    assert [out.seed for out in one] == [out.seed for out in rows[:2]]
    together = lm.generate(prompts, 20, seeds=[9, 9, 9], raw=True)
    assert together[0].tokens == together[2].tokens != together[1].tokens
    with pytest.raises(ArgumentError, match="one number for each of 3 texts, got 1"):
        lm.generate(prompts, 4, seeds=[1])


def test_stop_strings_cross_tokens(folder: Path) -> None:
    """A stop string is found across tokens and is not part of the text, in generate and in stream."""
    lm = spectr.load(str(folder))
    free = lm.generate(ASK, 60, seed=2, raw=True).text
    stop = free[10:14]
    cut = lm.generate(ASK, 60, seed=2, raw=True, stop=[stop, "never there"])
    assert cut.text == free[: free.index(stop)]
    assert cut.finish_reason == "stop"
    assert "".join(lm.stream(ASK, 60, seed=2, raw=True, stop=stop)) == cut.text


def test_a_stream_gives_the_text_and_can_be_closed(folder: Path) -> None:
    """The pieces of a stream add up to the text, and a stream can be closed after its first piece."""
    lm = spectr.load(str(folder))
    pieces = list(lm.stream(ASK, 50, seed=8, min_new_tokens=50))
    assert "".join(pieces) == lm.generate(ASK, 50, seed=8, min_new_tokens=50).text
    assert len(pieces) > 10
    left = lm.stream(ASK, 50, seed=8, min_new_tokens=50)
    assert next(left) == pieces[0]
    left.close()


def test_log_probabilities_are_the_models(folder: Path) -> None:
    """Log-probabilities are those of the model at temperature 1, whatever the policy."""
    lm = spectr.load(str(folder))
    out = lm.generate(ASK, 16, seed=1, temperature=0.5, raw=True, logprobs=True)
    ids = torch.tensor([lm.encode(ASK, raw=True) + out.tokens])
    with torch.no_grad():
        law = lm.opened.target.model(ids).logits[0, -len(out.tokens) - 1 : -1].log_softmax(-1)
    meant = law.gather(-1, torch.tensor(out.tokens)[:, None])[:, 0]
    assert torch.allclose(torch.tensor(out.logprobs), meant, atol=1e-4)


def test_statistics(folder: Path, small: Path) -> None:
    """The counts of steps, drafts, corrections and bonuses add up to the tokens of the text."""
    out = spectr.load(str(folder), str(small), nodes=20).generate(ASK, 60, seed=1, optimality_gap=True)
    stats = out.stats
    assert stats.corrections + stats.bonuses <= stats.steps
    assert stats.emitted == len(out.tokens) == stats.accepted + stats.corrections + stats.bonuses
    assert sum(stats.ranks) == stats.accepted == sum(stats.kept)
    assert stats.optimality_gap is not None
    assert 0 < stats.best <= stats.measured == sum(stats.reached)
    assert abs(sum(stats.acceptance_by_rank) - stats.accepted / sum(stats.reached)) < 1e-9
    assert sum(len(step.tokens) for step in out.steps) == len(out.tokens)
    assert spectr.load(str(folder)).generate(ASK, 8).stats.optimality_gap is None


def test_the_best_coupling_is_what_optimal_reaches(folder: Path, small: Path) -> None:
    """Under rule `optimal` the optimality gap is zero up to noise; under a worse rule it is larger."""
    gaps = {}
    for rule in ("optimal", "recursive"):
        lm = spectr.load(str(folder), str(small), rule, drafts=4, length=1)
        outputs = lm.generate([ASK] * 40, 40, seed=1, optimality_gap=True)
        reached = sum(out.stats.measured for out in outputs)
        gaps[rule] = sum(out.stats.best - out.stats.accepted for out in outputs) / reached
        assert reached > 500
    assert abs(gaps["optimal"]) < 6 * (0.25 / 500) ** 0.5
    assert gaps["recursive"] > gaps["optimal"]


def test_a_conversation_prefills_only_new_tokens(folder: Path) -> None:
    """Each turn reuses the cache of the previous ones and has the same answer as a new conversation."""
    chat = spectr.load(str(folder)).chat()
    first = "".join(chat.say("one two three", 12, seed=4))
    assert chat.reused == 0
    said = chat.turns[-1]
    assert said == {"role": "assistant", "content": first}
    second = "".join(chat.say("and then?", 12, seed=4))
    assert chat.reused > 5
    fresh = spectr.load(str(folder)).chat()
    fresh.turns = chat.turns[:2]
    assert "".join(fresh.say("and then?", 12, seed=4)) == second  # reusing the cache does not change the text
    pieces = chat.say("more", 200)
    next(pieces)
    pieces.close()
    assert chat.turns[-1]["role"] == "assistant"
    assert "".join(chat.say("and on", 8, seed=1)) != ""


def test_a_conversation_continues_after_an_empty_answer(folder: Path) -> None:
    """A model may end its answer at once."""
    chat = spectr.load(str(folder)).chat()
    assert "".join(chat.say("one two three", 4, logit_bias={chat.lm.tokenizer.eos_token_id: 1000.0})) == ""
    assert chat.turns[-1] == {"role": "assistant", "content": ""}
    assert "".join(chat.say("and then?", 4, seed=1)) != ""
    with pytest.raises(ArgumentError, match="content of a message must not be empty"):
        chat.lm.encode([{"role": "user", "content": ""}])
    chat.turns = [{"role": "system", "content": None}]  # type: ignore[dict-item]
    with pytest.raises(ArgumentError, match="content of a message must be a string"):
        chat.say("one")


@pytest.mark.parametrize("limit", [1, 2, 3, 12])
def test_an_answer_that_is_left_stays_in_the_conversation(folder: Path, limit: int) -> None:
    """However it is left: by another message, by closing it, or after its last piece was taken."""
    lm = spectr.load(str(folder))
    first = {"role": "user", "content": "one two three"}
    for leave in (lambda _: None, TextHandle.close, TextHandle.cancel):
        chat = lm.chat()
        answer = chat.say(first["content"], limit, seed=4, min_new_tokens=limit)
        pieces = list(islice(answer, min(limit, 3)))
        leave(answer)
        said = {"role": "assistant", "content": "".join(pieces)}
        second = chat.say("and then?", 4, seed=1)
        assert chat.turns == [first, said]
        list(second)
        assert [turn["role"] for turn in chat.turns] == ["user", "assistant"] * 2
        assert chat.turns[:2] == [first, said]
    chat = lm.chat()
    never, other = (
        chat.say("one", 12, seed=4),
        chat.say("two", 12, seed=4),
    )  # the first is never begun, so it is dropped
    list(never)
    list(other)
    assert [turn["content"] for turn in chat.turns[::2]] == ["two"]
    next(running := chat.say("three", 12, seed=4, min_new_tokens=12))
    with pytest.raises(ArgumentError):
        chat.say("four", temperature=-1)
    assert running.finish_reason is None  # a message that is refused does not end it
    list(running)
    assert [turn["content"] for turn in chat.turns[::2]] == ["two", "three"]
    chat = lm.chat()
    next(chat.say("one", 12, seed=4))
    chat.turns = [{"role": "system", "content": "Brief."}]  # what the user sets meanwhile stays
    list(chat.say("two", 2, seed=4))
    assert [turn["content"] for turn in chat.turns[:2]] == ["Brief.", "two"]


def test_a_turn_that_fails_leaves_no_trace(folder: Path) -> None:
    """After a turn has failed, neither the turns nor the cache contain it, even if turns are edited afterwards."""

    def refuses(text: list[int]) -> list[int] | None:
        raise RuntimeError(f"no law after {len(text)} tokens")

    lm = spectr.load(str(folder), "ngram")
    chat = lm.chat()
    first = "".join(chat.say("one two three four five", 20, seed=4))
    turns = list(chat.turns)
    for hook in (refuses, lambda _: []):
        chat.turns = []
        with pytest.raises((RuntimeError, ArgumentError)):
            list(chat.say("six seven eight nine ten, and something else", 20, allowed=hook))
        assert chat.turns == []
        assert "".join(chat.say("one two three four five", 20, seed=4)) == first
        assert chat.turns == turns
    with pytest.raises(RuntimeError):
        list(chat.say("and then?", 20, allowed=refuses))
    assert chat.turns == turns
    fresh = lm.chat()
    fresh.turns = turns
    assert "".join(chat.say("and then?", 12, seed=4)) == "".join(fresh.say("and then?", 12, seed=4))


def test_an_interrupted_answer_stays(folder: Path) -> None:
    """After an interrupt the turns contain the question and the answer so far."""
    chat = spectr.load(str(folder), "none").chat()
    calls = []

    def interrupts(text: list[int]) -> None:
        calls.append(text)
        if len(calls) == 9:
            raise KeyboardInterrupt

    pieces = []
    with pytest.raises(KeyboardInterrupt):
        pieces.extend(chat.say("one two", 40, min_new_tokens=40, allowed=interrupts))
    assert [turn["role"] for turn in chat.turns] == ["user", "assistant"]
    assert chat.turns[-1]["content"] != ""


def test_a_conversation_that_is_too_long_says_what_to_do(folder: Path) -> None:
    """A turn that does not fit into the context is refused with advice, and the conversation can continue."""
    chat = spectr.load(str(folder)).chat()
    said = "".join(chat.say("one two three", 6))
    with pytest.raises(ArgumentError, match=r"512 positions, got .* take early turns out of turns"):
        chat.say("quick brown " * 400, 6)  # immediately, not when the first piece is requested
    with pytest.raises(ArgumentError, match="lower max_new_tokens"):
        chat.say("four", 500)
    assert chat.turns == [{"role": "user", "content": "one two three"}, {"role": "assistant", "content": said}]
    assert "".join(chat.say("four", 6, seed=1)) != ""


def test_a_forced_first_token_belongs_to_the_prompt(translator: Path) -> None:
    """A forced first token is not among the generated tokens, and the rest equals the text of transformers."""
    net, words = AutoModelForSeq2SeqLM.from_pretrained(translator), AutoTokenizer.from_pretrained(translator)
    net.generation_config.forced_bos_token_id = 7
    meant = net.generate(torch.tensor([words(ASK)["input_ids"]]), do_sample=False, max_new_tokens=12)[0].tolist()
    assert meant[:2] == [0, 7]
    for drafter in ("none", "lookup"):
        found = spectr.load(net, drafter, tokenizer=words).generate(ASK, 11, temperature=0).tokens
        assert found == meant[2:]


def test_encoder_decoder(translator: Path, folder: Path) -> None:
    """An encoder-decoder model has the same text with any drafter; it has no chat, and no decoder-only drafter."""
    plain, lookup = (spectr.load(str(translator), drafter=name) for name in ("none", "lookup"))
    assert plain.generate(ASK, 20, seed=1).tokens == lookup.generate(ASK, 20, seed=1).tokens
    with pytest.raises(ArgumentError, match="decoder-only"):
        lookup.chat().say("hello")
    with pytest.raises(MismatchError, match="both have an encoder"):
        spectr.load(str(translator), drafter=str(folder))


def test_a_loaded_model_is_not_copied(folder: Path) -> None:
    """A loaded model is used as it is, and an early exit shares its weights."""
    lm = spectr.load(str(folder))
    again = spectr.load(lm.opened.target.model, "ngram", tokenizer=lm.tokenizer)
    assert again.opened.target.model is lm.opened.target.model
    assert again.generate(ASK, 9, seed=2).tokens == lm.generate(ASK, 9, seed=2).tokens
    early = spectr.load(str(folder), "early_exit")
    ours, theirs = (dict(m.named_parameters()) for m in (early.opened.target.model, early.engine.drafter.model.model))  # type: ignore[attr-defined]
    assert {theirs[name].data_ptr() for name in theirs} <= {weights.data_ptr() for weights in ours.values()}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"temprature": 1}, "did you mean temperature"),
        ({"max_token": 3}, "did you mean max_tokens"),
        ({"max_tokens": 3, "max_new_tokens": 3}, "max_tokens and max_new_tokens mean the same"),
        ({"num_beams": 4}, "beam search is not supported"),
        ({"n": 0}, "n must be at least 1"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1"),
        ({"max_new_tokens": 600}, "512 positions"),
        ({"stop": [""]}, "stop"),
        ({"top_p": 3}, "top_p"),
        ({"n": "2"}, "n must be a whole number, got '2'"),
        ({"seed": 1.5}, "seed must be a whole number, got 1.5"),
        ({"seeds": 3}, "seeds must be a list of whole numbers"),
        ({"seeds": [1.0]}, "each of seeds must be a whole number"),
        ({"max_new_tokens": 5.0}, "max_new_tokens must be a whole number"),
        ({"stop": 5}, "stop must be a string or a list of strings, got 5"),
        ({"processors": [lambda _ids, _scores: None]}, "must return logits of the shape"),
    ],
)
def test_bad_settings(folder: Path, settings: dict[str, object], sentence: str) -> None:
    """`generate` refuses bad settings with a sentence that says what must hold."""
    with pytest.raises(ArgumentError, match=sentence):
        spectr.load(str(folder)).generate(ASK, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("prompts", [None, 5, b"bytes", [ASK, None], [1, 2.5], [[True]]])
def test_invalid_prompts(folder: Path, prompts: Any) -> None:
    """generate, stream and chat refuse what is not a prompt."""
    lm = spectr.load(str(folder))
    for call in (lm.generate, lm.stream, lm.chat().say):
        with pytest.raises(ArgumentError, match=r"a string, (a list of )?token ids"):
            call(prompts, 4)


def test_prompts_are_texts_ids_or_messages(folder: Path) -> None:
    """A prompt may be a string, token ids or messages, alone or in a list; invalid ones are refused."""
    lm = spectr.load(str(folder))
    meant = lm.generate(ASK, 8, seed=3).tokens
    messages = [{"role": "user", "content": ASK}]
    ids = lm.encode(ASK)
    for prompt in (messages, ids, tuple(ids), torch.tensor(ids)):
        assert lm.generate(prompt, 8, seed=3).tokens == meant
        assert lm.stream(prompt, 8, seed=3).output.seed == 3
        (only,) = lm.generate([prompt], 8, seed=3)
        assert only.tokens == meant
    with pytest.raises(ArgumentError, match="must have a role and a content"):
        lm.generate([{"role": "user"}], 8)  # type: ignore[list-item]
    with pytest.raises(ArgumentError, match="tokens of a prompt must lie in 0 … 319"):
        lm.generate([1, 320], 8)
    with pytest.raises(ArgumentError, match="valid Unicode text"):
        lm.generate("caf\udce9", 8)


def test_ids_need_no_tokenizer(folder: Path) -> None:
    """A model without a tokenizer generates from token ids, and has no text."""
    lm = spectr.load(AutoModelForCausalLM.from_pretrained(folder))
    out = lm.generate([5, 6, 7], max_tokens=6, seed=1)
    assert (len(out.tokens), out.text) == (6, "")
    assert list(lm.stream([5, 6, 7], 6, seed=1)) == []
    with pytest.raises(ArgumentError, match="text needs a tokenizer"):
        lm.generate([5, 6, 7], stop=["."])


def test_seeds_are_random_unless_given(folder: Path) -> None:
    """Without a seed texts differ; the reported seed reproduces them."""
    lm = spectr.load(str(folder))
    outputs = [lm.generate(ASK, 12) for _ in range(4)]
    assert len({tuple(out.tokens) for out in outputs}) == 4  # equal with a chance far below 1e-6
    for out in outputs[:2]:
        assert lm.generate(ASK, 12, seed=out.seed).tokens == out.tokens
    pieces = lm.stream(ASK, 12)
    assert "".join(pieces) == lm.generate(ASK, 12, seed=pieces.seed).text
    assert pieces.output.tokens == lm.generate(ASK, 12, seed=pieces.seed).tokens


def test_a_stream_has_the_output_so_far(folder: Path) -> None:
    """A stream that is left early is cancelled and has the tokens, text and statistics so far."""
    lm = spectr.load(str(folder))
    whole = lm.generate(ASK, 30, seed=8, min_new_tokens=30)
    with lm.stream(ASK, 30, seed=8, min_new_tokens=30) as pieces:
        first = next(pieces)
    assert (pieces.finish_reason, pieces.output.finish_reason) == ("cancelled", "cancelled")
    assert pieces.text.startswith(first)
    assert whole.tokens[: len(pieces.tokens)] == pieces.tokens
    assert pieces.stats.emitted == len(pieces.tokens) < 30
    assert list(pieces) == []


def test_threads_may_share_an_lm(folder: Path, small: Path) -> None:
    lm = spectr.load(str(folder), str(small), nodes=6)
    meant = [lm.generate(ASK, 16, seed=seed).tokens for seed in range(12)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda seed: lm.generate(ASK, 16, seed=seed).tokens, range(12)))
        streams = list(pool.map(lambda seed: "".join(lm.stream(ASK, 16, seed=seed)), range(12)))
    assert found == meant
    assert streams == [lm.tokenizer.decode(tokens, skip_special_tokens=True) for tokens in meant]


def test_a_loaded_model_stays_in_its_mode(folder: Path) -> None:
    """A model in training mode generates without dropout and stays in training mode."""
    net, words = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    net.config.attention_dropout = 0.5
    for layer in net.model.layers:
        layer.self_attn.attention_dropout = 0.5
    meant = spectr.load(net.eval(), "none", tokenizer=words).generate(ASK, 16, seed=1).tokens
    net.train()
    lm = spectr.load(net, "early_exit", tokenizer=words)
    assert net.training
    assert lm.generate(ASK, 16, seed=1).tokens == meant  # no dropout while it generates
    assert all(module.training for module in net.modules())


def test_a_template_that_refuses_a_role(folder: Path) -> None:
    """If the chat template raises, the error names the roles and the template's reason."""
    words = AutoTokenizer.from_pretrained(folder)
    words.chat_template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}x"
    lm = spectr.load(folder, "none", tokenizer=words)
    with pytest.raises(ArgumentError, match="refuses messages of system, user: no system role"):
        lm.generate([{"role": "system", "content": "a"}, {"role": "user", "content": "b"}])


def test_repr_of_an_lm(folder: Path) -> None:
    lm = spectr.load(str(folder), "ngram", drafts=2, length=2)
    assert repr(lm) == f"<LM {str(folder)!r}: drafter=ngram, nodes=5, rule=race, float32 on cpu>"


@pytest.mark.parametrize("name", ["n", "seeds"])
def test_settings_that_a_stream_refuses(folder: Path, name: str) -> None:
    lm, setting = spectr.load(str(folder)), {name: [1] if name == "seeds" else 2}
    for call in (lm.stream, lm.chat().say):
        with pytest.raises(ArgumentError, match=f"takes no {name}; use generate"):
            call(ASK, 4, **setting)


def test_a_stream_reports_what_generate_reports(folder: Path) -> None:
    """The output of a stream has the log-probabilities and statistics of generate."""
    lm = spectr.load(str(folder), "ngram", drafts=2, length=2)
    asked = {"seed": 5, "logprobs": True, "optimality_gap": True}
    meant, pieces = lm.generate(ASK, 16, **asked), lm.stream(ASK, 16, **asked)  # type: ignore[arg-type]
    assert "".join(pieces) == meant.text
    assert pieces.output.tokens == meant.tokens
    assert pieces.output.logprobs == pytest.approx(meant.logprobs)
    assert pieces.stats.optimality_gap == pytest.approx(meant.stats.optimality_gap)
    assert lm.stream(ASK, 4).output.logprobs is None


def test_arguments_of_other_types_are_accepted(folder: Path) -> None:
    """Paths, rules, devices, dtypes, tensors with one number, and generators of prompts are accepted."""
    lm = spectr.load(folder, None, spectr.rule("race"), device=torch.device("cpu"), dtype=torch.float32)
    meant = lm.generate(ASK, 5, seed=3).tokens
    assert lm.engine.drafter.name == "none"
    assert lm.generate(ASK, 5, seed=3 + 2**64, stop=None, processors=None).tokens == meant
    assert lm.generate(ASK, torch.tensor(5), seed=3, processors=lambda _, scores: scores).tokens == meant  # type: ignore[call-overload]
    assert spectr.load(folder, folder).generate(ASK, 5, seed=3).tokens == meant
    assert lm.generate((ASK for _ in range(1)), 5, seed=3)[0].tokens == meant  # type: ignore[call-overload]


def test_a_bad_word_may_stand_alone(folder: Path) -> None:
    """A single string of bad words is one word, not a list of characters."""
    lm = spectr.load(str(folder))
    one, listed, letters = (lm.requests([1], 5, [0], bad_words=words)[0].policy for words in ("fox", ["fox"], [*"fox"]))
    assert one == listed != letters
    with pytest.raises(ArgumentError, match="bad_words must be a list of strings or of sequences"):
        lm.generate(ASK, 5, bad_words=5)
    assert lm.requests([1], 5, [0], bad_words=None)[0].policy.bad_words == ()
    first, second = lm.generate([ASK, ASK], 8, seed=1, bad_words=[["fox"], None])
    assert first.tokens == lm.generate(ASK, 8, seed=first.seed, bad_words="fox").tokens
    assert second.tokens == lm.generate(ASK, 8, seed=second.seed).tokens


def test_tokenizers(folder: Path, tmp_path: Path) -> None:
    """A given tokenizer is used; without one, text is refused with advice."""
    net, words = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    net.save_pretrained(tmp_path)
    assert spectr.load(tmp_path, tokenizer=words).tokenizer is words
    assert spectr.load(folder, tokenizer=words).tokenizer is words
    with pytest.raises(SpectrError, match="has no tokenizer that can be loaded; give one"):
        spectr.load(tmp_path)
    with pytest.raises(ArgumentError, match="tokenizer must be a loaded tokenizer"):
        spectr.load(folder, tokenizer=5)
    mute = spectr.load(net)
    for call in (mute.generate, mute.stream, mute.chat().say):
        with pytest.raises(ArgumentError, match="text needs a tokenizer"):
            call(ASK)
    with pytest.raises(ArgumentError, match="text needs a tokenizer"):
        mute.generate([1, 2], 2, bad_words=["fox"])
    with pytest.raises(ArgumentError, match="text for ngram needs a tokenizer"):
        spectr.load(net, "ngram", text="one two")


def test_bad_loads(folder: Path, foreign: Path) -> None:
    """`load` refuses bad names, options and combinations with a sentence that says what must hold."""
    bad: list[tuple[type[SpectrError], str, dict[str, object]]] = [
        (UnknownNameError, "did you mean lookup\\? Known: auto, none, lookup", {"drafter": "lookupp"}),
        (ArgumentError, "did you mean nodes\\? Known", {"node": 4}),
        (UnknownNameError, "race", {"rule": "raec"}),
        (MismatchError, "must share their tokens", {"drafter": str(foreign)}),
        (MismatchError, "holds for siblings", {"drafter": "lookup", "rule": "recursive_wor"}),
        (MismatchError, "verifies one chain", {"drafter": "ngram", "rule": "block", "drafts": 2}),
        (ArgumentError, "drafts must be at least 1, got 0", {"drafter": "ngram", "drafts": 0}),
        (ArgumentError, "rows must be at least 1, got 0", {"rows": 0}),
        (ArgumentError, "takes no options; got length", {"drafter": "none", "length": 3}),
        (ArgumentError, "nodes would change nothing: there is no trained drafter", {"nodes": 8}),
        (ArgumentError, "did you mean dtype", {"dtyp": "float32"}),
        (ArgumentError, "dtype must be", {"dtype": "float8"}),
        (ArgumentError, "must be the name or folder of a model", {"drafter": "model"}),
        (ArgumentError, "layers must be between 1 and 2, got 9", {"drafter": "early_exit", "layers": 9}),
        (ArgumentError, "layers must be between 1 and 2, got 0", {"drafter": "early_exit", "layers": 0}),
        (ArgumentError, "length must be a whole number, got '4'", {"drafter": "ngram", "length": "4"}),
        (ArgumentError, "must be a whole number, got 2.0", {"drafter": "ngram", "tree": (2.0, 2)}),
        (ArgumentError, "tree must be a sequence", {"drafter": "ngram", "tree": 3}),
        (ArgumentError, "a model must be a name, a folder", {"drafter": 5}),
        (ArgumentError, "drafter must be a name, or several", {"drafter": "lookup+"}),
        (ArgumentError, "rule must be a name", {"rule": None}),
        (ArgumentError, "device must be cpu, cuda", {"device": "gpu"}),
        (ArgumentError, "needs float64, which is not tested on mps; use device='cpu'", {"device": "mps"}),
        (UnknownNameError, "no drafter is called 'nosuch'; Known: auto, none, lookup", {"drafter": "nosuch"}),
    ]
    for kind, sentence, options in bad:
        with pytest.raises(kind, match=sentence):
            spectr.load(str(folder), **options)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="a model must be a name, a folder"):
        spectr.load(None)
    net = AutoModelForCausalLM.from_pretrained(folder)
    with pytest.raises(ArgumentError, match="this model is loaded already, so dtype, device would change nothing"):
        spectr.load(net, dtype="float64", device="cpu")
    for prompts in ("", [], ["a", ""]):
        with pytest.raises(ArgumentError, match="must not be empty"):
            spectr.load(str(folder)).generate(prompts)
    lm = spectr.load(str(folder))
    with pytest.raises(ArgumentError, match="prompts must be a string, token ids or messages, or a list of those"):
        lm.generate({"role": "user", "content": "x"}, 5)  # type: ignore[call-overload]
    with pytest.raises(ArgumentError, match="stop_ids must be a list of token ids, got 3"):
        lm.generate(ASK, 5, stop_ids=3)
