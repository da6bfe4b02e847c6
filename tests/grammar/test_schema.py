"""JSON schemas: every admitted text is valid by an independent validator, and unsupported schemas are refused."""

import json
from typing import Any

import jsonschema
import pytest
from tests.grammar.conftest import admits, draw

from spectr.errors import ArgumentError
from spectr.grammar import Grammar, GrammarCompiler

STR, INT, NUM, NULL = ({"type": kind} for kind in ("string", "integer", "number", "null"))


def obj(required: list[str] | None = None, /, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties) if required is None else required}


TREE = {"$defs": {"tree": obj(["value"], value=INT, kids={"type": "array", "items": {"$ref": "#/$defs/tree"}})}}
SCHEMAS: dict[str, tuple[Any, list[str], list[str]]] = {  # a schema, texts that are admitted, and some that are not
    "string": (
        STR,
        ['""', '"a\\n\\"é😀\\u00e9"', '"\\ud7ff"'], ['"\t"', '"a', '"\\x"', '"\\ud83d"', '"\\u12"', " \"\""],
    ),
    "integer": (INT, ["0", "-12", "-0"], ["01", "1.0", "1e3", "+1", "--1"]),
    "number": (NUM, ["0", "-1.50", "2e9", "3.1E-07"], ["1.", ".5", "1e", "1e999", "NaN"]),
    "boolean": ({"type": "boolean"}, ["true", "false"], ["True", "1"]),
    "several types": ({"type": ["string", "null", "integer", "number"]}, ['"a"', "null", "1", "1.5"], ["[]"]),
    "anything": (True, ['{"a": [1, {"b": null}]}', "[]", '"a"', "{ }"], ["{a: 1}", "[1,]", ""]),
    "empty": ({}, ['{"a": [true]}', "3"], ["tru"]),
    "minLength": ({"type": "string", "minLength": 2}, ['"ab"', '"\\n\\u00e9"', '"abcdefgh"'], ['"a"', '"\\n"', '""']),
    "maxLength": ({"type": "string", "maxLength": 2}, ['""', '"\\n\\""', '"😀é"'], ['"abc"', '"\\n\\n\\n"', '"\x07"']),
    "lengths": ({"type": "string", "minLength": 1, "maxLength": 3}, ['"a"', '"a\\tb"'], ['""', '"abcd"']),
    "long lengths": (
        {"type": "string", "minLength": 2, "maxLength": 60},
        ['"' + "é" * 60 + '"'], ['"a"', '"' + "a" * 61 + '"', '"\x01b"'],
    ),
    "pattern": ({"type": "string", "pattern": "^[a-c]{2,3}$"}, ['"ab"', '"abc"'], ['"a"', '"abcd"', '"xab"']),
    "pattern found": ({"pattern": "b+@"}, ['"b@"', '"xb@y"', '"😀b@"'], ['"b"', '"x@"']),
    "pattern with quotes": ({"pattern": r'^["\\/\n]+$'}, ['"\\"\\\\/\\n"'], ['"""', '"\\/"']),
    "pattern of dots": ({"pattern": "^.{2}$"}, ['"ab"', '"😀é"'], ['"a"', '"abc"', '"\\n\\n"']),
    "pattern of options": ({"pattern": "^(foo|bar)-[^x]*$|^$"}, ['"foo-"', '"bar-yz"', '""'], ['"foo"', '"foo-x"']),
    "format": ({"type": "string", "format": "date"}, ['"2024-02-28"'], ['"2024-02-30"', '"x"']),
    "unknown format": ({"type": "string", "format": "colour"}, ['"red"'], []),
    "const": ({"const": {"a": [1, 'x"\n', None]}}, ['{"a": [1, "x\\"\\n", null]}'], ["{}"]),
    "enum": ({"enum": ["a", 1, None, {"b": 2}, "é"]}, ['"a"', "1", "null", '{"b": 2}', '"é"'], ['"b"', "2"]),
    "enum with type": ({"type": "string", "enum": ["a", 1, "abc"], "maxLength": 2}, ['"a"'], ["1", '"abc"']),
    "minimum": ({"type": "integer", "minimum": 5}, ["5", "12345"], ["4", "-6"]),
    "range": ({"type": "integer", "minimum": -13, "exclusiveMaximum": 112}, ["-13", "0", "111"], ["-14", "112"]),
    "fractions": ({"type": "number", "exclusiveMinimum": 0, "maximum": 1.5}, ["0.1", "1.5", "1"], ["0", "0.0", "1.51"]),
    "multipleOf": ({"type": "integer", "multipleOf": 7}, ["0", "-14", "7000"], ["8", "-0"]),
    "items": ({"type": "array", "items": INT}, ["[]", "[1,2, 3]", "[\n  1,\n  2\n]"], ["[1,]", '["a"]', "[1 ,2]"]),
    "minItems": (
        {"type": "array", "items": INT, "minItems": 2, "maxItems": 3},
        ["[1,2]", "[1,2,3]"], ["[1]", "[1,2,3,4]"],
    ),
    "maxItems": ({"type": "array", "items": INT, "maxItems": 1}, ["[]", "[1]"], ["[1,2]"]),
    "no items": ({"type": "array", "maxItems": 0}, ["[]", "[ ]"], ["[1]"]),
    "prefixItems": ({"type": "array", "prefixItems": [INT, STR]}, ["[]", "[1]", '[1,"a"]'], ['["a"]', '[1,"a",2]']),
    "prefixItems and items": (
        {"type": "array", "prefixItems": [INT, STR], "items": NULL, "minItems": 1, "maxItems": 4},
        ["[1]", '[1,"a",null,null]'], ["[]", '[1,"a",1]', '[1,"a",null,null,null]'],
    ),
    "prefixItems needed": ({"prefixItems": [INT, STR], "items": False, "minItems": 2}, ['[1, "a"]'], ["[1]"]),
    "fewer than prefixItems": ({"prefixItems": [INT, STR, NULL], "maxItems": 2}, ["[]", '[1,"a"]'], ['[1,"a",null]']),
    "unique single items": ({"type": "array", "items": INT, "uniqueItems": True, "maxItems": 1}, ["[1]"], ["[1,1]"]),
    "properties": (
        obj(a=STR, b=INT),
        ['{"a":"","b":1}', '{\n  "a": "x",\n  "b": 2\n}'], ["{}", '{"b":1,"a":""}', '{"a":""}'],
    ),
    "optional": (
        obj([], a=STR, b=INT, c=NULL),
        ["{}", '{"b":1}', '{"a":"","c":null}'], ['{"c":null,"a":""}', '{"a":"",}'],
    ),
    "some required": (
        obj(["b"], a=STR, b=INT, c=NULL),
        ['{"b":1}', '{"a":"","b":1,"c":null}'], ["{}", '{"a":"","c":null}'],
    ),
    "additional": (
        {**obj(a=STR), "additionalProperties": INT},
        ['{"a":"x"}', '{"a":"x","b":1,"":2,"ab":3,"aa":4}'],
        ['{"a":"x","a":1}', '{"a":"x","b":"y"}', '{"a":"x","\\u0061":1}'],
    ),
    "additional of any kind": ({**obj(a=STR), "additionalProperties": True}, ['{"a":"x","b":[{}]}'], ['{"b":1}']),
    "additional alone": ({"type": "object", "additionalProperties": INT}, ["{}", '{"x":1,"y":2}'], ['{"x":""}']),
    "required and unnamed": ({"type": "object", "required": ["z"]}, ['{"z":[]}', '{"z":1,"a":2}'], ["{}", '{"a":2}']),
    "minProperties": ({**obj([], a=STR, b=INT, c=INT), "minProperties": 2}, ['{"a":"","c":1}'], ["{}", '{"b":1}']),
    "maxProperties": (
        {**obj([], a=STR, b=INT, c=INT), "maxProperties": 2},
        ["{}", '{"b":1,"c":1}'], ['{"a":"","b":1,"c":1}'],
    ),
    "one additional": (
        {"type": "object", "additionalProperties": INT, "minProperties": 1, "maxProperties": 2},
        ['{"x":1}', '{"x":1,"y":2}'], ["{}", '{"x":1,"y":2,"z":3}'],
    ),
    "no properties": ({"type": "object", "maxProperties": 0}, ["{}"], ['{"a":1}']),
    "patternProperties": ({"patternProperties": {"^a+$": INT}}, ["{}", '{"aa":1}'], ['{"b":1}', '{"a":""}']),
    "propertyNames": ({"type": "object", "propertyNames": {"enum": ["q", "r"]}}, ['{"q":1}'], ['{"s":1}']),
    "a property that cannot be": (obj([], a=False, b=INT), ["{}", '{"b":1}'], ['{"a":1}']),
    "anyOf": ({"anyOf": [INT, STR, {"type": "string", "minLength": 2}]}, ["1", '"a"'], ["null"]),
    "beside anyOf": (
        {"type": "integer", "minimum": 5, "anyOf": [{"maximum": 7}, {"minimum": 100}]},
        ["5", "7", "100"], ["8", "4"],
    ),
    "anyOf twice": ({"allOf": [{"anyOf": [INT, STR]}, {"anyOf": [STR, NULL]}]}, ['"a"'], ["1", "null"]),
    "oneOf": ({"oneOf": [INT, STR, NULL]}, ["1", '"a"', "null"], ["true"]),
    "oneOf by a constant": (
        {"oneOf": [obj(kind={"const": "a"}, x=INT), obj(kind={"const": "b"}, x=STR)]},
        ['{"kind":"a","x":1}', '{"kind": "b","x":""}'], ['{"kind":"a","x":""}'],
    ),
    "oneOf by bounds": (
        {"oneOf": [{"type": "integer", "maximum": 3}, {"type": "integer", "minimum": 7}]},
        ["3", "7"], ["5"],
    ),
    "allOf": (
        {"allOf": [{"type": "number", "minimum": 3}, {"type": "integer", "maximum": 5}]},
        ["3", "5"], ["2", "3.5"],
    ),
    "allOf of objects": (
        {"allOf": [{"$ref": "#/$defs/a"}, obj(y=INT)], "$defs": {"a": obj(x=STR)}},
        ['{"x":"","y":1}'], ['{"y":1}', '{"x":""}', '{"y":1,"x":""}'],
    ),
    "allOf of arrays": (
        {"allOf": [{"items": INT}, {"prefixItems": [{"minimum": 5}], "minItems": 1}]},
        ["[5,1]"], ["[4]", "[]", '[5,""]'],
    ),
    "$ref": ({"$defs": {"x/y": INT}, "type": "array", "items": {"$ref": "#/$defs/x~1y"}}, ["[1]"], ['[""]']),
    "$ref and more": ({"$defs": {"x": INT}, "$ref": "#/$defs/x", "minimum": 5}, ["5"], ["4"]),
    "$ref in circles": ({**TREE, "$ref": "#/$defs/tree"}, ['{"value":1,"kids":[{"value":2}]}'], ['{"kids":[]}']),
    "$ref to the root": (obj([], next={"$ref": "#"}), ["{}", '{"next":{"next":{}}}'], ['{"next":1}']),
    "definitions": ({"definitions": {"x": INT}, "items": {"$ref": "#/definitions/x"}}, ["[1]"], ["1"]),
    "no type": ({"minimum": 3, "minLength": 2}, ["3", '"ab"'], ['"a"', "2"]),
    "comments": (
        {"type": "integer", "title": "x", "x-mine": {"not": 1}, "default": "no", "nullable": True},
        ["1"], ["null"],
    ),
    "unevaluatedProperties": ({"type": "object", "unevaluatedProperties": False}, ["{}"], ['{"a":1}']),
    "names with signs": (obj(**{'a"b\\c\n': INT, "é😀": INT, "": INT}), ['{"a\\"b\\\\c\\n":1,"é😀":2,"":3}'], []),
}  # fmt: skip


