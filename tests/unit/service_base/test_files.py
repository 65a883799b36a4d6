"""Whether a file that is written later can be: told before anything is served."""

import tempfile
from functools import partial
from pathlib import Path

import pytest

from service_base.files import check_written_later, unwritable
from tests.support.permissions import as_somebody
from tests.support.refusals import refusal


def test_what_can_be_written_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "state.json"
    check_written_later("state_file", file)
    assert list(tmp_path.iterdir()) == []
    file.write_text("{}")
    check_written_later("state_file", file)
    assert file.read_text() == "{}"
    monkeypatch.chdir(tmp_path)
    check_written_later("state_file", Path("state.json"))


def test_a_folder_that_is_missing_or_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("absent", "absent/too", "file", "link"):
        folder = tmp_path / name
        assert refusal(partial(check_written_later, "state_file", folder / "state.json")) == (
            f"The setting 'state_file' is wrong: there is no folder {folder}; make it, or give another file."
        )
        assert not folder.is_dir()


def test_a_folder_that_others_write() -> None:
    # pytest's own folder is closed to all but its owner.
    with tempfile.TemporaryDirectory() as name, as_somebody(Path(name)):
        assert unwritable(Path(name)) == (
            f"the folder {name} cannot be written: Permission denied; let this user write there"
        )


def test_a_folder_in_which_nobody_makes_files() -> None:
    why = unwritable(Path("/proc"))
    assert why is not None
    assert why.startswith("the folder /proc cannot be written: ")
