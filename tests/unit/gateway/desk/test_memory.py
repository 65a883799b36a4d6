"""What an operator has changed outlives the process."""

import json
from pathlib import Path

import pytest

from gateway.desk.desk import Desk
from gateway.desk.memory import recall, remember
from service_base.errors import SettingsError


def desk(instances: str = "ab") -> Desk:
    made = Desk(10, 10, 60)
    made.set_models({"v1", "v2"}, {"m": {"v1": 1, "v2": 0}})
    made.set_urls([f"http://{name}" for name in instances])
    return made


def test_drains_and_weights_are_as_they_were(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    before, after = desk(), desk()
    recall(before, file)
    before.operated = lambda: remember(before, file)
    before.call("drain", "a")
    before.call("set_weights", "m", {"v1": 0, "v2": 1})
    recall(after, file)
    assert [one["draining"] for one in after.instances()] == [True, False]
    assert after.call("weights_of", "m") == before.call("weights_of", "m")
    assert after.call("roll_back", "m")["weights"] == {"v1": 1, "v2": 0}
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def test_what_no_longer_fits_the_settings_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "state.json"
    content = {"drained": ["gone"], "weights": {"m": {"weights": {"v3": 1}, "previous": None}}}
    file.write_text(json.dumps(content))
    fresh = desk()
    recall(fresh, file)
    assert not any(one["draining"] for one in fresh.instances())
    assert fresh.call("weights_of", "m")["weights"] == {"v1": 1, "v2": 0}
    assert "gone" in caplog.text
    assert "do not fit the settings" in caplog.text


@pytest.mark.parametrize("text", ["{", "[]", '{"drained": 1}', '{"weights": {"m": {"weights": {"v1": -1}}}}'])
def test_a_file_that_is_no_state_ends_the_start_with_its_name(text: str, tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    file.write_text(text)
    with pytest.raises(SettingsError, match=r"state\.json"):
        recall(desk(), file)


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    remember(desk(), tmp_path / "no-folder" / "state.json")
    assert "cannot be written" in caplog.text
