"""Grammars of JSON strings: any string, of a given length, pattern or format, and keys other than given ones."""

from collections.abc import Iterable

from spectr.errors import ArgumentError
from spectr.grammar.expressions import (
    EVERY,
    Chars,
    Choice,
    Expression,
    Literal,
    Ref,
    Repeat,
    Sequence,
    choice,
    repeated,
    sequence,
)
from spectr.grammar.regex import full_match, search

__all__ = [
    "FORMATS",
    "KEY",
    "STRING",
    "UNKNOWN_FORMATS",
    "lengths",
    "other_keys",
    "quoted",
    "strings_of_format",
    "strings_with_pattern",
]

_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_CONTROL = Chars.of((0x00, 0x1F))
_PLAIN = EVERY - _CONTROL - Chars.of('"\\')
_HEX = Chars.of((0x30, 0x39), (0x41, 0x46), (0x61, 0x66))
_QUOTE = Literal('"')

_CODE = choice([
    sequence(Chars.of((0x30, 0x39), "abcefABCEF"), Repeat(_HEX, 3, 3)),
    sequence(Chars.of("dD"), Chars.of((0x30, 0x37)), Repeat(_HEX, 2, 2)),
])  # fmt: skip
"""Four hexadecimal digits of a character that is not a surrogate."""

_ESCAPE = choice([sequence(Literal("\\"), Chars.of('"\\/bfnrt')), sequence(Literal("\\u"), _CODE)])
_REST = sequence(Repeat(_PLAIN), Repeat(sequence(_ESCAPE, Repeat(_PLAIN))), _QUOTE)
"""Any characters, escaped or not, and the closing quote."""

_LARGE = 1024  # size above which characters of a set that need escapes are left out
_COUNTED = 32  # longest string whose characters have a rule each


def _spelled(chars: Chars) -> Expression:
    """Match one character of a set, each in one spelling.

    Of large sets, such as negated ones, only the characters that need no escape are matched: a choice of spellings
    would make masks slow wherever it is repeated."""
    plain = chars & _PLAIN
    if plain.size > _LARGE:
        return plain
    options: list[Expression] = [plain] if plain else []
    for first, last in (chars - _PLAIN).ranges:
        options += [Literal(_SHORT.get(chr(code), f"\\u{code:04x}")) for code in range(first, last + 1)]
    return choice(options)


def quoted(text: str) -> Literal:
    """Match exactly this string.

    >>> quoted('a"b').text
    '"a\\\\"b"'
    """
    return Literal(
        '"' + "".join(_SHORT.get(sign, sign if sign >= " " else f"\\u{ord(sign):04x}") for sign in text) + '"'
    )


STRING = sequence(_QUOTE, _REST)
"""Any string."""
KEY = sequence(_QUOTE, Repeat(_PLAIN), _QUOTE)
"""Any string without escapes, so that no two spell the same key."""


def lengths(least: int, most: int | None, name: str) -> dict[str, Expression]:
    """Return rules for strings of `least` to `most` characters; `name` is the first rule.

    Long strings have no escapes, because each of their characters would need a rule."""
    if max(least, most or 0) > _COUNTED:
        return {name: sequence(_QUOTE, Repeat(_PLAIN, least, most), _QUOTE)}
    rules: dict[str, Expression] = {name: sequence(_QUOTE, Ref(f"{name}-0"))}
    for size in range((least if most is None else most) + 1):
        following = Ref(f"{name}-{size + 1}")
        more = [sequence(_PLAIN, following), sequence(_ESCAPE, following)]
        rules[f"{name}-{size}"] = choice([*([_QUOTE] if size >= least else []), *([] if size == most else more)])
    if most is None:
        rules[f"{name}-{least}"] = _REST
    return rules


def strings_with_pattern(pattern: str, what: str) -> Expression:
    """Match strings that contain a match of the pattern."""
    return sequence(_QUOTE, _in_string(search(pattern, what)), _QUOTE)


