"""What is loaded again, and when. On a real server: tests/real/test_entrypoint.py."""

from pathlib import Path

from triton_keeper import Pauses, entries, missing


def test_what_is_neither_ready_nor_on_the_way_is_missing() -> None:
    states = {"ready": "READY", "comes": "LOADING", "goes": "UNLOADING", "dead": "UNAVAILABLE", "other": "UNAVAILABLE"}
    assert missing({"ready", "comes", "goes", "dead", "removed"}, states) == ["dead"]


def test_pauses_grow_and_end_with_success() -> None:
    pauses = Pauses()
    assert pauses.due("m", 0)
    assert [pauses.failed("m", 0) for _ in range(7)] == [2, 4, 8, 16, 32, 60, 60]
    assert not pauses.due("m", 59)
    assert pauses.due("other", 0)
    assert pauses.due("m", 60)
    pauses.ready("m")
    assert pauses.failed("m", 100) == 2


def test_the_entries_of_a_repository(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.pbtxt").touch()
    (tmp_path / "no model").mkdir()
    assert entries(tmp_path) == {"a"}
    assert entries(tmp_path / "absent") == set()
