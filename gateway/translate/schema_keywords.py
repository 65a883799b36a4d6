"""Tables about JSON Schema's keywords: where subschemas stand, which draft knows what, what is refused everywhere.

Facts only, no code that walks. Sources: JSON Schema draft 4, 6, 7, 2019-09 and 2020-12.
"""

from typing import Final

DRAFTS: Final = {
    "http://json-schema.org/draft-04/schema": 4,
    "http://json-schema.org/draft-06/schema": 6,
    "http://json-schema.org/draft-07/schema": 7,
    "https://json-schema.org/draft/2019-09/schema": 2019,
    "https://json-schema.org/draft/2020-12/schema": 2020,
}
"""`$schema` without its empty fragment: the draft. Any other URL is read as the newest."""

NEWEST: Final = 2020

# Keywords whose value is one schema, a list of schemas, or an object of schemas by name.
ONE_SCHEMA = frozenset(
    {
        "additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not",
        "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
    }
)  # fmt: skip
LIST_OF_SCHEMAS = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
MAP_OF_SCHEMAS = frozenset(
    {"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"}
)
CONTAINERS = frozenset({"$defs", "definitions"})
"""Maps that hold schemas for `$ref` and assert nothing themselves."""

ANNOTATIONS = frozenset(
    {
        "$comment", "$vocabulary", "contentEncoding", "contentMediaType", "contentSchema", "default", "deprecated",
        "description", "examples", "readOnly", "title", "writeOnly",
    }
)  # fmt: skip

FIRST_AND_LAST_DRAFT: Final = {
    "additionalItems": (4, 2019),
    "const": (6, 2020),
    "prefixItems": (2020, 2020),
}
"""Keywords that backends enforce and only some drafts know; a draft that does not know one ignores it."""

META_SCHEMA_READS: Final = {
    "$defs": (2019, 2020),
    "additionalItems": (4, 2019),
    "contains": (6, 2020),
    "contentSchema": (2019, 2020),
    "dependentSchemas": (2019, 2020),
    "else": (7, 2020),
    "if": (7, 2020),
    "prefixItems": (2020, 2020),
    "propertyNames": (6, 2020),
    "then": (7, 2020),
    "unevaluatedItems": (2019, 2020),
    "unevaluatedProperties": (2019, 2020),
}
"""Keywords with subschemas that only some drafts' meta-schemas look into; the others leave them unjudged."""

REFUSED: Final = {
    "$dynamicAnchor": "use $defs and $ref",
    "$dynamicRef": "use $ref",
    "$recursiveAnchor": "use $defs and $ref",
    "$recursiveRef": "use $ref",
    "contains": "describe the members with prefixItems and items",
    "dependencies": "write the allowed combinations as anyOf",
    "dependentRequired": "write the allowed combinations as anyOf",
    "dependentSchemas": "write the allowed combinations as anyOf",
    "disallow": "it belongs to draft 3",
    "divisibleBy": "use multipleOf",
    "else": "write the allowed combinations as anyOf",
    "extends": "use allOf",
    "if": "write the allowed combinations as anyOf",
    "maxContains": "bound the array with maxItems",
    "minContains": "bound the array with minItems",
    "not": "list what is allowed instead",
    "propertyNames": "use patternProperties with additionalProperties: false",
    "then": "write the allowed combinations as anyOf",
    "unevaluatedItems": "use items",
    "unevaluatedProperties": "use additionalProperties",
    "uniqueItems": "distinct members cannot be enforced while generating; bound the array with maxItems",
    "x-guidance": "it would change how the engine enforces the schema",
}
"""Keywords that no backend enforces: what to do instead."""

ASSERTIONS = frozenset(
    {
        "$ref", "additionalItems", "additionalProperties", "allOf", "anyOf", "const", "enum", "exclusiveMaximum",
        "exclusiveMinimum", "format", "items", "maxItems", "maxLength", "maxProperties", "maximum", "minItems",
        "minLength", "minProperties", "minimum", "multipleOf", "oneOf", "pattern", "patternProperties",
        "prefixItems", "properties", "required", "type",
    }
)  # fmt: skip
"""Keywords that restrict the answer and that at least one backend enforces."""

KNOWN = ASSERTIONS | ANNOTATIONS | CONTAINERS | frozenset(REFUSED) | {"$schema", "$id", "id", "$anchor"}

COUNTS = frozenset({"maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"})
"""Keywords whose value is a non-negative integer; 2.0 is one too."""

BOUNDS = frozenset({"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum"})

ALL_TYPES = ("null", "boolean", "number", "string", "array", "object")

# Which type of value each assertion speaks about; without `type` it says nothing about the other types.
TYPE_OF_ASSERTION: Final = {
    **dict.fromkeys(("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"), "number"),
    **dict.fromkeys(("format", "maxLength", "minLength", "pattern"), "string"),
    **dict.fromkeys(("additionalItems", "items", "maxItems", "minItems", "prefixItems"), "array"),
    **dict.fromkeys(
        (
            "additionalProperties", "maxProperties", "minProperties", "patternProperties", "properties", "required",
        ),
        "object",
    ),
}  # fmt: skip
