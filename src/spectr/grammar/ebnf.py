"""Rules of a context-free grammar: pruned, unrolled, and written in the EBNF that xgrammar reads."""

from collections import defaultdict, deque
from collections.abc import Mapping
from itertools import pairwise

from spectr.grammar.expressions import (
    EMPTY,
    Chars,
    Choice,
    Expression,
    Literal,
    Ref,
    Repeat,
    Sequence,
    choice,
    sequence,
)

__all__ = ["format_rules", "prune_rules", "unroll"]

_FEW = 8  # mandatory turns of a repetition that are written out
_TURNS = 32  # turns that get a rule of their own each
_MOST_MADE = 1_000  # rules that are made for turns


def prune_rules(rules: Mapping[str, Expression], root: str) -> dict[str, Expression] | None:
    """Return the rules reachable from the root, without options that match no text; None if the root matches none.

    >>> prune_rules({"a": Choice((Ref("b"), Literal("x"))), "b": Ref("b")}, "a")
    {'a': Literal(text='x')}
    """
    productive = _productive(rules)
    if root not in productive:
        return None
    kept, waiting = dict[str, Expression](), [root]
    while waiting:
        name = waiting.pop()
        if name not in kept:
            kept[name] = _pruned(rules[name], productive)
            waiting += _names(kept[name])
    return kept


def _productive(rules: Mapping[str, Expression]) -> set[str]:
    """Return the rules that match some text. A rule is examined again when one that it refers to is found
    productive."""
    named_by = defaultdict[str, list[str]](list)
    for name, body in rules.items():
        for other in _names(body):
            named_by[other].append(name)
    productive, waiting = set[str](), list(rules)
    while waiting:
        name = waiting.pop()
        if name not in productive and _matches(rules[name], productive):
            productive.add(name)
            waiting += named_by[name]
    return productive


def _matches(body: Expression, productive: set[str]) -> bool:
    """Return whether the body matches some text, given the rules that are known to."""
    match body:
        case Literal():
            return True
        case Chars():
            return bool(body)
        case Ref(name):
            return name in productive
        case Sequence(parts):
            return all(_matches(part, productive) for part in parts)
        case Choice(options):
            return any(_matches(option, productive) for option in options)
        case Repeat(inner, least, most):
            return least == 0 or ((most is None or most >= least) and _matches(inner, productive))


def _pruned(body: Expression, productive: set[str]) -> Expression:
    """Return the body without options that match no text."""
    match body:
        case Sequence(parts):
            return sequence(*(_pruned(part, productive) for part in parts))
        case Choice(options):
            return choice(_pruned(option, productive) for option in options if _matches(option, productive))
        case Repeat(inner, least, most):
            if most == 0 or not _matches(inner, productive):
                return EMPTY
            return Repeat(_pruned(inner, productive), least, most)
        case _:
            return body


def _names(body: Expression) -> list[str]:
    match body:
        case Ref(name):
            return [name]
        case Sequence(parts) | Choice(parts):
            return [name for part in parts for name in _names(part)]
        case Repeat(inner):
            return _names(inner)
        case _:
            return []


def unroll(rules: Mapping[str, Expression]) -> dict[str, Expression]:
    """Replace repetitions of groups by recursive rules that end with what follows the repetition.

    The rules match the same texts. xgrammar checks a token that reaches beyond the end of a rule against the whole text
    so far, which is slow, and a rule for the repeated group alone would end after every turn.

    >>> format_rules(unroll({"root": Sequence((Repeat(Sequence((Chars.of("a"), Literal(","))), 1), Literal("b")))}))
    'root ::= [a] "," root-r1\\nroot-r1 ::= [a] "," root-r1 | "b"\\n'
    """
    return _Unroller(rules).run()


