"""`spectr train`: trains a drafter that `spectr.load` accepts; runs are continued, and other targets refused."""

import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.saved import save_model, small_llama, tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

import spectr
from spectr.cli import main
from spectr.cli.output import talk
from spectr.errors import ArgumentError, MismatchError
from spectr.lm import LM
from spectr.models.head import FeatureHead, head_of
from spectr.models.trained import fingerprint, load_for_training
from spectr.train.distil import Distilling, distil
from spectr.train.loop import Course

ASK = "the quick brown fox"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(small_llama(0, 320), tmp_path_factory.mktemp("target"), tokenizer())


def settings(folder: Path, out: Path, seconds: float = 60.0, **more: object) -> Distilling:
    course = Course(seconds, 60, depths=2, budget=1024)  # as many steps on every machine
    return Distilling(str(folder), out, prompts=60, longest=(16,), rows=60, layers=1, course=course, **more)  # type: ignore[arg-type]


def exact(folder: Path, drafter: str | Path, **options: object) -> LM:
    """Load in float64, where texts do not depend on drafts at near-ties either."""
    return spectr.load(str(folder), drafter, dtype="float64", **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def made(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out, said = tmp_path_factory.mktemp("drafter"), list[str]()
    about = distil(settings(folder, out), said.append)
    assert about.training["texts"] > 50
    assert any("acceptance of one draft" in sentence for sentence in said)
    return out


def test_the_folder_is_a_drafter(folder: Path, made: Path) -> None:
    plain, drafted = exact(folder, "none"), exact(folder, made, nodes=9)
    assert drafted.engine.drafter.name == "feature"
    texts = [lm.generate([ASK, "tides"], 30, seed=3) for lm in (plain, drafted)]
    assert [out.tokens for out in texts[0]] == [out.tokens for out in texts[1]]
    assert sum(out.stats.accepted for out in texts[1]) > 0
    card = (made / "drafter_card.md").read_text()
    assert "never the distribution of the text" in card
    assert "seconds (60 steps) on" in card  # the time that it took, and not the 60 seconds that it might have taken
    stored = json.loads((made / "drafter.json").read_text())
    assert stored["kind"] == "feature"
    layers = list(drafted.engine.drafter.feature_layers)  # type: ignore[attr-defined]
    assert stored["shape"]["taps"] == layers  # the stored key is that of all versions
    assert "feature_layers" not in stored["shape"]
    modes = {path.name: path.stat().st_mode & 0o777 for path in made.iterdir()}
    umasked = {modes[name] for name in ("drafter.json", "drafter.safetensors", "samples.safetensors")}
    assert len(umasked) == 1
    chains = spectr.load(str(folder), made, "optimal", drafts=2, length=3)
    assert len(chains.generate(ASK, 10, min_new_tokens=10).tokens) == 10


def test_conversations_keep_features(folder: Path, made: Path) -> None:
    chats = [exact(folder, drafter).chat() for drafter in ("none", made)]
    for turn in ("one two three", "and then?", "more"):
        texts = ["".join(chat.say(turn, 10, seed=2)) for chat in chats]
        assert texts[0] == texts[1]
    assert chats[0].reused == chats[1].reused > 10


def test_the_callers_generator_is_left_alone(folder: Path, tmp_path: Path) -> None:
    before = torch.random.get_rng_state()
    distil(settings(folder, tmp_path, 0.2), lambda _: None)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_finished_run_is_not_run_again(folder: Path, made: Path) -> None:
    before = (made / "samples.safetensors").stat().st_mtime_ns
    said: list[str] = []
    again = distil(settings(folder, made), said.append)
    assert (made / "samples.safetensors").stat().st_mtime_ns == before
    assert any(sentence.startswith("continuing at step") for sentence in said)
    assert again.training["curve"]


def test_a_killed_run_goes_on(folder: Path, tmp_path: Path) -> None:
    class KilledError(Exception):
        pass

    def kill(sentence: str) -> None:
        if sentence.startswith("step"):
            raise KilledError

    with pytest.raises(KilledError):
        distil(settings(folder, tmp_path, 0.4), kill)
    assert not (tmp_path / "drafter.json").exists()
    said: list[str] = []
    distil(settings(folder, tmp_path, 0.4), said.append)
    assert (tmp_path / "drafter.json").exists()


def test_sampling_goes_on(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers of an interrupted run are kept, and with the others they are those of an uninterrupted run."""

    class KilledError(Exception):
        pass

    sampled = list[float]()

    @contextmanager
    def bar(title: str, _total: float) -> Iterator[Callable[[float], None]]:
        def advance(count: float) -> None:
            if title == "sampling answers to train on":
                sampled.append(count)
                if len(sampled) == 4:
                    raise KilledError

        yield advance

    def settled(out: Path) -> Distilling:
        return replace(settings(folder, out), rows=16, course=Course(60.0, 2, depths=2, budget=1024))

    monkeypatch.setattr("spectr.train.distil._WRITE_EVERY", 0.0)
    once, twice = tmp_path / "once", tmp_path / "twice"
    with pytest.raises(KilledError):
        distil(settled(twice), lambda _: None, bar)
    assert (twice / "begun_samples.safetensors").exists()
    distil(settled(twice), lambda _: None, bar)
    assert sampled[:5] == [0, 16, 16, 16, 32]  # two batches were written when the third came
    assert not list(twice.glob("begun_*"))
    distil(settled(once), lambda _: None)
    for name in ("samples.safetensors", "held_out.safetensors", "drafter.safetensors"):
        assert (once / name).read_bytes() == (twice / name).read_bytes()


def test_some_tokens(folder: Path, tmp_path: Path) -> None:
    """A head that learnt some tokens drafts these and no others, even if more are asked for."""
    distil(settings(folder, tmp_path, 0.5, vocabulary=64), lambda _: None)
    about = json.loads((tmp_path / "drafter.json").read_text())
    assert (about["rows"], about["learnt_tokens"]) == (64, 64)
    more = spectr.load(str(folder), tmp_path, vocabulary=200).engine.drafter.head.model  # type: ignore[attr-defined]
    assert len(more.drafted) == 64
    lm = exact(folder, tmp_path)
    head = lm.engine.drafter.head.model  # type: ignore[attr-defined]
    logits = head.logits(torch.randn(1, 1, 32))
    assert logits.shape[-1] == 320
    assert int((logits > logits.min()).sum()) == 64  # the others stand below, all alike
    assert float(logits.max() - logits.min()) == pytest.approx(100, abs=1e-3)
    missing = int((logits == logits.min()).nonzero()[0, -1])
    only = {"max_new_tokens": 3, "seed": 1, "allowed": lambda _: [missing]}
    for rule in ("race", "optimal"):  # a policy that leaves nothing the head can draft
        assert spectr.load(str(folder), tmp_path, rule).generate(ASK, **only).tokens == [missing] * 3  # type: ignore[arg-type]
    assert lm.generate(ASK, 20, seed=1).tokens == exact(folder, "none").generate(ASK, 20, seed=1).tokens


def test_the_race_with_some_tokens_is_refused_before_the_work(folder: Path, tmp_path: Path) -> None:
    how = settings(folder, tmp_path / "a", vocabulary=64)
    with pytest.raises(ArgumentError, match="race needs all tokens"):
        distil(replace(how, course=replace(how.course, objective="race")), lambda _: None)
    assert not (tmp_path / "a").exists()


def test_parallel_heads(folder: Path, tmp_path: Path) -> None:
    about = distil(settings(folder, tmp_path, 1.0, kind="blockwise"), lambda _: None)
    assert about.shape["depths"] == 2
    lm = exact(folder, tmp_path, drafts=2, length=2)
    assert lm.engine.drafter.name == "blockwise"
    assert lm.generate(ASK, 20, seed=1).tokens == exact(folder, "none").generate(ASK, 20, seed=1).tokens
    assert "2 parallel heads" in (tmp_path / "drafter_card.md").read_text()
    with pytest.raises(ArgumentError, match="at most 2 tokens long"):
        spectr.load(str(folder), tmp_path, length=3)


def test_light_heads(folder: Path, tmp_path: Path) -> None:
    """They are trained, saved, loaded and trained further, and draft without changing the text."""
    about = distil(settings(folder, tmp_path / "a", 1.0, kind="light"), lambda _: None)
    assert about.shape["light"]
    lm = exact(folder, tmp_path / "a")
    assert lm.engine.drafter.name == "feature"
    assert lm.generate(ASK, 20, seed=1).tokens == exact(folder, "none").generate(ASK, 20, seed=1).tokens
    assert "with one more below the root" in (tmp_path / "a" / "drafter_card.md").read_text()
    further = distil(settings(folder, tmp_path / "b", 0.1, begin_with=tmp_path / "a"), lambda _: None)
    assert further.shape == about.shape


def test_a_feature_head_becomes_a_light_one(folder: Path, made: Path, tmp_path: Path) -> None:
    """Its layers are kept: before training, the light head predicts the same at the root."""
    net = spectr.load(str(folder), "none").opened.target.model
    old, new = (load_for_training(made, net, light=light).eval() for light in (False, True))
    assert isinstance(old, FeatureHead)
    assert isinstance(new, FeatureHead)
    tokens = torch.randint(0, 300, (1, 9))
    features = torch.randn(1, 9, (1 + len(old.shape.feature_layers)) * old.shape.width)
    roots = [head.expected(tokens, features, 2)[0] for head in (old, new)]
    torch.testing.assert_close(roots[0], roots[1])
    few = Course(60.0, steps=2, depths=2, budget=1024, warm_up=1)
    about = distil(replace(settings(folder, tmp_path, begin_with=made, kind="light"), course=few), lambda _: None)
    assert about.shape == {**old.as_data(), "light": True}
    assert load_for_training(tmp_path, net, light=True).as_data() == about.shape


def test_another_target_is_refused(made: Path, folder: Path, tmp_path: Path) -> None:
    other = save_model(small_llama(7, 320), tmp_path, tokenizer())
    with pytest.raises(MismatchError, match="was trained for"):
        spectr.load(str(other), made)
    first, half = (spectr.load(str(folder), "none", dtype=dtype) for dtype in ("float32", "bfloat16"))
    assert fingerprint(first.opened.target.model) == fingerprint(half.opened.target.model)
    (tmp_path / "drafter.json").write_text("{}")
    with pytest.raises(ArgumentError, match="is not the description of a drafter"):
        spectr.load(str(folder), tmp_path)


FEW = ("--texts", "60", "--tokens", "16", "--rows", "60", "--layers", "1", "--depths", "2", "--batch", "1024")


def command(folder: Path, out: Path, *flags: str) -> int:
    """Run `spectr train` on the small target and return its exit code."""
    with pytest.raises(SystemExit) as ended:
        main(["train", "--target", str(folder), "--out", str(out), *FEW, *flags])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_the_command_names_its_stages(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(folder, tmp_path / "deep" / "drafter", "--minutes", "0.01") == 0
    said = capsys.readouterr()
    assert said.out == f"{tmp_path}/deep/drafter\n"
    stages = ("sampling held-out answers …", "sampling answers to train on …", "reading the target's features …")
    lines = [line for line in said.err.splitlines() if line.endswith("…")]
    assert lines == [*stages, "training …"]
    assert f"--drafter {tmp_path}/deep/drafter" in said.err.splitlines()[-1]
    assert spectr.load(str(folder), tmp_path / "deep" / "drafter").engine.drafter.name == "feature"


def test_a_bar_moves_in_a_terminal(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert command(folder, tmp_path, "--minutes", "0.02") == 0
    said = capsys.readouterr()
    assert "60/60" in said.err or "59/59" in said.err  # texts that were sampled
    assert "100%" in said.err


@pytest.mark.parametrize(
    ("stage", "kept"),
    [
        ("sampling answers", "held-out answers"),
        ("step", "held-out answers, answers to train on"),
    ],
)
def test_an_interrupt_says_what_is_kept_and_how_to_go_on(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    stage: str,
    kept: str,
) -> None:
    def interrupt(sentence: str) -> None:
        if sentence.startswith(stage):
            raise KeyboardInterrupt
        talk(sentence)

    monkeypatch.setattr("spectr.cli.train.talk", interrupt)
    assert command(folder, tmp_path, "--minutes", "0.02") == 130
    said = capsys.readouterr().err
    assert f"interrupted; kept in {tmp_path}: {kept}\n" in said
    again = shlex.split(said.splitlines()[-1].partition("run the same command again: ")[2])
    assert again == ["spectr", "train", "--target", str(folder), "--out", str(tmp_path), *FEW, "--minutes", "0.02"]
    monkeypatch.undo()
    with pytest.raises(SystemExit) as ended:
        main(again[1:])
    assert ended.value.code == 0
    assert ("sampling held-out" in capsys.readouterr().err) is False  # what was kept was not done again


def test_an_impossible_folder_is_refused_before_the_work(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for out, flags, sentence in (
        (file, (), f"--out must be a folder, and {file} is a file"),
        (file / "below", (), f"--out must be a folder, and {file} is a file"),
        (tmp_path / "new", ("--begin-with", str(tmp_path)), "must be a folder that spectr train wrote"),
        (tmp_path / "new", ("--kind", "featur"), "did you mean feature?"),
        (tmp_path / "new", ("--objective", "ovrlap"), "did you mean overlap?"),
    ):
        assert command(folder, out, *flags) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith("spectr: ")
        assert said.err.count("\n") == 1
        assert sentence in said.err


def test_a_drafter_is_trained_further(folder: Path, made: Path, tmp_path: Path) -> None:
    """Training starts from the other drafter, and keeps its kind and layers."""
    few = Course(60.0, steps=2, depths=2, budget=1024, warm_up=1)
    how = replace(settings(folder, tmp_path, begin_with=made, kind="blockwise"), course=few)
    about = distil(how, lambda _: None)
    assert about.kind == "feature"
    assert about.training["begun_with"] == made.name
    net = spectr.load(str(folder), "none").opened.target.model
    old, new = (load_for_training(out, net).join.weight.detach().flatten() for out in (made, tmp_path))
    torch.manual_seed(1)  # not the seed with which the first head was made
    fresh = head_of(net, 1).join.weight.detach().flatten()
    assert 0.7 < float(torch.cosine_similarity(old, new, 0)) < 1 - 1e-6
    assert abs(float(torch.cosine_similarity(fresh, new, 0))) < 0.1


def test_what_belongs_to_another_target_is_refused_before_the_work(made: Path, tmp_path: Path) -> None:
    other = save_model(small_llama(1, 320), tmp_path / "other", tokenizer())
    with pytest.raises(MismatchError, match="other weights"):
        distil(settings(other, tmp_path / "out", begin_with=made), lambda _: None)
    assert not (tmp_path / "out" / "samples.safetensors").exists()


def test_a_head_in_the_format_of_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--format eagle3`: trained, written and loaded by its folder."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=320, hidden_size=32, intermediate_size=48, num_hidden_layers=6, num_attention_heads=4,
        max_position_embeddings=512, eos_token_id=1, pad_token_id=0, bos_token_id=None,
    )  # fmt: skip
    (tmp_path / "target").mkdir()
    target, out = save_model(LlamaForCausalLM(config), tmp_path / "target", tokenizer()), tmp_path / "head"
    assert command(target, out, "--format", "eagle3", "--kind", "blockwise") == 2
    assert "trains a new head of its own kind" in capsys.readouterr().err
    assert command(target, out, "--format", "eagle3", "--vocabulary", "200", "--minutes", "0.05") == 0
    written = json.loads((out / "config.json").read_text())
    assert written["draft_vocab_size"] == 200
    assert written["speculators_config"]["verifier"]["name_or_path"] == str(target)
    assert "speculators' format" in (out / "drafter_card.md").read_text()
    plain, lm = (spectr.load(str(target), name, dtype="float64") for name in ("none", str(out)))
    texts = [one.generate([ASK, "tides"], 30, seed=3) for one in (plain, lm)]
    assert [one.tokens for one in texts[0]] == [one.tokens for one in texts[1]]


@pytest.mark.slow
def test_an_eagle3_head_learns(tmp_path: Path) -> None:
    """On a target whose next token depends on the previous one, acceptance rises above that of an untrained head."""
    torch.manual_seed(0)
    net = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=320, hidden_size=32, intermediate_size=48, num_hidden_layers=6, num_attention_heads=4,
            max_position_embeddings=512, eos_token_id=None, pad_token_id=0, bos_token_id=None,
        )
    )  # fmt: skip
    with torch.no_grad():
        net.get_input_embeddings().weight.normal_(0, 1)
        net.lm_head.weight.normal_(0, 1)
    (tmp_path / "target").mkdir()
    target = save_model(net, tmp_path / "target", tokenizer())
    reached = []
    for name, steps in (("fresh", 1), ("trained", 150)):
        course = Course(600.0, steps=steps, depths=2, budget=1024, warm_up=10, rate=1e-2)
        how = replace(settings(target, tmp_path / name, kind="eagle3"), longest=(48,), course=course)
        reached.append(distil(how, lambda _: None).training["curve"][-1]["acceptance"])
    assert min(reached[1][:2]) > 0.05 + max(reached[0][:2]), reached
