"""What counts as a difference between two answers, and where it is said to be."""

from typing import Any

import pytest

from bench.parity.compare import ABSENT, Difference, differences

SAME: list[tuple[Any, Any]] = [
    ({"a": 1, "b": [1, None, {"c": "x"}]}, {"b": [1, None, {"c": "x"}], "a": 1}),
    (-1.5, -1.5009),
    (-2, -2.0005),
    ([], []),
]
DIFFERENT: list[tuple[Any, Any, list[Difference]]] = [
    ({"a": {"b": 1}}, {"a": {"b": 2}}, [Difference("a.b", 1, 2)]),
    ({"a": 1}, {}, [Difference("a", 1, ABSENT)]),
    ({}, {"a": None}, [Difference("a", ABSENT, None)]),
    ({"a": [{"x": 1}, {"x": 2}]}, {"a": [{"x": 1}, {"x": 3}]}, [Difference("a[1].x", 2, 3)]),
    ({"a": [1]}, {"a": [1, 2]}, [Difference("a", [1], [1, 2])]),
    ({"a": -1.5}, {"a": -1.502}, [Difference("a", -1.5, -1.502)]),
    ({"a": True}, {"a": 1}, [Difference("a", True, 1)]),
    ({"a": 1}, {"a": "1"}, [Difference("a", 1, "1")]),
    ({"a": [None]}, {"a": [0.0]}, [Difference("a[0]", None, 0.0)]),
    ({"a": 1, "b": 1}, {"a": 2, "b": 2}, [Difference("a", 1, 2), Difference("b", 1, 2)]),
]


@pytest.mark.parametrize(("a", "b"), SAME)
def test_the_same(a: Any, b: Any) -> None:
    assert list(differences(a, b)) == []


@pytest.mark.parametrize(("a", "b", "found"), DIFFERENT)
def test_every_leaf_that_differs_is_named(a: Any, b: Any, found: list[Difference]) -> None:
    assert list(differences(a, b)) == found
