"""JSON Schemas of our own, each either enforced or refused with its place, for the backend guidance.

Every keyword of draft 2020-12 and the older forms of drafts 4 and 7 occur. `load_schemas` gives them all;
the labels were set by hand from JSON Schema's rules and from what the engine was seen to do, not from
this project's code. A `bounded` schema's answers end by themselves within `max_tokens`, even when a token
is a byte and the text is random; the others may be cut by it.
"""

from dataclasses import dataclass
from typing import Any, Literal

PLACE = "response_format.json_schema.schema"


@dataclass(frozen=True, slots=True)
class Case:
    """One schema and what becomes of it. `param`: where a refusal points, below `PLACE` ("" is `PLACE`)."""

    id: str
    schema: Any
    expect: Literal["enforced", "refused"]
    param: str | None = None
    max_tokens: int = 400
    bounded: bool = True


def closed(*optional: str, **properties: Any) -> dict[str, Any]:
    """An object with these members and no others, all required but the `optional` ones."""
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }


DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
FLAG = {"type": "boolean"}
NULL = {"type": "null"}
WORD = {"type": "string", "pattern": "^[a-z]{1,6}$"}
SHORT = {"type": "string", "maxLength": 6}
DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_6 = "http://json-schema.org/draft-06/schema#"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
DRAFT_2019 = "https://json-schema.org/draft/2019-09/schema"
DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"