def _is_valid(schema: Any, text: str) -> bool:
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    return bool(jsonschema.Draft202012Validator(schema, format_checker=checker).is_valid(json.loads(text)))


@pytest.mark.parametrize("name", SCHEMAS)
def test_only_valid_texts_are_admitted(name: str, compiler: GrammarCompiler) -> None:
    schema, admitted, others = SCHEMAS[name]
    compiled = compiler.compile(Grammar.json_schema(schema))
    for text in admitted:
        assert _is_valid(schema, text), text
        assert admits(compiled, text), text
    for text in others:
        assert not admits(compiled, text), text


@pytest.mark.parametrize("layout", ["any", "line", "compact"])
@pytest.mark.parametrize("name", SCHEMAS)
def test_whatever_is_drawn_is_valid(name: str, layout: Any, compiler: GrammarCompiler) -> None:
    schema = SCHEMAS[name][0]
    compiled = compiler.compile(Grammar.json_schema(schema, layout=layout))
    drawn = [draw(compiled, seed) for seed in range(12)]
    for one in drawn:
        if one.ended:
            assert _is_valid(schema, one.text.decode()), one.text
    assert sum(one.ended for one in drawn) >= (0 if name in ("pattern found", "long lengths") else 6)


@pytest.mark.parametrize(
    "name", ["date", "time", "date-time", "email", "ipv4", "ipv6", "uuid", "uri", "hostname", "duration"]
)
def test_formats(name: str, compiler: GrammarCompiler) -> None:
    schema = {"type": "string", "format": name}
    compiled = compiler.compile(Grammar.json_schema(schema))
    texts = [one.text.decode() for one in (draw(compiled, seed) for seed in range(60)) if one.ended]
    assert len(set(texts)) > 20
    assert all(_is_valid(schema, text) for text in texts)


