"""guidance (llguidance 1.7): what it refuses, with the place, and what it would let through, mended.

llguidance fails closed on keywords that it does not know, so it is asked itself, with the options that
vLLM's validator uses. Its text names no place; `_locate` finds it by asking about parts of the schema.
Known leaks (each seen on the library):
- in an open object with declared properties a key written with an escape (`"\\u0061"`) counts as another
  one and shadows the declared member: such objects are closed and given a pattern for further keys;
- members of a map may repeat, so `minProperties` of two or more is met by one key twice: refused;
- classes, white space and formats: `gateway.translate.patterns`, `gateway.translate.formats`;
- grammars above the library's limits are accepted by its validator and end with an empty answer: a
  matcher is started to see that.
"""

from collections.abc import Sequence
from typing import Any, Final

import orjson
from llguidance import LLMatcher, LLTokenizer, grammar_from

from gateway.openai.errors import ApiError
from gateway.translate import patterns
from gateway.translate.formats import STRICT_PATTERNS
from gateway.translate.schema_keywords import ASSERTIONS, CONTAINERS
from gateway.translate.schema_walk import Document, Path, Schema, at, children, refuse

_END: Final = 256
_FIRST_STEPS: Final = 3
_LONGEST_EXCLUDED_NAME: Final = 64
"""`patterns.none_of` nests a group per character, and the library's expressions nest about 80 of them."""
_MAX_QUESTIONS: Final = 300
"""How often the library is asked to find one place; each costs under a millisecond on usual schemas."""


class _Bytes:
    """A tokenizer with one token per byte, enough to start a matcher."""

    is_tokenizer_wrapper = True
    eos_token_id = _END
    bos_token_id = None
    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>")
    special_token_ids = (_END,)

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


_tokenizer = LLTokenizer(_Bytes(), n_vocab=_END + 1, eos_token=_END, slices=[])  # type: ignore[arg-type]


def grammar_error(grammar: str) -> str | None:
    """Why llguidance cannot use the grammar: its own first line, or None."""
    error = LLMatcher.validate_grammar(grammar)
    if not error:
        error = _start(LLMatcher(_tokenizer, grammar, log_level=0))
    if not error:
        return None
    return error.strip().splitlines()[0]


def _start(matcher: LLMatcher) -> str:
    """Let the matcher take its first steps; what stops it there, or nothing."""
    for _ in range(_FIRST_STEPS):
        mask = int.from_bytes(matcher.compute_bitmask(), "little") & ~(1 << _END)
        if matcher.is_error() or matcher.is_accepting() or not mask:
            break
        matcher.consume_token((mask & -mask).bit_length() - 1)
    error = matcher.get_error()
    return "Unsatisfiable: no text matches" if error.startswith("NoExtension") else error