_ENFORCED: dict[str, Any] = {
    # type
    "type-null": NULL,
    "type-boolean": FLAG,
    "type-integer": DIGIT,
    "type-string": SHORT,
    "type-array": {"type": "array", "items": FLAG, "maxItems": 3},
    "type-object": closed(a=FLAG),
    "type-list-two": {"type": ["boolean", "null"]},
    "type-list-limits-apply-by-type": {"type": ["string", "integer"], "maxLength": 3, "minimum": 5, "maximum": 7},
    "type-list-all": closed(x={"type": ["null", "boolean"]}, y={"type": ["integer"], "minimum": 1, "maximum": 3}),
    "type-list-one": {"type": ["string"], "maxLength": 4},
    "type-integer-or-number": {"type": ["integer", "number"], "enum": [1, 2.5]},
    # enum, const
    "enum-strings": {"enum": ["red", "green", "blue"]},
    "enum-one": {"enum": ["only"]},
    "enum-numbers": {"enum": [1, -2, 3.5, 0]},
    "enum-mixed": {"enum": [None, True, 1, "1", [1], {"a": 1}]},
    "enum-repeated": {"enum": ["a", "a", "b"]},
    "enum-typed": {"type": "string", "enum": ["a", "b"]},
    "enum-typed-drops-others": {"type": "string", "enum": ["a", 1, None]},
    "enum-typed-integer": {"type": "integer", "enum": [1, 2.5, 3.0]},
    "enum-typed-nullable": {"type": ["string", "null"], "enum": ["a", None]},
    "enum-and-limit": {"enum": [1, 5, 9], "minimum": 4},
    "enum-and-length": {"enum": ["a", "abc"], "minLength": 2},
    "enum-and-pattern": {"enum": ["ab", "ba"], "pattern": "^a"},
    "enum-and-multiple": {"enum": [5, 6, 7, 9], "multipleOf": 3},
    "enum-escapes": {"enum": ['quote"', "back\\slash", "new\nline", "tab\t", "bell\u0007", "slash/"]},
    "enum-unicode": {"enum": ["é", "e\u0301", "日本", "😀", "\u2028"]},
    "enum-empty-string": {"enum": ["", "x"]},
    "enum-nested": {"enum": [{"a": [1, {"b": None}]}, [[], {}]]},
    "enum-large": {"enum": [f"value-{i}" for i in range(300)]},
    "const-string": {"const": "fixed"},
    "const-null": {"const": None},
    "const-false": {"const": False},
    "const-zero": {"const": 0},
    "const-negative": {"const": -12},
    "const-fraction": {"const": 0.25},
    "const-integral-float": {"const": 3.0},
    "const-large": {"const": 9007199254740992},
    "const-array": {"const": [1, "a", None]},
    "const-object": {"const": {"b": 1, "a": {"c": []}}},
    "const-empty-object": {"const": {}},
    "const-and-enum": {"const": "a", "enum": ["a", "b"]},
    "const-and-type": {"type": "integer", "const": 5},
    # numbers
    "integer-both-bounds": {"type": "integer", "minimum": -5, "maximum": 17},
    "integer-one-value": {"type": "integer", "minimum": 4, "maximum": 4},
    "integer-negative": {"type": "integer", "minimum": -99, "maximum": -90},
    "integer-fraction-bounds": {"type": "integer", "minimum": 1.5, "maximum": 4.2},
    "integer-exclusive": {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 3},
    "integer-exclusive-and-inclusive": {
        "type": "integer", "minimum": 0, "exclusiveMinimum": 2, "maximum": 9, "exclusiveMaximum": 5,
    },
    "integer-digits": {"type": "integer", "minimum": 95, "maximum": 1005},
    "integer-multiple": {"type": "integer", "minimum": 0, "maximum": 50, "multipleOf": 5},
    "integer-multiple-negative": {"type": "integer", "minimum": -20, "maximum": 20, "multipleOf": 7},
    "integer-multiple-of-one": {"type": "integer", "minimum": 0, "maximum": 5, "multipleOf": 1},
    "integer-multiple-of-fraction": {"type": "integer", "minimum": 0, "maximum": 20, "multipleOf": 2.5},
    "integer-int64-range": {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
    "integer-beyond-double": {"type": "integer", "minimum": 0, "maximum": 2**53 + 1},
    "integer-format-int32": {"type": "integer", "format": "int32"},
    "integer-format-int64": {"type": "integer", "format": "int64"},
    "integer-format-uint8": {"type": "integer", "format": "uint8"},
    "number-enum": {"type": "number", "enum": [0.1, 0.2, 1e3]},
    "number-multiple-cents": {"type": "number", "minimum": 0, "maximum": 2, "multipleOf": 0.01},
    "number-multiple-half": {"type": "number", "minimum": -3, "maximum": 3, "multipleOf": 0.5},
    "bounds-draft-4": {
        "$schema": DRAFT_4, "type": "integer", "minimum": 1, "exclusiveMinimum": True, "maximum": 4,
        "exclusiveMaximum": False,
    },
    # strings
    "string-max-length": {"type": "string", "maxLength": 3},
    "string-length-range": {"type": "string", "minLength": 2, "maxLength": 4},
    "string-exact-length": {"type": "string", "minLength": 3, "maxLength": 3},
    "string-empty": {"type": "string", "maxLength": 0},
    "string-length-as-float": {"type": "string", "minLength": 1.0, "maxLength": 2.0},
    "string-min-length-zero": {"type": "string", "minLength": 0, "maxLength": 2},
    "pattern-anchored": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    "pattern-search": {"type": "string", "pattern": "cat", "maxLength": 8},
    "pattern-prefix": {"type": "string", "pattern": "^id-", "maxLength": 8},
    "pattern-suffix": {"type": "string", "pattern": "\\.txt$", "maxLength": 9},
    "pattern-alternatives": {"type": "string", "pattern": "^(?:yes|no)$"},
    "pattern-outer-alternatives": {"type": "string", "pattern": "^yes$|^no$"},
    "pattern-half-anchored-alternatives": {"type": "string", "pattern": "^a|b$", "maxLength": 4},
    "pattern-shorthands": {"type": "string", "pattern": "^\\d{2}\\w\\s\\D\\W\\S$"},
    "pattern-dot": {"type": "string", "pattern": "^.{3}$"},
    "pattern-not-quote": {"type": "string", "pattern": '^[^"]{1,6}$'},
    "pattern-not-backslash": {"type": "string", "pattern": "^[^\\\\]{1,6}$"},
    "pattern-not-quote-nor-backslash": {"type": "string", "pattern": '^[^"\\\\]{1,6}$'},
    "pattern-not-letter": {"type": "string", "pattern": "^[^A-Za-z]{3}$"},
    "pattern-quote-and-backslash": {"type": "string", "pattern": '^["\\\\]{3}$'},
    "pattern-control": {"type": "string", "pattern": "^a\\tb\\nc$"},
    "pattern-hex-escapes": {"type": "string", "pattern": "^\\x41\\u00e9$"},
    "pattern-unicode-range": {"type": "string", "pattern": "^[à-ÿ]{2}$"},
    "pattern-unicode-property": {"type": "string", "pattern": "^\\p{L}{2}$"},
    "pattern-named-group": {"type": "string", "pattern": "^(?<year>[0-9]{4})$"},
    "pattern-lazy": {"type": "string", "pattern": "^a{1,3}?b$"},
    "pattern-class-looks-like-set": {"type": "string", "pattern": "^[a&&b]{2}$"},
    "pattern-literal-specials": {"type": "string", "pattern": "^\\$\\{a\\.b\\}/c-d$"},
    "pattern-and-length": {"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 5},
    "pattern-nested-repeat": {"type": "string", "pattern": "^(?:a{1,2}b?){1,3}$"},
    "pattern-empty": {"type": "string", "pattern": "^$"},
    "format-date": {"type": "string", "format": "date"},
    "format-time": {"type": "string", "format": "time"},
    "format-date-time": {"type": "string", "format": "date-time"},
    "format-email": {"type": "string", "format": "email"},
    "format-hostname": {"type": "string", "format": "hostname"},
    "format-ipv4": {"type": "string", "format": "ipv4"},
    "format-ipv6": {"type": "string", "format": "ipv6"},
    "format-uuid": {"type": "string", "format": "uuid"},
    "format-and-pattern": {"type": "string", "format": "date", "pattern": "^2024-0[1-3]"},
    "format-and-length": {"type": "string", "format": "hostname", "maxLength": 6},
    "format-nullable": {"type": ["string", "null"], "format": "date"},
    "format-beside-other-type": {"type": "integer", "format": "unix-time", "minimum": 0, "maximum": 9},
    "content-is-annotation": {
        "type": "string", "maxLength": 4, "contentEncoding": "base64", "contentMediaType": "image/png",
        "contentSchema": {"type": "object"},
    },
    # arrays
    "array-items": {"type": "array", "items": DIGIT, "maxItems": 4},
    "array-item-range": {"type": "array", "items": WORD, "minItems": 1, "maxItems": 2},
    "array-exact": {"type": "array", "items": FLAG, "minItems": 2, "maxItems": 2},
    "array-empty": {"type": "array", "maxItems": 0},
    "array-items-false": {"type": "array", "items": False},
    "array-nested": {"type": "array", "maxItems": 2, "items": {"type": "array", "maxItems": 2, "items": DIGIT}},
    "array-of-objects": {"type": "array", "maxItems": 2, "items": closed(a=DIGIT, b=FLAG)},
    "array-of-unions": {"type": "array", "maxItems": 3, "items": {"anyOf": [FLAG, NULL]}},
    "tuple": {"type": "array", "prefixItems": [FLAG, DIGIT], "items": False},
    "tuple-required": {"type": "array", "prefixItems": [FLAG, DIGIT], "items": False, "minItems": 2},
    "tuple-and-rest": {"type": "array", "prefixItems": [FLAG], "items": DIGIT, "maxItems": 3},
    "tuple-longer-than-max": {"type": "array", "prefixItems": [FLAG, DIGIT, NULL], "maxItems": 1},
    "tuple-draft-7": {
        "$schema": DRAFT_7, "type": "array", "items": [FLAG, DIGIT], "additionalItems": False, "minItems": 2,
    },
    "tuple-draft-7-rest": {
        "$schema": DRAFT_7, "type": "array", "items": [FLAG], "additionalItems": NULL, "maxItems": 3,
    },
    "tuple-draft-4": {"$schema": DRAFT_4, "type": "array", "items": [FLAG], "additionalItems": False},
    "tuple-old-form-without-schema": {"type": "array", "items": [FLAG, DIGIT], "additionalItems": False},
    "tuple-2019": {"$schema": DRAFT_2019, "type": "array", "items": [FLAG], "additionalItems": False},
    "array-additional-items-idle": {
        "$schema": DRAFT_7, "type": "array", "items": FLAG, "additionalItems": False, "maxItems": 2,
    },
    "array-unique-false": {"type": "array", "items": FLAG, "maxItems": 2, "uniqueItems": False},
    "array-contains-counts-idle": {"type": "array", "items": FLAG, "maxItems": 2, "minContains": 1, "maxContains": 2},
    # objects
    "object-empty": closed(),
    "object-optional": closed("b", a=FLAG, b=DIGIT),
    "object-all-optional": closed("a", "b", a=FLAG, b=DIGIT),
    "object-order": closed(zeta=FLAG, alpha=FLAG, mid=FLAG),
    "object-nested": closed(a=closed(b=closed(c=DIGIT))),
    "object-odd-names": closed(**{"": FLAG, "a b": FLAG, "a/b": FLAG, "a~b": FLAG, "$ref": FLAG, 'q"\\': FLAG}),
    "object-unicode-names": closed(**{"名前": FLAG, "é": FLAG, "e\u0301": FLAG, "😀": FLAG}),
    "object-names-like-keywords": closed(type=WORD, properties=FLAG, required=FLAG, enum=DIGIT, **{"not": FLAG}),
    "object-required-none": {"type": "object", "properties": {"a": FLAG}, "additionalProperties": False},
    "object-property-forbidden": closed("a", a=False, b=FLAG),
    "object-property-any-literal": closed(a={"enum": [1, "x"]}),
    "object-min-properties-one": {**closed("a", "b", a=FLAG, b=FLAG), "minProperties": 1},
    "object-min-properties-met": {**closed(a=FLAG, b=FLAG), "minProperties": 2},
    "object-min-properties-zero": {**closed("a", a=FLAG), "minProperties": 0},
    "object-max-properties-one": {**closed("a", "b", a=FLAG, b=FLAG), "maxProperties": 1},
    "pattern-properties": {
        "type": "object", "patternProperties": {"^k[0-9]$": DIGIT}, "additionalProperties": False,
        "minProperties": 1, "maxProperties": 3,
    },
    "pattern-properties-disjoint": {
        "type": "object", "patternProperties": {"^a[0-9]$": DIGIT, "^b[0-9]$": FLAG}, "additionalProperties": False,
        "maxProperties": 3,
    },
    "pattern-properties-and-declared": {
        "type": "object", "properties": {"id": DIGIT}, "required": ["id"], "patternProperties": {"^x[a-c]$": FLAG},
        "additionalProperties": False, "maxProperties": 3,
    },
    "pattern-properties-meet-declared": {
        "type": "object", "properties": {"x1": {"maximum": 4}}, "required": ["x1"],
        "patternProperties": {"^x[0-9]$": DIGIT}, "additionalProperties": False, "maxProperties": 2,
    },
    "pattern-properties-empty": {**closed(a=FLAG), "patternProperties": {}},
    "property-names-idle": {**closed(a=FLAG), "propertyNames": True},
    "unevaluated-properties-idle": {**closed(a=FLAG), "unevaluatedProperties": True},
    "dependent-required-empty": {**closed(a=FLAG), "dependentRequired": {}},
    # combinations
    "any-of": {"anyOf": [FLAG, DIGIT, {"const": "x"}]},
    "any-of-one": {"anyOf": [FLAG]},
    "any-of-nested": {"anyOf": [{"anyOf": [NULL, FLAG]}, {"anyOf": [DIGIT]}]},
    "any-of-with-false": {"anyOf": [False, FLAG]},
    "any-of-objects": {"anyOf": [closed(a=FLAG), closed(b=DIGIT)]},
    "any-of-overlapping": {"anyOf": [{"enum": ["a", "b"]}, {"enum": ["b", "c"]}]},
    "any-of-and-type": {"type": "integer", "anyOf": [{"minimum": 0, "maximum": 3}, {"minimum": 7, "maximum": 9}]},
    "any-of-required": {**closed("a", "b", a=FLAG, b=FLAG), "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
    "any-of-narrows-property": {
        **closed(kind={"enum": ["a", "b"]}, n=DIGIT),
        "anyOf": [
            {"properties": {"kind": {"const": "a"}, "n": {"maximum": 3}}},
            {"properties": {"kind": {"const": "b"}, "n": {"minimum": 7}}},
        ],
    },
    "one-of-types": {"oneOf": [FLAG, DIGIT, NULL]},
    "one-of-one": {"oneOf": [DIGIT]},
    "one-of-literals": {"oneOf": [{"const": 1}, {"const": 2}, {"enum": ["a"]}]},
    "one-of-discriminated": {
        "oneOf": [closed(kind={"const": "cat"}, lives=DIGIT), closed(kind={"const": "dog"}, good=FLAG)],
    },
    "one-of-referenced": {
        "oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
        "$defs": {"cat": closed(kind={"const": "cat"}), "dog": closed(kind={"enum": ["dog", "wolf"]}, good=FLAG)},
    },
    "one-of-nullable-reference": {"oneOf": [{"$ref": "#/$defs/n"}, NULL], "$defs": {"n": DIGIT}},
    "one-of-and-type": {"type": "object", "oneOf": [closed(k={"const": 1}), closed(k={"const": 2})]},
    "all-of-one": {"allOf": [DIGIT]},
    "all-of-bounds": {"allOf": [{"type": "integer"}, {"minimum": 2}, {"maximum": 5}]},
    "all-of-strings": {"allOf": [{"type": "string"}, {"pattern": "^a"}, {"pattern": "b$"}, {"maxLength": 4}]},
    "all-of-enums": {"allOf": [{"enum": ["a", "b", "c"]}, {"enum": ["b", "c", "d"]}]},
    "all-of-types": {"allOf": [{"type": ["boolean", "null"]}, {"type": ["null", "string"]}]},
    "all-of-objects": {
        "allOf": [
            {"type": "object", "properties": {"a": FLAG}, "required": ["a"]},
            {"properties": {"a": True, "b": DIGIT}, "required": ["b"], "additionalProperties": False},
        ]
    },
    "all-of-arrays": {"allOf": [{"type": "array", "items": DIGIT}, {"minItems": 1}, {"maxItems": 3}]},
    "all-of-multiples": {
        "allOf": [{"type": "integer", "minimum": 0, "maximum": 60}, {"multipleOf": 4}, {"multipleOf": 6}]
    },
    "all-of-beside-siblings": {"type": "integer", "minimum": 0, "allOf": [{"maximum": 5}]},
    "combinators-together": {
        "type": "integer", "minimum": 0, "maximum": 20, "allOf": [{"multipleOf": 2}],
        "anyOf": [{"maximum": 4}, {"minimum": 16}],
    },
    "boolean-true-members": closed(a={"anyOf": [NULL, {"const": 1}]}),
    # references
    "ref-defs": {"$ref": "#/$defs/d", "$defs": {"d": DIGIT}},
    "ref-definitions": {"$schema": DRAFT_7, "$ref": "#/definitions/d", "definitions": {"d": DIGIT}},
    "ref-definitions-newest-draft": {**closed(x={"$ref": "#/definitions/d"}), "definitions": {"d": DIGIT}},
    "ref-chain": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/c"}, "c": FLAG}},
    "ref-property": closed(a=DIGIT, b={"$ref": "#/properties/a"}),
    "ref-list-member": closed(a={"anyOf": [DIGIT, NULL]}, b={"$ref": "#/properties/a/anyOf/0"}),
    "ref-escaped": {**closed(a={"$ref": "#/$defs/x~1y~0z"}), "$defs": {"x/y~z": DIGIT}},
    "ref-percent": {**closed(a={"$ref": "#/$defs/a%20b"}), "$defs": {"a b": DIGIT}},
    "ref-unicode": {**closed(a={"$ref": "#/$defs/%C3%A9"}), "$defs": {"é": DIGIT}},
    "ref-siblings": {**closed(a={"$ref": "#/$defs/n", "maximum": 3}), "$defs": {"n": DIGIT}},
    "ref-annotation-siblings": {
        **closed(a={"$ref": "#/$defs/n", "description": "x", "default": 1}), "$defs": {"n": DIGIT},
    },
    "ref-anchor": {**closed(a={"$ref": "#here"}), "$defs": {"n": {"$anchor": "here", **DIGIT}}},
    "ref-own-id": {
        "$id": "https://example.org/s", **closed(a={"$ref": "https://example.org/s#/$defs/n"}), "$defs": {"n": DIGIT},
    },
    "ref-unknown-keyword": {**closed(a={"$ref": "#/components/n"}), "components": {"n": DIGIT}},
    "ref-to-true-in-union": {"anyOf": [{"$ref": "#/$defs/n"}], "$defs": {"n": DIGIT, "unused": {"not": False}}},
    "recursion-bounded-by-depth": {
        "$ref": "#/$defs/a", "$defs": {"a": closed("b", b={"$ref": "#/$defs/b"}), "b": closed("c", c=DIGIT)},
    },
    # annotations and unknown keywords
    "annotations": {
        "$comment": "c", "title": "t", "description": "d", "default": 1, "examples": [1], "deprecated": True,
        "readOnly": True, "writeOnly": False, **DIGIT,
    },
    "unknown-keywords": {**DIGIT, "nullable": True, "example": 3, "x-order": 1, "propertyOrder": ["a"]},
    "discriminator": {
        "discriminator": {"propertyName": "k"}, "oneOf": [closed(k={"const": "a"}), closed(k={"const": "b"})],
    },
    "schema-2020": {"$schema": DRAFT_2020, **DIGIT},
    "schema-2019": {"$schema": DRAFT_2019, **DIGIT},
    "schema-7-without-fragment": {"$schema": DRAFT_7.rstrip("#"), **DIGIT},
    "schema-6": {"$schema": DRAFT_6, **closed(a={"const": 1})},
    "schema-unknown-url": {"$schema": "https://example.org/dialect", **DIGIT},
    "id-draft-4": {"$schema": DRAFT_4, "id": "https://example.org/s", **closed(a={"$ref": "#/definitions/n"}),
                   "definitions": {"n": DIGIT}},
    "id-and-vocabulary": {"$id": "urn:example:1", **DIGIT},
    "not-false": {**DIGIT, "not": False},
    "if-alone": {**DIGIT, "if": {"maximum": 3}},
    "then-alone": {**DIGIT, "then": {"maximum": 3}},
    # real shapes
    "pydantic-optional": closed("why", why={"anyOf": [SHORT, NULL], "default": None, "title": "Why"}),
    "invoice": closed(
        number={"type": "string", "pattern": "^INV-[0-9]{4}$"},
        date={"type": "string", "format": "date"},
        lines={"type": "array", "minItems": 1, "maxItems": 2, "items": closed(sku=WORD, count=DIGIT)},
        paid=FLAG,
    ),
    "tool-arguments": closed("unit", city={"type": "string", "maxLength": 8}, unit={"enum": ["c", "f"]}),
    "many-properties": closed(**{f"field_{i}": FLAG for i in range(25)}),
}  # fmt: skip

_ENFORCED_UNBOUNDED: dict[str, Any] = {
    "any-value": {},
    "any-object": {"type": "object"},
    "any-array": {"type": "array"},
    "any-string": {"type": "string"},
    "any-integer": {"type": "integer"},
    "any-number": {"type": "number"},
    "number-open-interval": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "number-closed-interval": {"type": "number", "minimum": -1.5, "maximum": 2.25},
    "number-minimum": {"type": "number", "minimum": 0.1},
    "number-maximum": {"type": "number", "maximum": -0.5},
    "number-multiple-unbounded": {"type": "number", "multipleOf": 0.01},
    "number-multiple-of-two-and-a-half": {"type": "number", "multipleOf": 2.5},
    "number-format-double": {"type": "number", "format": "double"},
    "integer-minimum": {"type": "integer", "minimum": 5},
    "integer-maximum": {"type": "integer", "maximum": -3},
    "string-min-length": {"type": "string", "minLength": 2},
    "pattern-unanchored": {"type": "string", "pattern": "a"},
    "format-uri": {"type": "string", "format": "uri"},
    "format-duration": {"type": "string", "format": "duration"},
    "array-min-items": {"type": "array", "items": FLAG, "minItems": 2},
    "tuple-open": {"type": "array", "prefixItems": [FLAG]},
    "object-open": {"type": "object", "properties": {"a": DIGIT}, "required": ["a"]},
    "object-open-explicit": {"type": "object", "properties": {"a": DIGIT}, "additionalProperties": True},
    "object-open-odd-names": {"type": "object", "properties": {"a/b": DIGIT, "é": FLAG}, "required": ["a/b", "é"]},
    "object-open-typed": {"type": "object", "properties": {"a": DIGIT, "ab": FLAG}, "additionalProperties": NULL},
    "object-open-typed-quotes": {
        "type": "object", "properties": {'a"': DIGIT, "a\\": FLAG}, "additionalProperties": NULL,
    },
    "object-open-long-name": {"type": "object", "properties": {"n" * 64: DIGIT}, "additionalProperties": NULL},
    "object-required-undeclared": {"type": "object", "required": ["x"], "additionalProperties": DIGIT},
    "object-required-undeclared-open": {"type": "object", "properties": {"a": FLAG}, "required": ["x"]},
    "object-map": {"type": "object", "additionalProperties": DIGIT},
    "object-map-bounded": {"type": "object", "additionalProperties": DIGIT, "minProperties": 1, "maxProperties": 2},
    "object-min-with-required": {
        "type": "object", "properties": {"a": FLAG}, "required": ["a"], "additionalProperties": DIGIT,
        "minProperties": 2, "maxProperties": 3,
    },
    "pattern-properties-unanchored": {
        "type": "object", "patternProperties": {"a": DIGIT}, "additionalProperties": False, "maxProperties": 2,
    },
    "untyped-limits": {"minimum": 3, "maximum": 5, "maxLength": 2, "maxItems": 1, "maxProperties": 1},
    "untyped-properties": {"properties": {"a": DIGIT}, "required": ["a"]},
    "untyped-multiple": {"multipleOf": 3, "maximum": 99, "minimum": 0},
    "all-of-base": {
        "allOf": [{"$ref": "#/$defs/base"}, {"type": "object", "properties": {"ok": FLAG}, "required": ["ok"]}],
        "$defs": {"base": {"type": "object", "properties": {"id": DIGIT}, "required": ["id"]}},
    },
    "recursion-list": closed(v=DIGIT, next={"anyOf": [{"$ref": "#"}, NULL]}),
    "recursion-one-of": {
        "$ref": "#/$defs/n", "$defs": {"n": closed(v=DIGIT, next={"oneOf": [{"$ref": "#/$defs/n"}, NULL]})},
    },
    "recursion-tree": {
        "$ref": "#/$defs/t",
        "$defs": {"t": closed(v=DIGIT, kids={"type": "array", "maxItems": 2, "items": {"$ref": "#/$defs/t"}})},
    },
    "recursion-mutual": {
        "$ref": "#/$defs/a",
        "$defs": {"a": closed("b", b={"$ref": "#/$defs/b"}), "b": closed("a", a={"$ref": "#/$defs/a"})},
    },
    "recursion-json-value": {
        "$ref": "#/$defs/json",
        "$defs": {
            "json": {
                "anyOf": [NULL, FLAG, DIGIT, SHORT, {"type": "array", "items": {"$ref": "#/$defs/json"}},
                          {"type": "object", "additionalProperties": {"$ref": "#/$defs/json"}}]
            }
        },
    },
}  # fmt: skip

# id: (schema, where the refusal points)
_REFUSED: dict[str, tuple[Any, str]] = {
    # no JSON Schema
    "bad-type-name": ({"type": "text"}, ".type"),
    "bad-type-deep": (closed(a={"type": "array", "items": {"type": "any"}}), ".properties.a.items.type"),
    "bad-type-empty-list": ({"type": []}, ".type"),
    "bad-minimum": ({"type": "integer", "minimum": "0"}, ".minimum"),
    "bad-min-length": ({"type": "string", "minLength": -1}, ".minLength"),
    "bad-min-length-fraction": ({"type": "string", "minLength": 1.5}, ".minLength"),
    "bad-required": ({"type": "object", "required": "a"}, ".required"),
    "bad-required-repeated": ({"type": "object", "required": ["a", "a"]}, ".required"),
    "bad-properties": ({"type": "object", "properties": ["a"]}, ".properties"),
    "bad-property": ({"type": "object", "properties": {"a": "string"}}, ".properties.a"),
    "bad-any-of": ({"anyOf": []}, ".anyOf"),
    "bad-all-of-member": ({"allOf": [1]}, ".allOf[0]"),
    "bad-enum": ({"enum": "a"}, ".enum"),
    "bad-ref": ({"$ref": 1}, ".$ref"),
    "bad-multiple-of-zero": ({"type": "number", "multipleOf": 0}, ".multipleOf"),
    "bad-exclusive-in-newest-draft": ({"type": "integer", "minimum": 1, "exclusiveMinimum": True}, ".exclusiveMinimum"),
    "bad-definitions": ({"$defs": {"a": {"type": 1}}, **FLAG}, ".$defs.a.type"),
    "bad-below-unknown-keyword": (
        {**closed(a={"$ref": "#/components/n"}), "components": {"n": {"type": "nothing"}}}, ".components.n",
    ),
    # nothing satisfies it
    "never-false": (False, ""),
    "never-enum-empty": ({"enum": []}, ".enum"),
    "never-enum-of-other-type": (closed(a={"type": "string", "enum": [1, 2]}), ".properties.a"),
    "never-const-and-enum": ({"const": "c", "enum": ["a", "b"]}, ""),
    "never-bounds": ({"type": "integer", "minimum": 5, "maximum": 1}, ""),
    "never-exclusive-gap": (closed(a={"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 4}),
                            ".properties.a"),
    "never-multiple": ({"type": "integer", "minimum": 1, "maximum": 3, "multipleOf": 7}, ""),
    "never-lengths": ({"type": "string", "minLength": 3, "maxLength": 2}, ""),
    "never-items": ({"type": "array", "minItems": 3, "maxItems": 2}, ""),
    "never-items-false": ({"type": "array", "items": False, "minItems": 1}, ""),
    "never-pattern-and-format": (closed(a={"type": "string", "format": "date", "pattern": "^x"}), ".properties.a"),
    "never-required-undeclared": ({**closed(a=NULL), "required": ["a", "b"]}, ".required"),
    "never-required-forbidden": (closed(a=False), ".required"),
    "never-all-of-types": (closed(a={"allOf": [{"type": "string"}, NULL]}), ".properties.a.allOf"),
    "never-all-of-closed": ({"allOf": [closed(a=FLAG), closed(b=FLAG)]}, ".allOf"),
    "never-max-properties": ({**closed(a=FLAG, b=FLAG), "maxProperties": 1}, ""),
    # keywords that no engine enforces
    "not": ({"not": NULL}, ".not"),
    "not-deep": (closed(a={"anyOf": [FLAG, {"type": "string", "not": {"const": "x"}}]}), ".properties.a.anyOf[1].not"),
    "not-true": ({"not": True}, ".not"),
    "if-then": ({**closed("b", a=FLAG, b=FLAG), "if": {"properties": {"a": {"const": True}}},
                 "then": {"required": ["b"]}}, ".if"),
    "if-else": ({"if": {"type": "string"}, "else": FLAG}, ".if"),
    "contains": ({"type": "array", "maxItems": 3, "contains": {"const": 7}}, ".contains"),
    "contains-min": ({"type": "array", "contains": FLAG, "minContains": 2}, ".contains"),
    "contains-max": ({"type": "array", "contains": FLAG, "maxContains": 1}, ".contains"),
    "unique-items": ({"type": "array", "items": FLAG, "maxItems": 2, "uniqueItems": True}, ".uniqueItems"),
    "unique-items-in-property": (closed(tags={"type": "array", "items": WORD, "uniqueItems": True}),
                                 ".properties.tags.uniqueItems"),
    "property-names": ({"type": "object", "propertyNames": {"pattern": "^a"}}, ".propertyNames"),
    "property-names-length": ({"type": "object", "propertyNames": {"maxLength": 3}}, ".propertyNames"),
    "dependent-required": ({**closed("b", a=FLAG, b=FLAG), "dependentRequired": {"a": ["b"]}}, ".dependentRequired"),
    "dependent-schemas": ({**closed(a=FLAG), "dependentSchemas": {"a": {"required": ["b"]}}}, ".dependentSchemas"),
    "dependencies": ({"$schema": DRAFT_7, **closed("b", a=FLAG, b=FLAG), "dependencies": {"a": ["b"]}},
                     ".dependencies"),
    "dependencies-newest-draft": ({"type": "object", "dependencies": {"a": ["b"]}}, ".dependencies"),
    "unevaluated-properties": ({"type": "object", "properties": {"a": FLAG}, "unevaluatedProperties": False},
                               ".unevaluatedProperties"),
    "unevaluated-items": ({"type": "array", "prefixItems": [FLAG], "unevaluatedItems": False}, ".unevaluatedItems"),
    "dynamic-ref": ({"$dynamicRef": "#node"}, ".$dynamicRef"),
    "dynamic-anchor": ({"$dynamicAnchor": "node", **DIGIT}, ".$dynamicAnchor"),
    "recursive-ref": ({"$schema": DRAFT_2019, **closed("a", a={"$recursiveRef": "#"})}, ".properties.a.$recursiveRef"),
    "recursive-anchor": ({"$schema": DRAFT_2019, "$recursiveAnchor": True, **DIGIT}, ".$recursiveAnchor"),
    "draft-3-disallow": ({"disallow": "string"}, ".disallow"),
    "draft-3-divisible": ({"type": "integer", "divisibleBy": 2}, ".divisibleBy"),
    "draft-3-extends": ({"extends": {"type": "string"}}, ".extends"),
    "x-guidance": ({**DIGIT, "x-guidance": {"lenient": True}}, ".x-guidance"),
    "x-guidance-separator": ({**closed(a=FLAG), "x-guidance": {"key_separator": "="}}, ".x-guidance"),
    # keywords of another draft
    "prefix-items-in-draft-7": ({"$schema": DRAFT_7, "type": "array", "prefixItems": [FLAG]}, ".prefixItems"),
    "additional-items-in-newest": ({"type": "array", "prefixItems": [FLAG], "additionalItems": False},
                                   ".additionalItems"),
    "const-in-draft-4": ({"$schema": DRAFT_4, "const": 1}, ".const"),
    "content-encoding-in-draft-7": ({"$schema": DRAFT_7, "type": "string", "contentEncoding": "base64"},
                                    ".contentEncoding"),
    # references
    "ref-missing": (closed(a={"$ref": "#/$defs/x"}), ".properties.a.$ref"),
    "ref-missing-anchor": (closed(a={"$ref": "#x"}), ".properties.a.$ref"),
    "ref-remote": ({"$ref": "https://example.org/schema.json"}, ".$ref"),
    "ref-file": ({"$ref": "other.json#/a"}, ".$ref"),
    "ref-without-hash": ({**closed(a={"$ref": "/$defs/x"}), "$defs": {"x": FLAG}}, ".properties.a.$ref"),
    "ref-to-map": (closed(a={"$ref": "#/properties"}), ".properties.a.$ref"),
    "ref-to-value": ({**closed(a={"$ref": "#/$defs/x/enum/0"}), "$defs": {"x": {"enum": [{}]}}}, ".properties.a.$ref"),
    "ref-nested-id": ({**closed(a={"$ref": "#/$defs/x"}), "$defs": {"x": {"$id": "https://example.org/x", **FLAG}}},
                      ".$defs.x.$id"),
    "ref-nested-id-draft-4": (
        {"$schema": DRAFT_4, **closed(a={"id": "https://example.org/x", **FLAG})}, ".properties.a.id",
    ),
    "ref-itself": ({"$ref": "#"}, ".$ref"),
    "ref-loop": ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
                 ".$defs.a.$ref"),
    "ref-property-to-itself": (closed(a={"$ref": "#/properties/a"}), ".properties.a.$ref"),
    "ref-circular-with-siblings": (
        {"$ref": "#/$defs/n", "$defs": {"n": closed("c", c={"$ref": "#/$defs/n", "type": "object"})}},
        ".$defs.n.properties.c",
    ),
    "recursion-mandatory": (closed(n={"$ref": "#"}), ".properties.n.$ref"),
    "recursion-mandatory-array": (
        {"$ref": "#/$defs/n", "$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}, "minItems": 1}}},
        ".$defs.n.items.$ref",
    ),
    "recursion-mandatory-all-of": (
        {"$ref": "#/$defs/n", "$defs": {"n": {"allOf": [closed(c={"$ref": "#/$defs/n"})]}}},
        ".$defs.n.allOf[0].properties.c.$ref",
    ),
    "recursion-trap-in-union": (
        {"anyOf": [NULL, {"$ref": "#/$defs/n"}], "$defs": {"n": closed(c={"$ref": "#/$defs/n"})}},
        ".$defs.n.properties.c.$ref",
    ),
    # combinations
    "one-of-overlapping-numbers": (closed(a={"oneOf": [{"type": "integer"}, {"type": "number"}]}),
                                   ".properties.a.oneOf"),
    "one-of-overlapping-enums": ({"oneOf": [{"enum": ["a", "b"]}, {"enum": ["b"]}]}, ".oneOf"),
    "one-of-same-number": ({"oneOf": [{"const": 1}, {"const": 1.0}]}, ".oneOf"),
    "one-of-required": ({**closed("a", "b", a=FLAG, b=FLAG), "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
                        ".oneOf"),
    "one-of-optional-discriminator": (
        {"oneOf": [{"type": "object", "properties": {"k": {"const": "a"}}},
                   {"type": "object", "properties": {"k": {"const": "b"}}}]}, ".oneOf",
    ),
    "one-of-empty-object": ({"oneOf": [{}, FLAG]}, ".oneOf"),
    # objects
    "min-properties-optional": ({**closed("a", "b", "c", a=FLAG, b=FLAG, c=FLAG), "minProperties": 2},
                                ".minProperties"),
    "max-properties-optional": ({**closed("a", "b", "c", a=FLAG, b=FLAG, c=FLAG), "maxProperties": 2},
                                ".maxProperties"),
    "max-properties-zero": ({**closed("a", a=FLAG), "maxProperties": 0}, ".maxProperties"),
    "min-properties-of-map": ({"type": "object", "additionalProperties": DIGIT, "minProperties": 2}, ".minProperties"),
    "additional-properties-beside-long-name": (
        {"type": "object", "properties": {"n" * 65: DIGIT}, "additionalProperties": NULL}, ".additionalProperties",
    ),
    "pattern-properties-open": ({"type": "object", "patternProperties": {"^a": DIGIT}}, ".patternProperties"),
    "pattern-properties-overlap": (
        {"type": "object", "patternProperties": {"^[a-c]$": DIGIT, "^[c-e]$": FLAG}, "additionalProperties": False},
        ".patternProperties",
    ),
    "pattern-properties-look-ahead": (
        {"type": "object", "patternProperties": {"^(?!a)": DIGIT}, "additionalProperties": False},
        ".patternProperties",
    ),
    # strings
    "pattern-look-ahead": (closed(a={"type": "string", "pattern": "^(?=.*[0-9])[a-z0-9]{4}$"}),
                           ".properties.a.pattern"),
    "pattern-look-behind": ({"type": "string", "pattern": "(?<!a)b"}, ".pattern"),
    "pattern-back-reference": ({"type": "string", "pattern": "^(a|b)\\1$"}, ".pattern"),
    "pattern-word-boundary": ({"type": "string", "pattern": "\\bcat\\b"}, ".pattern"),
    "pattern-anchor-inside": ({"type": "string", "pattern": "a$b"}, ".pattern"),
    "pattern-unclosed-class": ({"type": "string", "pattern": "^[a-"}, ".pattern"),
    "pattern-unclosed-group": ({"type": "string", "pattern": "(a"}, ".pattern"),
    "pattern-posix-class": ({"type": "string", "pattern": "^[[:alpha:]]$"}, ".pattern"),
    "pattern-flags": ({"type": "string", "pattern": "(?i)abc"}, ".pattern"),
    "pattern-python-escape": ({"type": "string", "pattern": "\\Aabc\\Z"}, ".pattern"),
    "pattern-too-long": ({"type": "string", "pattern": "a" * 5_000}, ".pattern"),
    "format-unknown": (closed(a={"type": "string", "format": "password"}), ".properties.a.format"),
    "format-named-unknown": ({"type": "string", "format": "unknown"}, ".format"),
    "format-binary": ({"type": "string", "format": "binary"}, ".format"),
    "format-uri-reference": ({"type": "string", "format": "uri-reference"}, ".format"),
    "format-regex": ({"format": "regex"}, ".format"),
    # numbers
    "const-beyond-double": ({"const": 2**53 + 1}, ".const"),
    "enum-beyond-double": ({"enum": [1, [2**60 + 1]]}, ".enum"),
    "const-huge": ({"const": 1e300}, ".const"),
    "bound-huge": ({"type": "number", "maximum": 1e20}, ".maximum"),
    "integer-between-doubles": ({"type": "integer", "minimum": 2**53 + 1, "maximum": 2**53 + 1}, ""),
    "multiple-too-fine": ({"type": "number", "multipleOf": 0.07}, ".multipleOf"),
    "multiples-too-large": (
        {"allOf": [{"type": "integer", "multipleOf": 65537}, {"multipleOf": 65539}]}, ".allOf[1].multipleOf",
    ),
    # limits
    "items-too-many": ({"type": "array", "maxItems": 65535, "items": FLAG}, ".maxItems"),
    "items-too-many-needed": ({"type": "array", "minItems": 20000, "items": FLAG}, ".minItems"),
    "enum-too-long": ({"enum": list(range(6000))}, ".enum"),
    "name-too-long": (closed(**{"a" * 1500: FLAG}), ".properties"),
    "too-many-optional": (closed(*(f"p{i}" for i in range(600)), **{f"p{i}": FLAG for i in range(600)}), ".properties"),
}  # fmt: skip

_MAX_TOKENS = {"many-properties": 800}

REFUSED_BY_XGRAMMAR = frozenset(
    {
        "integer-fraction-bounds", "integer-multiple", "integer-multiple-negative", "integer-multiple-of-one",
        "integer-multiple-of-fraction", "integer-int64-range", "integer-beyond-double", "number-multiple-cents",
        "number-multiple-half", "bounds-draft-4", "pattern-search", "pattern-prefix", "pattern-suffix",
        "pattern-half-anchored-alternatives", "pattern-shorthands", "pattern-dot", "pattern-not-quote",
        "pattern-not-backslash", "pattern-not-quote-nor-backslash", "pattern-not-letter",
        "pattern-quote-and-backslash", "pattern-control", "pattern-hex-escapes", "pattern-unicode-range",
        "pattern-unicode-property", "pattern-and-length", "format-ipv6", "format-and-pattern",
        "format-and-length", "tuple-longer-than-max", "tuple-draft-7", "tuple-draft-7-rest", "tuple-draft-4",
        "tuple-old-form-without-schema", "tuple-2019", "array-additional-items-idle", "object-property-forbidden",
        "pattern-properties", "pattern-properties-disjoint", "pattern-properties-and-declared",
        "pattern-properties-meet-declared", "pattern-properties-empty", "any-of-with-false", "any-of-and-type",
        "any-of-required", "any-of-narrows-property", "one-of-and-type", "all-of-bounds", "all-of-strings",
        "all-of-enums", "all-of-types", "all-of-objects", "all-of-arrays", "all-of-multiples",
        "all-of-beside-siblings", "combinators-together", "ref-list-member", "ref-escaped", "ref-percent",
        "ref-unicode", "ref-siblings", "ref-anchor", "ref-own-id", "ref-to-true-in-union", "not-false",
        "if-alone", "then-alone", "number-multiple-unbounded", "number-multiple-of-two-and-a-half",
        "object-open-explicit", "object-open-typed", "object-open-long-name", "object-open-typed-quotes",
        "object-required-undeclared",
        "object-required-undeclared-open", "object-min-with-required", "pattern-properties-unanchored",
        "untyped-limits", "untyped-properties", "untyped-multiple", "all-of-base",
    }
)  # fmt: skip
"""Enforced cases that are refused where the backend is or may be xgrammar; the others held on xgrammar 0.2.8."""

ACCEPTED_BY_XGRAMMAR = frozenset(
    {
        "min-properties-optional", "max-properties-optional", "max-properties-zero", "too-many-optional",
        "never-exclusive-gap", "never-items-false", "never-max-properties",
    }
)  # fmt: skip
"""Refused cases that xgrammar enforces, or, the last three, refuses by itself without naming a place."""


def load_schemas() -> list[Case]:
    """All cases; ids are unique."""
    cases = [
        Case(name, schema, "enforced", max_tokens=_MAX_TOKENS.get(name, 400)) for name, schema in _ENFORCED.items()
    ]
    cases += [Case(name, schema, "enforced", bounded=False) for name, schema in _ENFORCED_UNBOUNDED.items()]
    cases += [Case(name, schema, "refused", where) for name, (schema, where) in _REFUSED.items()]
    assert len({case.id for case in cases}) == len(cases)
    return cases
