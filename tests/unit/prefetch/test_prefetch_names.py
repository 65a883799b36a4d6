"""Object keys, models and versions that become paths."""

import os.path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefetch.announcement import Announcement
from prefetch.errors import JobError
from prefetch.names import check_model, check_paths, check_version, relative_path
from prefetch.plan import Listed, make_plan
from prefetch.source import Source, allowing


@pytest.mark.parametrize(
    "path",
    [
        "../x",
        "a/../../x",
        "..",
        ".",
        "a/./b",
        "/etc/passwd",
        "a//b",
        "a\x00b",
        "a\nb",
        "a\x7fb",
        "a\x85b",
        "x" * 256,
        "é" * 128,
    ],
)
def test_a_key_that_is_no_path_below_the_folder(path: str) -> None:
    with pytest.raises(ValueError, match="cannot become a file") as caught:
        relative_path(f"p/1/{path}", "p/1/")
    assert repr(f"p/1/{path}") in str(caught.value)


@pytest.mark.parametrize("path", ["..hidden", "a..b", "...", " ", "a\\b", "é" * 127, "con", "~", "$(x)", "a/b/c"])
def test_an_honest_key(path: str) -> None:
    assert relative_path(f"p/1/{path}", "p/1/") == path


@pytest.mark.parametrize("key", ["p/1/", "p/1/a/", "p/1/../"])
def test_folder_markers_are_no_files(key: str) -> None:
    assert relative_path(key, "p/1/") is None


def test_ready_json_is_ours() -> None:
    with pytest.raises(ValueError, match=r"READY\.json is written by prefetch"):
        relative_path("p/READY.json", "p/")
    assert relative_path("p/sub/READY.json", "p/") == "sub/READY.json"


@given(st.text())
def test_whatever_passes_stays_in_the_folder(path: str) -> None:
    try:
        found = relative_path(path, "")
    except ValueError:
        return
    if found is not None:
        assert os.path.normpath(os.path.join("/f", found)) == f"/f/{found}"


def test_a_path_that_would_be_file_and_folder() -> None:
    check_paths(["a", "b/a", "b/c"])
    with pytest.raises(ValueError, match="both a file and the folder of 'a/b/c'"):
        check_paths(["a/b/c", "a"])


@pytest.mark.parametrize("name", ["", "../x", "a/../b", "/a", "a/", ".staging", "a/.b", "current", "a/current", "a\nb"])
def test_what_cannot_be_a_model(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be a model's name"):
        check_model(name)
    with pytest.raises(ValueError, match="cannot be a version's name"):
        check_version(name)


def test_names_that_can_be() -> None:
    assert check_model("acme/tiny-chat") == "acme/tiny-chat"
    assert check_version("2025-11-29 v3+x") == "2025-11-29 v3+x"
    with pytest.raises(ValueError, match="one folder, without '/'"):
        check_version("a/b")


@pytest.mark.parametrize(
    "url",
    [
        "http://b/x",
        "s3:/b/x",
        "s3://",
        "s3:///x",
        "s3://b",
        "s3://-b-/x",
        "s3://bkt/a//b",
        "s3://bkt/a/../b",
        "s3://bkt/a\nb",
    ],
)
def test_what_is_no_source(url: str) -> None:
    with pytest.raises(ValueError, match=r"s3://|bucket|component|character"):
        Source.parse(url)


def test_the_allow_list_compares_folders() -> None:
    allowed = [Source.parse("s3://bkt/team-a"), Source.parse("s3://bkt/team-a/deep/"), Source.parse("s3://all/")]
    assert str(Source.parse("s3://bkt/team-a")) == "s3://bkt/team-a/"
    assert allowing(Source.parse("s3://bkt/team-a/deep/x/"), allowed) == allowed[1]
    assert allowing(Source.parse("s3://bkt/team-a/"), allowed) == allowed[0]
    assert allowing(Source.parse("s3://all/x"), allowed) == allowed[2]
    assert allowing(Source.parse("s3://bkt/team-ab/"), allowed) is None
    assert allowing(Source.parse("s3://bkt2/team-a/"), allowed) is None


def test_a_plan_is_refused_before_a_byte() -> None:
    source = Source.parse("s3://bkt/m/1/")
    for storage_class in ("GLACIER", "DEEP_ARCHIVE"):
        with pytest.raises(JobError, match=r"w is archived .*restore"):
            make_plan(source, [Listed("m/1/w", 1, '"e"', storage_class)], None, ())
    assert make_plan(source, [Listed("m/1/w", 1, '"e"', "GLACIER_IR")], None, ()).bytes == 1
    with pytest.raises(JobError, match="There is no object below"):
        make_plan(source, [Listed("m/1/", 0, '"e"'), Listed("m/1/_READY", 1, '"e"')], None, ("_READY",))
    plan = make_plan(source, [Listed("m/1/b", 9, ""), Listed("m/1/a", 9, ""), Listed("m/1/c", 1, "")], None, ())
    assert [file.path for file in plan.files] == ["c", "a", "b"]


def test_a_manifest_lies_below_its_source() -> None:
    wanted = {"model": "m", "version": "1", "source": "s3://bkt/a/"}
    assert Announcement.model_validate(wanted | {"manifest_key": "a/manifest.json"})
    with pytest.raises(ValueError, match=r"'manifest_key' 'b/secret\.json' is not below the source"):
        Announcement.model_validate(wanted | {"manifest_key": "b/secret.json"})
