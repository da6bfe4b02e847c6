"""Compiling grammars: limits, the cache, errors, threads, and grammars that would take forever."""

import gc
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from tests.grammar.conftest import BYTES

from spectr.errors import ArgumentError, MissingExtraError
from spectr.grammar import Grammar, GrammarCompiler, GrammarLimits
from spectr.grammar.compiler import needs_trial
from spectr.grammar.trial import Trial
from spectr.grammar.vocabulary import xgrammar

WIDE = "(?:[^x]|yy)?"  # a sequence of these takes cubic time


@pytest.fixture(scope="module")
def tried() -> GrammarCompiler:
    """Return a compiler whose trial process has started."""
    return GrammarCompiler(BYTES, GrammarLimits(seconds=2))


def test_the_same_grammar_is_compiled_once(compiler: GrammarCompiler) -> None:
    first = compiler.compile(Grammar.regex("[ab]+c"))
    assert compiler.compile(Grammar.regex("[ab]+c")) is first
    assert compiler.compile(Grammar.regex("[ab]+d")) is not first
    assert first.size > 0


def test_least_recently_used_grammars_are_evicted() -> None:
    compiler = GrammarCompiler(BYTES, GrammarLimits(kept=2))
    grammars = [Grammar.choice([text]) for text in "abc"]
    first, second, _ = (compiler.compile(grammar) for grammar in grammars)
    assert compiler.compile(grammars[1]) is second
    assert compiler.compile(grammars[0]) is not first
    little = GrammarCompiler(BYTES, GrammarLimits(kept_bytes=1))
    for grammar in grammars:
        little.compile(grammar)
    assert len(little._known) == 1


def test_many_threads_ask_for_one_grammar(compiler: GrammarCompiler) -> None:
    grammar, begin = Grammar.regex("[ab]{3}|c+d"), threading.Barrier(8)

    def ask(_: int) -> Any:
        begin.wait()
        return compiler.compile(grammar)

    with ThreadPoolExecutor(8) as pool:
        assert len(set(map(id, pool.map(ask, range(8))))) == 1


def test_many_threads_compile_many_grammars(compiler: GrammarCompiler) -> None:
    grammars = [Grammar.regex(f"(a|b){{1,{size}}}[c-e]*") for size in range(2, 26)]

    def ask(grammar: Grammar) -> Any:
        return compiler.compile(grammar).walk([97, 97]).masks([()])

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, grammars))
    fresh = GrammarCompiler(BYTES)
    assert all(
        torch.equal(mask, fresh.compile(one).walk([97, 97]).masks([()]))
        for mask, one in zip(found, grammars, strict=True)
    )


