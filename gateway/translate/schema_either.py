"""`auto` and unknown engines: guidance or xgrammar may be the one, so both must enforce the schema.

With `auto` the first structured request decides for the engine's whole life, and a later request that
was validated for the one is then compiled by the other, weaker without a word. So what either lacks
is refused, and the rewrites are those that both read alike.
"""

from gateway.translate import patterns, schema_guidance, schema_xgrammar
from gateway.translate.schema_walk import Document, Path, Schema


def check(document: Document) -> None:
    """Refuse what one of the two does not enforce, with its place."""
    schema_xgrammar.check(document)
    schema_guidance.check(document)


def edit(path: Path, schema: Schema) -> None:
    """Rewrite one schema for both: objects with declared properties are closed, as xgrammar does anyway."""
    if "const" in schema or "enum" in schema:
        schema_xgrammar.edit(path, schema)
    elif "pattern" in schema:
        schema["pattern"] = patterns.parse(schema["pattern"]).text
    elif "minLength" in schema or "maxLength" in schema:
        # xgrammar writes control characters as they are into a string with a length; characters that
        # need no escape are the same to both.
        least, most = schema.pop("minLength", 0), schema.pop("maxLength", "")
        schema["pattern"] = rf'^[^"\\\x00-\x1f\x7f]{{{least},{most}}}$'
    if schema.get("properties"):
        schema["additionalProperties"] = False
