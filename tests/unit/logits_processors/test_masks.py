"""Masks of single rows, as a reader would work them out; and what a batch refuses."""

from pathlib import Path

import numpy as np
import pytest

from logits_processors._native import Batch, CatalogBuilder, Constraints, only_end

_FINGERPRINT = b"\0" * 32
_VOCABULARY = 40
_END, _COMMA = 39, 38


@pytest.fixture
def constraints(tmp_path: Path) -> Constraints:
    builder = CatalogBuilder(_VOCABULARY, _FINGERPRINT)
    builder.add([[1, 2, 3], [1, 2], [4]])
    builder.write(str(tmp_path / "few.catalog"))
    return Constraints(str(tmp_path), _FINGERPRINT, lambda _: [_COMMA])


def allowed(batch: Batch, row: int = 0) -> set[int]:
    batch.read()
    batch.finish()
    bits = np.unpackbits(np.frombuffer(batch.mask(row), np.uint8), bitorder="little")
    return {int(token) for token in bits.nonzero()[0]}


def test_one_entry(constraints: Constraints) -> None:
    batch, output = Batch(_VOCABULARY, 1, 1), list[int]()
    batch.put(0, constraints.make({"catalog": {"name": "few"}}, [_END]), output)
    assert allowed(batch) == {1, 4}
    output.append(1)
    assert allowed(batch) == {2}
    output.append(2)
    assert allowed(batch) == {3, _END}
    output.append(3)
    assert allowed(batch) == {_END}
    output.append(_END)
    assert allowed(batch) == {_END}
    assert batch.dead_ends == 0


def test_a_list_never_begins_what_it_could_not_end(constraints: Constraints) -> None:
    batch, output = Batch(_VOCABULARY, 1, 1), [4, _COMMA, 1, 2]
    wanted = {"catalog": {"name": "few", "items": 3, "separator": ","}}
    batch.put(0, constraints.make(wanted, [_END]), output)
    assert allowed(batch) == {3, _COMMA}
    output += [_COMMA]
    # 4 is used, and below 1 2 there is still 1 2 3.
    assert allowed(batch) == {1}
    output += [1, 2]
    assert allowed(batch) == {3}
    output += [3]
    assert allowed(batch) == {_END}


def test_where_nothing_is_allowed_the_end_is_and_it_is_counted(constraints: Constraints) -> None:
    batch = Batch(_VOCABULARY, 1, 1)
    batch.put(0, constraints.make({"catalog": {"name": "few"}}, [_END]), [7])
    assert allowed(batch) == {_END}
    assert batch.dead_ends == 1


def test_without_an_end_everything_is_allowed_there() -> None:
    batch = Batch(_VOCABULARY, 2, 1)
    batch.put(0, only_end([]), [])
    batch.put(1, only_end([_END]), [])
    assert allowed(batch) == set(range(_VOCABULARY))
    assert allowed(batch, 1) == {_END}


def test_ngrams() -> None:
    batch, output = Batch(_VOCABULARY, 1, 1), [1, 2, 3, 1]
    constraints = Constraints(None, _FINGERPRINT, lambda _: [])
    batch.put(0, constraints.make({"no_repeat_ngram": {"size": 2}}, [_END]), output)
    assert allowed(batch) == set(range(_VOCABULARY)) - {2}
    output[:] = [1, 1]
    assert allowed(batch) == set(range(_VOCABULARY)) - {1}


def test_a_placeholder_is_no_token_yet() -> None:
    batch, output = Batch(_VOCABULARY, 1, 1), [1, -1]
    constraints = Constraints(None, _FINGERPRINT, lambda _: [])
    batch.put(0, constraints.make({"no_repeat_ngram": {"size": 1}}, [_END]), output)
    assert not batch.read()
    output[1] = 5
    assert batch.read()
    assert allowed(batch) == set(range(_VOCABULARY)) - {1, 5}


def test_what_a_batch_refuses() -> None:
    batch = Batch(_VOCABULARY, 1, 1)
    batch.put(0, only_end([_END]), [])
    with pytest.raises(ValueError, match="more constrained rows than the batch has room for"):
        batch.put(1, only_end([_END]), [])
    logits = np.zeros((2, _VOCABULARY), np.float32)
    with pytest.raises(ValueError, match="another vocabulary"):
        batch.apply(logits.ctypes.data, _VOCABULARY, 2, _VOCABULARY - 1, "float32")
    with pytest.raises(ValueError, match="fewer rows"):
        batch.apply(logits.ctypes.data, _VOCABULARY, 0, _VOCABULARY, "float32")
    with pytest.raises(ValueError, match="must be float32, bfloat16 or float16"):
        batch.apply(logits.ctypes.data, _VOCABULARY, 2, _VOCABULARY, "int32")
    assert not logits.any()