BAD = {
    'root ::= "a" |': "EBNF parser error at line 1",
    "root ::= foo": 'Rule "foo" is not defined',
    'start ::= "a"': 'root rule with name "root" is not found',
    'root ::= "a': 'Expect " in string literal',
    "root ::= [z-a]": "lower bound is larger",
    "root ::= Â": "Unexpected character",
    "ÖG>EF": "Unexpected character",
    "": "root rule",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_grammars_are_refused(text: str, compiler: GrammarCompiler) -> None:
    """The message is the same each time, without time stamps and file names."""
    said = []
    for _ in range(2):
        with pytest.raises(ArgumentError, match=BAD[text]) as caught:
            compiler.compile(Grammar.ebnf(text))
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert "cpp" not in said[0]


def test_bad_grammars_are_refused_in_the_other_process(tried: GrammarCompiler) -> None:
    """The message is the same as in this process."""
    long = "".join(f'r{number} ::= "a"?\n' for number in range(200))
    for end, message in (("root ::= foo", 'Rule "foo" is not defined'), ("root ::= Â", "Unexpected character")):
        bad = Grammar.ebnf(long + end)
        assert needs_trial(bad)
        with pytest.raises(ArgumentError, match=message):
            tried.compile(bad)
    compiled = tried.compile(Grammar.ebnf(long + "root ::= r3 r7"))
    assert compiled.grammar.root == "root"


def test_slow_grammars_are_refused(tried: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later grammars are compiled, the slow one is not tried twice, and this process does not spend the time."""
    endless = Grammar.regex(WIDE * 400)
    assert needs_trial(endless)
    before = time.thread_time()
    with pytest.raises(ArgumentError, match=r"must compile within 2 seconds and 1024 MiB.*it took too long"):
        tried.compile(endless)
    assert time.thread_time() - before < 2
    monkeypatch.setattr(Trial, "attempt", None)
    with pytest.raises(ArgumentError, match="must compile within 2 seconds"):
        tried.compile(endless)
    monkeypatch.undo()
    assert tried.compile(Grammar.regex(WIDE * 13)).size > 0


def test_grammars_that_need_too_much_memory_are_refused() -> None:
    compiler = GrammarCompiler(BYTES, GrammarLimits(seconds=60, memory=1 << 22))
    large = Grammar.ebnf("root ::= " + " | ".join(f'"{number:04}" [^x]{{0,90}}' for number in range(8_000)))
    with pytest.raises(ArgumentError, match=r"4 MiB, and this one does not \(it (crashed|ran out of memory)\)"):
        compiler.compile(large)
    assert compiler.compile(Grammar.ebnf('root ::= "a"' + ' "b"?' * 14)).size > 0


def test_a_process_that_ends_as_it_is_asked_is_replaced(tried: GrammarCompiler) -> None:
    """A process ends when it has been idle for long, which may be just when the next grammar comes."""
    ending = [sys.executable, "-c", "input()"]
    tried.trial.close()
    tried.trial._process = subprocess.Popen(ending, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    tried.trial.attempt('root ::= "a"', "root")


def test_a_process_that_was_killed_is_replaced(tried: GrammarCompiler) -> None:
    tried.trial.attempt('root ::= "a"', "root")
    process = tried.trial._process
    assert process is not None
    process.kill()
    process.wait()
    tried.trial.attempt('root ::= "a"', "root")
    assert tried.trial._process is not process


def test_the_process_ends_with_its_compiler() -> None:
    compiler = GrammarCompiler(BYTES)
    compiler.trial.attempt('root ::= "a"', "root")
    process = compiler.trial._process
    assert process is not None
    assert process.poll() is None
    del compiler
    gc.collect()
    assert process.poll() is not None


def test_usual_grammars_are_compiled_at_once() -> None:
    """They need no trial process."""
    usual = [
        Grammar.json(), Grammar.choice(["a", "b"]), Grammar.regex(r"\d{3}-\d{4}"), Grammar.ebnf('root ::= "a"+'),
        Grammar.json_schema({"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(60)}}),
    ]  # fmt: skip
    assert not any(map(needs_trial, usual))
    others = [
        Grammar.regex("a{1000}"), Grammar.regex(WIDE * 20), Grammar.ebnf("root ::= " + '"a" ' * 600),
        Grammar.json_schema({"type": "string", "pattern": WIDE * 20}),
        Grammar.json_schema({"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(600)}}),
    ]  # fmt: skip
    assert all(map(needs_trial, others))


def test_objects_that_are_no_grammar_are_refused(compiler: GrammarCompiler) -> None:
    with pytest.raises(ArgumentError, match=r"must be a Grammar, such as Grammar.json_schema\(…\)"):
        compiler.compile({"type": "object"})  # type: ignore[arg-type]
    for bad in ([], "ab", [1], None):
        with pytest.raises(ArgumentError, match="choice must be"):
            Grammar.choice(bad)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="root must be the name of a rule"):
        Grammar.ebnf("a", root="")


def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "xgrammar", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'spectr-lm\[grammar\]'"):
        xgrammar()
    Grammar.json_schema({"type": "object"})  # needs none
