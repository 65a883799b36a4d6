"""The native batch against the slow reference, under everything that vLLM's persistent batch does: ten thousand random
sequences of steps. Each step, every logit of every row is what it must be."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logits_processors._native import Batch, CatalogBuilder, Constraints, Machine
from logits_processors.rows import update_rows
from tests.unit.logits_processors.reference import CatalogReference, NgramReference, Reference, Tokens
from tests.unit.logits_processors.simulator import PersistentBatch, Request

_FINGERPRINT = b"f" * 32
_ENDS = [0, 33]
_TOKENS = 90
"""Of the tokenizer: more than two words of a mask hold."""
_CATALOGS = 40
_ROWS = 5

# How minus infinity looks, and the numpy type of the same size that has no opinion about values.
_ELEMENTS = {
    "float32": (np.uint32, 0xFF800000),
    "bfloat16": (np.uint16, 0xFF80),
    "float16": (np.uint16, 0xFC00),
}

Wanted = tuple[dict[str, Any], Reference]


class World:
    """Catalogues, and requests that can be made with them."""

    def __init__(self, folder: Path) -> None:
        choose = random.Random(7)
        self.catalogs = [self._make_catalog(folder, f"c{number}", choose) for number in range(_CATALOGS)]
        self.constraints = Constraints(str(folder), _FINGERPRINT, lambda text: [ord(letter) - 97 for letter in text])

    @staticmethod
    def _make_catalog(folder: Path, name: str, choose: random.Random) -> frozenset[Tokens]:
        """Few entries of few different tokens, so that they share their beginnings and lists use branches up; some with
        many different ones below the root or its children."""
        tokens = choose.sample(range(1, 20), choose.randint(2, 8))
        entries = {
            tuple(choose.choices(tokens, k=choose.choice([1, 1, 2, 3, 6])))
            for _ in range(choose.choice([1, 3, 12, 25]))
        }
        if choose.random() < 0.2:
            start: Tokens = tuple(tokens[: choose.choice([0, 1, 1, 2])])
            entries |= {(*start, token) for token in choose.sample([*range(1, 20), *range(34, _TOKENS)], 45)}
        builder = CatalogBuilder(_TOKENS, _FINGERPRINT)
        builder.add([list(entry) for entry in entries])
        assert builder.write(str(folder / f"{name}.catalog")) == len(entries)
        return frozenset(entries)

    def request(self, choose: random.Random, vocabulary: int) -> Wanted | None:
        kind = choose.choice(["none", "entry", "list", "list", "ngram"])
        if kind == "none":
            return None
        if kind == "ngram":
            size = choose.randint(1, 4)
            return {"no_repeat_ngram": {"size": size}}, NgramReference(size, vocabulary)
        number = choose.randrange(_CATALOGS)
        entries = self.catalogs[number]
        items = 1 if kind == "entry" else choose.randint(1, min(len(entries), 6))
        arguments: dict[str, Any] = {"name": f"c{number}"}
        # Tokens 20 to 24, which no entry has.
        separator: Tokens = (20, 20, 21)[: choose.randint(1, 3)]
        if items > 1:
            arguments |= {"items": items, "separator": "".join(chr(97 + token) for token in separator)}
        return {"catalog": arguments}, CatalogReference(entries, items, separator, frozenset(_ENDS))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("catalogs"))


class Simulation:
    """One engine with one batch, step by step."""

    def __init__(self, world: World, choose: random.Random, vocabulary: int, threads: int, is_async: bool) -> None:
        self._world = world
        self._choose = choose
        self._vocabulary = vocabulary
        self._is_async = is_async
        self._engine = PersistentBatch(choose, _ROWS)
        self._batch = Batch(vocabulary, _ROWS, threads)
        self._element = choose.choice(list(_ELEMENTS))
        self._next_tokens: dict[int, int] = {}

    def step(self) -> None:
        self._shrink_some()
        update = self._engine.change(self._leaving(), self._arriving())
        if update is not None:
            update_rows(self._batch, update, self._machine)
        if self._batch.read():
            self._batch.start()
        for request in self._engine.rows:
            self._fill_in(request)
        for row, allowed in enumerate(self._apply()):
            request = self._engine.rows[row]
            if request.prefill_steps > 0:
                # The token is thrown away, and nothing tells the processor.
                request.prefill_steps -= 1
            else:
                self._append(request, self._sample(allowed))

    def _machine(self, wanted: Wanted | None) -> Machine | None:
        return None if wanted is None else self._world.constraints.make(wanted[0], _ENDS)

    def _leaving(self) -> list[Request]:
        leaving = [request for request in self._engine.rows if self._choose.random() < 0.15]
        for request in leaving:
            if self._choose.random() < 0.6:
                self._preempt(request)
        return leaving

    def _preempt(self, request: Request) -> None:
        """It waits, and its prompt and output will be computed again."""
        self._fill_in(request)
        output = list(request.output) if self._is_async else request.output
        self._engine.waiting.append(Request(request.params, self._choose.randint(0, 2), output))

    def _arriving(self) -> list[Request]:
        if self._choose.random() < 0.5:
            request = Request(self._world.request(self._choose, self._vocabulary), self._choose.randint(0, 2))
            self._engine.waiting.append(request)
        arriving, self._engine.waiting = self._engine.waiting[:2], self._engine.waiting[2:]
        return arriving

    def _shrink_some(self) -> None:
        for request in self._engine.rows:
            if request.output and self._choose.random() < 0.05:
                self._fill_in(request)
                del request.output[self._choose.randrange(len(request.output)) :]

    def _append(self, request: Request, token: int) -> None:
        request.output.append(-1 if self._is_async else token)
        if self._is_async:
            self._next_tokens[id(request.output)] = token

    def _fill_in(self, request: Request) -> None:
        if request.output and request.output[-1] == -1:
            request.output[-1] = self._next_tokens.pop(id(request.output))

    def _sample(self, allowed: set[int]) -> int:
        """Mostly a token that may come; sometimes one that may not, which an engine can have from elsewhere."""
        if self._choose.random() < 0.03:
            return self._choose.randrange(self._vocabulary)
        return self._choose.choice(sorted(allowed))

    def _apply(self) -> list[set[int]]:
        """Masks random logits, and compares every one; what each row allows."""
        columns, rows = self._vocabulary, len(self._engine.rows)
        unsigned, minus_infinity = _ELEMENTS[self._element]
        # Some memory between the rows, which must stay as it is too.
        before = np.arange(rows * (columns + 3), dtype=unsigned).reshape(rows, columns + 3)
        after = before.copy()
        self._batch.read()
        self._batch.apply(after.ctypes.data, columns + 3, rows, columns, self._element)
        expected = before
        allowed = []
        for row, request in enumerate(self._engine.rows):
            tokens = self._allowed(request)
            allowed.append(tokens)
            forbidden = [token for token in range(columns) if token not in tokens]
            expected[row, forbidden] = minus_infinity
        assert (after == expected).all(), [request.params for request in self._engine.rows]
        return allowed

    def _allowed(self, request: Request) -> set[int]:
        everything = set(range(self._vocabulary))
        if request.params is None:
            return everything
        reference: Reference = request.params[1]
        return reference.allowed(request.output) & everything or set(_ENDS)


@pytest.mark.timeout(600)
@settings(max_examples=10_000)
@given(
    seed=st.integers(0, 2**32),
    steps=st.integers(1, 16),
    vocabulary=st.sampled_from([34, 64, 65, 90, 96, 130]),
    threads=st.sampled_from([1, 1, 2, 3]),
    is_async=st.booleans(),
)
def test_ten_thousand_sequences(
    world: World, seed: int, steps: int, vocabulary: int, threads: int, is_async: bool
) -> None:
    simulation = Simulation(world, random.Random(seed), vocabulary, threads, is_async)
    for _ in range(steps):
        simulation.step()
