"""Compiling: limits, the cache, errors, threads, and what happens to grammars that would take for ever."""

import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from tests.grammar.conftest import BYTES

from spectr.errors import ArgumentError, MissingExtraError
from spectr.grammar import Grammar, GrammarCompiler, GrammarLimits
from spectr.grammar.compiler import _needs_trial
from spectr.grammar.vocabulary import xgrammar

WIDE = "(?:[^x]|yy)?"  # a row of these takes the cube of their number


@pytest.fixture(scope="module")
def tried() -> GrammarCompiler:
    """One whose process has started."""
    return GrammarCompiler(BYTES, GrammarLimits(seconds=2))


def test_the_same_grammar_is_compiled_once(compiler: GrammarCompiler) -> None:
    first = compiler.compile(Grammar.regex("[ab]+c"))
    assert compiler.compile(Grammar.regex("[ab]+c")) is first
    assert compiler.compile(Grammar.regex("[ab]+d")) is not first
    assert first.size > 0


def test_what_was_used_longest_ago_is_forgotten() -> None:
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
    "": "root rule",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_grammars_are_refused(text: str, compiler: GrammarCompiler) -> None:
    """With the same words each time: no time of day, no file."""
    said = []
    for _ in range(2):
        with pytest.raises(ArgumentError, match=BAD[text]) as caught:
            compiler.compile(Grammar.ebnf(text))
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert "cpp" not in said[0]


def test_bad_grammars_are_refused_in_the_other_process(tried: GrammarCompiler) -> None:
    """With the same words as here."""
    long = "".join(f'r{number} ::= "a"?\n' for number in range(200))
    bad = Grammar.ebnf(long + "root ::= foo")
    assert _needs_trial(bad)
    with pytest.raises(ArgumentError, match='Rule "foo" is not defined'):
        tried.compile(bad)
    compiled = tried.compile(Grammar.ebnf(long + "root ::= r3 r7"))
    assert compiled.grammar.root == "root"


def test_one_that_takes_too_long_is_given_up(tried: GrammarCompiler) -> None:
    """Those after it are compiled; nobody waits for it twice, and this process has not spent the time."""
    endless = Grammar.regex(WIDE * 400)
    assert _needs_trial(endless)
    before = time.process_time()
    with pytest.raises(ArgumentError, match=r"must compile within 2 seconds and 1024 MiB.*it took too long"):
        tried.compile(endless)
    assert time.process_time() - before < 2
    start = time.perf_counter()
    with pytest.raises(ArgumentError, match="must compile within 2 seconds"):
        tried.compile(endless)
    assert time.perf_counter() - start < 0.5
    assert tried.compile(Grammar.regex(WIDE * 13)).size > 0


def test_one_that_takes_too_much_memory_is_given_up() -> None:
    compiler = GrammarCompiler(BYTES, GrammarLimits(seconds=60, memory=1 << 22))
    large = Grammar.ebnf("root ::= " + " | ".join(f'"{number:04}" [^x]{{0,90}}' for number in range(8_000)))
    with pytest.raises(ArgumentError, match=r"4 MiB, and this one does not \(it (crashed|ran out of memory)\)"):
        compiler.compile(large)
    assert compiler.compile(Grammar.ebnf('root ::= "a"' + ' "b"?' * 14)).size > 0


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
    """Without a process of their own."""
    usual = [
        Grammar.json(), Grammar.choice(["a", "b"]), Grammar.regex(r"\d{3}-\d{4}"), Grammar.ebnf('root ::= "a"+'),
        Grammar.json_schema({"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(60)}}),
    ]  # fmt: skip
    assert not any(map(_needs_trial, usual))
    others = [
        Grammar.regex("a{1000}"), Grammar.regex(WIDE * 20), Grammar.ebnf("root ::= " + '"a" ' * 600),
        Grammar.json_schema({"type": "string", "pattern": WIDE * 20}),
        Grammar.json_schema({"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(600)}}),
    ]  # fmt: skip
    assert all(map(_needs_trial, others))


def test_what_is_no_grammar(compiler: GrammarCompiler) -> None:
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
