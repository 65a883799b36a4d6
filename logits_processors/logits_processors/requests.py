"""The constraint of one request: which of its other parameters it does not go with, and the machine for it.

Used twice: where a request is admitted, so that a wrong one is refused there, and in the engine.
"""

from functools import lru_cache
from typing import Any

from logits_processors import tokens
from logits_processors._native import Constraints, Machine
from logits_processors.settings import Settings

PLACE = "extra_args.constraints"

_NO_TOKENIZER = b"\0" * 32


def constraints_of(params: Any) -> Any:
    """What a request's sampling parameters hold for us, or None."""
    extra = params.extra_args
    return extra.get("constraints") if extra else None


class Requests:
    """The requests of one engine. `tokenizer` is transformers'; `ends` are the tokens that end any output."""

    def __init__(self, settings: Settings, tokenizer: Any, ends: set[int]) -> None:
        """Raises ValueError with one sentence if there are to be catalogues, but not with this tokenizer."""
        self._ends = ends
        folder, fingerprint = None, _NO_TOKENIZER
        if settings.catalogs is not None:
            if tokenizer is None:
                raise ValueError("additional_config.constraints.catalogs: needs an engine with a tokenizer.")
            try:
                backend = tokens.backend_of(tokenizer)
            except ValueError as error:
                raise ValueError(f"additional_config.constraints.catalogs: {error}.") from None
            folder, fingerprint = str(settings.catalogs), tokens.fingerprint(backend)
            self._plain = tokens.plain(backend)
        # The same few separators come again and again.
        self._constraints = Constraints(folder, fingerprint, lru_cache(1024)(self._encode))

    def check(self, params: Any) -> None:
        """Raises ValueError, whose text begins with the path of the wrong argument, if the request must be refused."""
        if (constraints := constraints_of(params)) is None:
            return
        if not self.ends_of(params):
            raise ValueError(f"{PLACE}: the model has no token that ends an output; give stop_token_ids.")
        self._constraints.make(constraints, self.ends_of(params))
        for name in _excluded("catalog" in constraints):
            if getattr(params, name, None):
                raise ValueError(f"{PLACE}: does not go with {name}: both together could leave no token to choose.")

    def machine(self, params: Any) -> Machine | None:
        """The machine of a request that was checked. Raises ValueError if that cannot be had any more."""
        if (constraints := constraints_of(params)) is None:
            return None
        return self._constraints.make(constraints, self.ends_of(params))

    def ends_of(self, params: Any) -> list[int]:
        """The tokens that end this request's output."""
        return sorted(self._ends.union(params.stop_token_ids or ()))

    def _encode(self, text: str) -> list[int]:
        (ids,) = tokens.encode(self._plain, [text])
        return ids


def _excluded(is_catalog: bool) -> tuple[str, ...]:
    """The sampling parameters that allow or demand tokens of their own."""
    always = ("structured_outputs", "allowed_token_ids")
    return (*always, "bad_words", "min_tokens", "ignore_eos", "thinking_token_budget") if is_catalog else always