class _Unroller:
    """Unrolls rules one by one; the new rules it creates are unrolled as well."""

    def __init__(self, rules: Mapping[str, Expression]) -> None:
        self.unrolled: dict[str, Expression] = {}
        self.waiting = deque(rules.items())
        self.created = 0

    def run(self) -> dict[str, Expression]:
        """Return all rules, including the new ones."""
        while self.waiting:
            name, body = self.waiting.popleft()
            self.unrolled[name] = self._unrolled(name, body)
        return self.unrolled

    def _unrolled(self, name: str, body: Expression) -> Expression:
        if isinstance(body, Choice):
            return choice(self._unrolled(name, option) for option in body.options)
        parts = body.parts if isinstance(body, Sequence) else (body,)
        for at, part in enumerate(parts):
            if isinstance(part, Repeat) and self._should_unroll(part):
                turns = self._turns(name.partition("-r")[0], part, sequence(*parts[at + 1 :]))
                return sequence(*parts[:at], *[part.body] * part.least, turns)
        return body

    def _should_unroll(self, repeat: Repeat) -> bool:
        """Return whether a repetition is of non-empty groups and needs few rules."""
        is_group = isinstance(repeat.body, Sequence | Choice) and not _may_be_empty(repeat.body)
        is_short = repeat.least <= _FEW and (repeat.most or 0) <= _TURNS
        return is_group and is_short and self.created < _MOST_MADE

    def _turns(self, name: str, repeat: Repeat, tail: Expression) -> Ref:
        """Return a rule for one more turn and the next, or for what follows; one for each turn if they are counted."""
        if repeat.most is None:
            again = self._new_rule(name)
            self.waiting.append((again.name, choice([sequence(repeat.body, again), tail])))
            return again
        if tail != EMPTY:
            after = self._new_rule(name)
            self.waiting.append((after.name, tail))
            tail = after
        turns = [self._new_rule(name) for _ in range(repeat.most - repeat.least + 1)]
        for this, following in pairwise(turns):
            self.waiting.append((this.name, choice([sequence(repeat.body, following), tail])))
        self.waiting.append((turns[-1].name, tail))
        return turns[0]

    def _new_rule(self, name: str) -> Ref:
        self.created += 1
        return Ref(f"{name}-r{self.created}")


def _may_be_empty(body: Expression) -> bool:
    match body:
        case Literal(text):
            return not text
        case Sequence(parts):
            return all(map(_may_be_empty, parts))
        case Choice(options):
            return any(map(_may_be_empty, options))
        case Repeat(inner, least):
            return least == 0 or _may_be_empty(inner)
        case Ref():
            return True  # unknown here
        case _:
            return False


def format_rules(rules: Mapping[str, Expression]) -> str:
    """Write rules as EBNF text.

    >>> format_rules({"root": Sequence((Literal('"'), Repeat(Chars.of("ab"), 1), Choice((EMPTY, Ref("root")))))})
    'root ::= "\\\\"" [a-b]+ ("" | root)\\n'
    """
    return "".join(f"{name} ::= {_text(body)}\n" for name, body in rules.items())


def _text(body: Expression) -> str:
    match body:
        case Literal(text):
            return '"' + "".join(map(_in_literal, text)) + '"'
        case Chars(ranges):
            return "[" + "".join(_span(first, last) for first, last in ranges) + "]"
        case Ref(name):
            return name
        case Sequence(parts):
            return " ".join(f"({_text(part)})" if isinstance(part, Choice) else _text(part) for part in parts)
        case Choice(options):
            return " | ".join(map(_text, options))
        case Repeat(inner, least, most):
            group = isinstance(inner, Sequence | Choice | Repeat)
            return (f"({_text(inner)})" if group else _text(inner)) + _times(least, most)


def _times(least: int, most: int | None) -> str:
    usual = {(0, None): "*", (1, None): "+", (0, 1): "?", (1, 1): ""}
    if (least, most) in usual:
        return usual[least, most]
    return "{" + (f"{least}" if least == most else f"{least},{'' if most is None else most}") + "}"


def _in_literal(sign: str) -> str:
    if sign in '"\\':
        return "\\" + sign
    return sign if " " <= sign <= "~" else _escaped(ord(sign))


def _span(first: int, last: int) -> str:
    return _in_class(first) if first == last else f"{_in_class(first)}-{_in_class(last)}"


def _in_class(code: int) -> str:
    return chr(code) if chr(code).isascii() and chr(code).isalnum() else _escaped(code)


def _escaped(code: int) -> str:
    """Escape with four or eight digits: \\x would include any digits that follow."""
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