def matches(kind: str, text: str, answer: str) -> bool:
    """Is the answer all of a text that the regex, choice or grammar allows?"""
    matcher = LLMatcher(_tokenizer, grammar_from(kind, text), log_level=0)  # type: ignore[arg-type]
    tokens = list(answer.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def text_error(kind: str, text: str) -> str | None:
    """Why a regex, a choice (JSON text of the list) or a grammar cannot be used, or None."""
    try:
        return grammar_error(grammar_from(kind, text))  # type: ignore[arg-type]
    except ValueError as error:
        return str(error)


def check(document: Document) -> None:
    """Refuse what llguidance accepts without enforcing and what no rewrite mends."""
    for path, schema in document.schemas.items():
        if not isinstance(schema, dict):
            continue
        open_object = schema.get("additionalProperties") is not False
        named = schema.get("patternProperties")
        if named and open_object:
            raise refuse(
                document.place, (*path, "patternProperties"), "`patternProperties` can be enforced only beside "
                "additionalProperties: false; add that."
            )  # fmt: skip
        longest = max((len(name) for name in schema.get("properties", ())), default=0)
        if isinstance(schema.get("additionalProperties"), dict) and longest > _LONGEST_EXCLUDED_NAME:
            raise refuse(
                document.place, (*path, "additionalProperties"), "further members can be told from a declared name of "
                f"at most {_LONGEST_EXCLUDED_NAME} characters; shorten the name, or set this to false."
            )  # fmt: skip
        missing = schema.get("minProperties", 0) - len(schema.get("required", ()))
        if missing > 1 and (named or open_object):
            raise refuse(
                document.place, (*path, "minProperties"), "further members may repeat a name, so at most one more "
                "than the required ones can be demanded; lower it, or list the names in properties and required."
            )  # fmt: skip


def edit(path: Path, schema: Schema) -> None:
    """Rewrite one schema for guidance (see the module's list of leaks)."""
    if "pattern" in schema:
        schema["pattern"] = patterns.parse(schema["pattern"]).text
        if schema.get("format") in STRICT_PATTERNS:
            strict = patterns.parse(STRICT_PATTERNS[schema.pop("format")]).text
            schema["allOf"] = [*schema.get("allOf", ()), {"pattern": strict}]
    if schema.get("patternProperties"):
        schema["patternProperties"] = {
            patterns.parse(pattern).text: value for pattern, value in schema["patternProperties"].items()
        }
    elif (schema.get("properties") or schema.get("required")) and schema.get("additionalProperties") is not False:
        others = schema.get("additionalProperties", True)
        declared = list(schema.get("properties", ()))
        unrestricted = others is True or not others.keys() & ASSERTIONS
        schema["patternProperties"] = {"" if unrestricted or not declared else patterns.none_of(declared): others}
        schema["additionalProperties"] = False


def verify(document: Document, schema: Schema) -> None:
    """Ask llguidance about the rewritten schema; refuse with the place of what it does not take."""
    error = _schema_error(schema)
    if error is None:
        return
    path, cause = (_largest(document), error) if _is_about_size(error) else _locate(schema, error)
    # A rewritten keyword has no place in the client's schema; the schema around it has.
    while not _exists(document.root, path):
        path = (*path[:-2], "oneOf", *path[-1:]) if path[-2:-1] == ("anyOf",) else path[:-1]
    raise _refusal(document.place, path, cause)


def _schema_error(schema: Any) -> str | None:
    try:
        return grammar_error(LLMatcher.grammar_from_json_schema(orjson.dumps(schema).decode()))
    except ValueError as error:
        return str(error)


def _locate(root: Schema, error: str) -> tuple[Path, str]:
    """The innermost schema, and its keyword if one alone is to blame, that llguidance refuses."""
    moved = _move_references(root)
    questions = _MAX_QUESTIONS

    def ask(path: Path, without: Sequence[Path] = ()) -> str | None:
        """The library's word on the schema at `path` alone, less the parts at `without`."""
        nonlocal questions
        questions -= 1
        schema = at(moved, path)
        for part in without:
            schema = _without(schema, part[len(path) :])
        if isinstance(schema, bool):
            return None if schema else "false"
        return _schema_error({**schema, "x-root": moved})

    path: Path = ()
    seen = {path}
    while questions > 0:
        schema = at(moved, path)
        below = [(*path, *step) for step, child in children(schema) if step[0] not in CONTAINERS and child]
        if isinstance(schema.get("$ref"), str):
            below.append((*path, "$ref"))
        # Halve until one is left whose absence makes the rest acceptable.
        while len(below) > 1 and questions > 0:
            half = below[: len(below) // 2]
            below = below[len(half) :] if ask(path, half) is not None else half
        if not below:
            break
        deeper = _moved_target(moved, schema["$ref"]) if below[0][-1] == "$ref" else below[0]
        cause = ask(deeper) if deeper not in seen else None
        if cause is None or ask(path, below) == error:
            break
        path, error = deeper, cause
        seen.add(path)
    keys = [key for key in at(moved, path) if key in ASSERTIONS] if questions > 0 else []
    after = {key: ask(path, [(*path, key)]) for key in keys}
    blamed = [key for key in keys if after[key] is None] or [key for key in keys if after[key] != error]
    telling = [key for key in ("required", "minProperties", "maxProperties") if key in blamed]
    if telling or len(blamed) == 1:
        path = (*path, (telling or blamed)[0])
    return path, error


def _without(schema: Schema, step: Path) -> Schema:
    """The schema with a subschema made `true`, or with a whole keyword left out."""
    key = str(step[0])
    if len(step) == 1:
        return {name: value for name, value in schema.items() if name != key}
    held: Any = schema[key].copy()
    held[step[1]] = True
    return {**schema, key: held}


def _move_references(value: Any) -> Any:
    """A copy whose references lead below the keyword `x-root`, so that any part can be asked about alone."""
    if isinstance(value, dict):
        return {
            key: "#/x-root" + item[1:] if key == "$ref" and isinstance(item, str) else _move_references(item)
            for key, item in value.items()
        }
    return [_move_references(item) for item in value] if isinstance(value, list) else value


def _moved_target(moved: Schema, ref: str) -> Path:
    return Document({"x-root": moved}, "").target((), ref)[1:]


def _exists(root: Any, path: Path) -> bool:
    try:
        at(root, path)
    except (KeyError, IndexError, TypeError):
        return False
    return True


def _refusal(place: str, path: Path, cause: str) -> ApiError:
    if "oneOf" in cause:
        sentence = (
            "exactly-one can be enforced only when the branches exclude each other provably: different types, or "
            "a required property with another const in each. Use anyOf if an overlap does no harm."
        )
    elif "min/maxProperties" in cause:
        sentence = (
            "the number of members can be bounded only when every property listed in properties is required; "
            "remove minProperties and maxProperties, or require the properties."
        )
    elif "circular references" in cause:
        sentence = "a $ref that leads back to itself must have no other keywords beside it; remove them."
    elif "not disjoint" in cause:
        sentence = "patterns for names must exclude each other; write them so, or merge them."
    elif cause.startswith("Unsatisfiable") or "greater than" in cause or cause == "false":
        sentence = f"no answer can satisfy this ({_short(cause.removeprefix('Unsatisfiable schema: '))})."
    elif _is_about_size(cause):
        sentence = (
            "too large for the engine's grammar; use fewer optional properties, lower bounds (maxItems, minItems, "
            "lengths) or fewer combinations."
        )
    else:
        sentence = f"the engine's backend, guidance, cannot enforce this: {_short(cause)}."
    return refuse(place, path, sentence)


def _is_about_size(cause: str) -> bool:
    return any(word in cause for word in ("assertion failed", "too large", "limit", "fuel", "items; max is"))


def _largest(document: Document) -> Path:
    """Where the most is asked for: the longest list of properties, the highest count of items."""

    def size(path: Path) -> int:
        schema = document.schemas[path]
        if not isinstance(schema, dict):
            return 0
        counted = max(schema.get("maxItems", 0), schema.get("minItems", 0), schema.get("maxProperties", 0))
        return int(counted) + sum(len(schema.get(key, ())) for key in ("properties", "anyOf", "allOf", "enum"))

    return max(document.schemas, key=size)


def _short(text: str) -> str:
    return text if len(text) <= 160 else text[:160] + "…"
