"""How requests are shared out among versions."""

from collections import Counter

from gateway.routing.weights import Weights


def test_each_version_gets_its_part_of_any_few_requests() -> None:
    weights = Weights({"v1": 9, "v2": 1})
    picks = [weights.pick({"v1", "v2"}) for _ in range(50)]
    assert Counter(picks) == {"v1": 45, "v2": 5}
    assert all(picks[i : i + 10].count("v2") == 1 for i in range(0, 50, 10))


def test_a_version_that_cannot_take_any_leaves_its_part_to_the_others_and_zero_is_nothing() -> None:
    weights = Weights({"v1": 1, "v2": 1, "old": 0})
    assert {weights.pick({"v1", "old"}) for _ in range(4)} == {"v1"}
    assert weights.pick({"old"}) is None


def test_a_roll_back_changes_places() -> None:
    weights = Weights({"blue": 1, "green": 0})
    assert not weights.roll_back()
    weights.replace({"blue": 0, "green": 1})
    assert weights.pick({"blue", "green"}) == "green"
    assert weights.roll_back()
    assert weights.pick({"blue", "green"}) == "blue"
    assert weights.roll_back()
    assert weights.current == {"blue": 0, "green": 1}