def strings_of_format(name: str) -> Expression:
    """Match strings of one of the `FORMATS`."""
    return sequence(_QUOTE, _in_string(full_match(FORMATS[name])), _QUOTE)


def _in_string(body: Expression) -> Expression:
    """Convert an expression over characters to one over their JSON spellings."""
    match body:
        case Chars():
            return _spelled(body)
        case Sequence(parts):
            return sequence(*map(_in_string, parts))
        case Choice(options):
            return choice(map(_in_string, options))
        case Repeat(inner, least, most):
            return repeated(_in_string(inner), least, most)
        case _:
            return body  # patterns consist of characters


def other_keys(names: Iterable[str], name: str) -> dict[str, Expression]:
    """Return rules for all keys except `names`, each in one spelling; `name` is the first rule.

    The rules form a trie of the prefixes that a key shares with one of the names."""
    taken = set(names)
    following: dict[str, set[str]] = {"": set()}
    for text in taken:
        for size in range(len(text)):
            following.setdefault(text[:size], set()).add(text[size])
        following.setdefault(text, set())
    number = {start: f"{name}-{at}" for at, start in enumerate(following)}
    rules: dict[str, Expression] = {name: sequence(_QUOTE, Ref(number[""]))}
    for start, signs in following.items():
        options: list[Expression] = [] if start in taken else [_QUOTE]
        options.append(sequence(_PLAIN - Chars.of("".join(signs)), Repeat(_PLAIN), _QUOTE))
        options += [sequence(_spelled(Chars.of(sign)), Ref(number[start + sign])) for sign in sorted(signs)]
        rules[number[start]] = choice(options)
    return rules


_DAY = (
    r"[1-9]\d{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)"
    r"|02-(?:0[1-9]|1\d|2[0-8]))"
)
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,6})?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_BYTE = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,28}[A-Za-z0-9])?"
_HOST = rf"{_LABEL}(?:\.{_LABEL}){{0,7}}"
_GROUP = r"[0-9A-Fa-f]{1,4}"
_URI_SIGN = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"

FORMATS = {
    "date": _DAY,
    "time": _TIME,
    "date-time": f"{_DAY}T{_TIME}",
    "duration": r"P(?:\d+W|\d+D(?:T\d+H)?|T\d+H(?:\d+M)?|T\d+M|T\d+S|\d+Y(?:\d+M)?|\d+M(?:\d+D)?)",
    "email": rf"[A-Za-z0-9_+-]+(?:\.[A-Za-z0-9_+-]+)*@{_LABEL}(?:\.{_LABEL}){{1,7}}",
    "hostname": _HOST,
    "ipv4": rf"{_BYTE}(?:\.{_BYTE}){{3}}",
    "ipv6": rf"{_GROUP}(?::{_GROUP}){{7}}|::|"
    rf"::{_GROUP}(?::{_GROUP}){{0,5}}|{_GROUP}::(?:{_GROUP}(?::{_GROUP}){{0,4}})?",
    "uuid": r"[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}",
    "uri": rf"[A-Za-z][A-Za-z0-9+.-]*://{_HOST}(?::\d{{1,5}})?(?:/{_URI_SIGN}*)*(?:\?(?:{_URI_SIGN}|[/?])*)?",
}
"""Patterns of formats. They match valid strings of the format, but not all of them."""

UNKNOWN_FORMATS = frozenset({
    "idn-email", "idn-hostname", "uri-reference", "uri-template", "iri", "iri-reference", "json-pointer",
    "relative-json-pointer", "regex",
})  # fmt: skip
"""Formats of JSON Schema that are not supported and refused. All other names are ignored, as the standard allows."""


def check_format(name: str, path: str) -> None:
    """Refuse a format that JSON Schema defines and that is not supported."""
    if name in UNKNOWN_FORMATS:
        raise ArgumentError(f"{path}: format must be one of {', '.join(FORMATS)}, got {name!r}; use a pattern")