REFUSED: dict[str, list[Any]] = {
    "not is not supported": [{"not": INT}, obj(a={"not": INT})],
    "if is not supported": [{"if": INT, "then": STR}],
    "dependentRequired is not": [{"dependentRequired": {"a": ["b"]}}],
    "contains is not": [{"type": "array", "contains": INT}],
    "uniqueItems is not": [{"type": "array", "uniqueItems": True}],
    "exclude each other": [
        {"oneOf": [INT, NUM]}, {"oneOf": [obj(a=INT), obj(b=INT)]}, {"oneOf": [{"minimum": 1}, STR]},
    ],
    "only one of pattern": [{"pattern": "a", "minLength": 2}, {"format": "date", "pattern": "a"}],
    "must point into the schema": [{"$ref": "http://a/b"}, {"$ref": "#anchor"}, {"$ref": 3}],
    "nothing at": [{"$ref": "#/$defs/x"}, {"$ref": "#/type/3"}],
    "must not be circular": [{"$ref": "#"}, {"allOf": [{"$ref": "#"}]}],
    "must admit some value": [
        False, {"type": "integer", "minimum": 3, "maximum": 2}, {"enum": []}, {"type": "string", "const": 3},
        obj(a=False), {"allOf": [INT, STR]}, {"type": "array", "items": False, "minItems": 1},
        {"$defs": {"n": obj(n={"$ref": "#/$defs/n"})}, "$ref": "#/$defs/n"}, {"minLength": 3, "maxLength": 2},
    ],
    "type must be": [{"type": "int"}, {"type": []}, {"type": 3}],
    "minimum must be a number": [{"minimum": "3"}, {"minimum": True}, {"minimum": 10**400}, {"minimum": -(10**400)}],
    "maxItems must be an integer": [{"maxItems": 10**400}],
    "minLength must be an integer": [{"minLength": -1}, {"minLength": 1.5}],
    "multipleOf must be": [{"multipleOf": 0.1}, {"multipleOf": 0}, {"type": "integer", "multipleOf": 7, "minimum": 1}],
    "required must be": [{"required": "a"}, {"required": [1]}],
    "properties must be": [{"properties": []}],
    "a schema must be an object": [obj(a=3), {"anyOf": [1]}, {"items": "x"}],
    "at least one schema": [{"anyOf": []}, {"oneOf": {}}],
    "allOf must be a list": [{"allOf": []}],
    "pattern must have \\^": [{"pattern": "a^b"}],
    "#/properties/a: pattern must not have": [obj(a={"pattern": r"\bword"})],
    "format must be one of": [{"format": "uri-template"}],
    "one pattern and no other": [{**obj(a=INT), "patternProperties": {"b": INT}}],
    "combined with properties": [{**obj(a=INT), "propertyNames": {"minLength": 1}}],
    "must not occur in two": [{"allOf": [{"pattern": "a"}, {"pattern": "b"}]}],
    "must not be combined with": [{"enum": ["a"], "pattern": "a"}],
    "minProperties must be at most": [{"type": "object", "minProperties": 2}],
    "must be true or false": [{"unevaluatedProperties": INT}],
    "at most 100 levels": [json.loads('{"items":' * 120 + "true" + "}" * 120)],
    "lone surrogate": [{"const": "\ud800"}],
    "must be JSON": ["{", '{"a": NaN}', '{"minimum": Infinity}', {"a": object()}, {"minimum": float("inf")}],
    "must be a mapping": [3, None, [INT]],
    "grammar rules": [{"prefixItems": [{"const": number} for number in range(11_000)]}],
    "at most 262144 bytes": [{"description": "x" * 300_000}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("said", "schema"), [(said, schema) for said, several in REFUSED.items() for schema in several]
)
def test_what_a_grammar_cannot_express_is_refused(said: str, schema: Any) -> None:
    with pytest.raises(ArgumentError, match=said):
        Grammar.json_schema(schema)


def test_constants_beyond_the_range_of_floats() -> None:
    """JSON has integers of any size, and a constant may be one."""
    value = 10**400
    grammar = Grammar.json_schema({"type": "integer", "enum": [value]})
    assert str(value) in grammar.text


def test_layouts_and_strictness(compiler: GrammarCompiler) -> None:
    schema = obj(a=INT, b={"type": "array", "items": INT})
    value = {"a": 1, "b": [2, 3]}
    texts = {
        "line": json.dumps(value),
        "compact": json.dumps(value, separators=(",", ":")),
        "any": json.dumps(value, indent=2),
    }
    for layout, text in texts.items():
        compiled = compiler.compile(Grammar.json_schema(schema, layout=layout))  # type: ignore[arg-type]
        assert admits(compiled, text)
        assert [admits(compiled, other) for other in texts.values()] == [layout in (name, "any") for name in texts]
    loose = compiler.compile(Grammar.json_schema(obj(a=INT), strict=False))
    assert admits(loose, '{"a":1,"b":[]}')
    with pytest.raises(ArgumentError, match="layout must be one of any, line, compact"):
        Grammar.json_schema(schema, layout="wide")  # type: ignore[arg-type]


def test_schemas_in_other_forms() -> None:
    class Model:
        @staticmethod
        def model_json_schema() -> dict[str, Any]:
            return obj(a=INT)

    forms = [obj(a=INT), json.dumps(obj(a=INT)), Model]
    assert len({Grammar.json_schema(form) for form in forms}) == 1


def test_any_json_object(compiler: GrammarCompiler) -> None:
    compiled = compiler.compile(Grammar.json())
    assert admits(compiled, '{"a": [1, {"b": null}], "c": "d"}')
    assert not any(admits(compiled, text) for text in ("[]", "1", '"a"', ' {"a": 1}', '{"a": 1} '))
