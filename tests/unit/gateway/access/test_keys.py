"""The file of keys, and how a key is found."""

import base64
import hashlib
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.access.keys import Entry, Key, Keys, checked, new_key, read_entries
from gateway.desk.rates import Limits
from service_base.errors import SettingsError

FILE = Path("keys.yaml")


def entry_of(key: str, **rest: object) -> dict[str, object]:
    return {"id": key[3:11], "sha256": hashlib.sha256(key.encode()).hexdigest(), **rest}


def test_a_key_holds_its_id_and_256_random_bits() -> None:
    key, key_id, digest = new_key([])
    assert re.fullmatch(r"gw-[0-9a-f]{8}-[A-Za-z0-9_-]{43}", key)
    assert key[3:11] == key_id
    assert len(base64.urlsafe_b64decode(key[12:] + "=")) == 32
    assert digest == hashlib.sha256(key.encode()).hexdigest()
    assert new_key([])[0][12:] != key[12:]


def test_a_key_is_found_with_all_that_it_may() -> None:
    plain, limited, admin = (new_key([])[0] for _ in range(3))
    keys = Keys(
        checked(
            FILE,
            {
                "plain": entry_of(plain),
                "limited": entry_of(
                    limited, models=["a", "b"], requests_per_minute=1, tokens_per_minute=2, priority=-3
                ),
                "ops@example.com": entry_of(admin, admin=True),
            },
        )
    )
    assert keys.find(plain.encode()) == Key("plain")
    assert keys.find(limited.encode()) == Key("limited", Limits(1, 2), -3, frozenset("ab"))
    assert keys.find(admin.encode()) == Key("ops@example.com", admin=True)
    assert len(keys) == 3


def test_which_models_a_key_may_use() -> None:
    assert Key("a").may_use(["x"])
    assert Key("a", models=frozenset({"x", "z"})).may_use(["y", "x"])
    assert not Key("a", models=frozenset({"x"})).may_use(["y"])


@given(st.data())
def test_nothing_but_the_key_itself_is_found(data: st.DataObject) -> None:
    key, key_id, _ = new_key([])
    other, _, _ = new_key([key_id])
    keys = Keys(checked(FILE, {"a": entry_of(key), "b": entry_of(other)}))
    place = data.draw(st.integers(0, len(key) - 1))
    changed = data.draw(st.characters(max_codepoint=126, min_codepoint=32).filter(lambda c: c != key[place]))
    for wrong in (
        key[:place] + changed + key[place + 1 :],
        key[:place],
        key + changed,
        key[:12] + other[12:],
        key.upper(),
        f" {key}",
        f"{key}\n",
        hashlib.sha256(key.encode()).hexdigest(),
    ):
        assert keys.find(wrong.encode()) is None
    assert keys.find(data.draw(st.binary())) is None


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"id": "0", "sha256": "0" * 64}, "The key a.id in keys.yaml is wrong: it must be 8 hexadecimal digits"),
        ({"id": "0" * 8, "sha256": "A" * 64}, "The key a.sha256 in keys.yaml is wrong"),
        ({"id": "0" * 8}, "The key a.sha256 in keys.yaml is wrong: it is required"),
        ({"id": "0" * 8, "sha256": "0" * 64, "rpm": 1}, "The key a.rpm in keys.yaml is wrong: it does not exist"),
        ({"id": "0" * 8, "sha256": "0" * 64, "admin": "yes"}, "The key a.admin in keys.yaml is wrong"),
        ({"id": "0" * 8, "sha256": "0" * 64, "models": []}, "The key a.models in keys.yaml is wrong"),
        ({"id": "0" * 8, "sha256": "0" * 64, "requests_per_minute": 0}, "The key a.requests_per_minute in keys.yaml"),
        ({"id": "0" * 8, "sha256": "0" * 64, "priority": 2**31}, "The key a.priority in keys.yaml is wrong"),
        (["x"], "The key a in keys.yaml is wrong"),
        (None, "The key a in keys.yaml is wrong"),
    ],
)
def test_a_wrong_entry_is_one_sentence(entry: object, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        checked(FILE, {"a": entry})
    assert str(caught.value).startswith(message)
    assert str(caught.value).endswith(".")


def test_two_keys_with_one_id_are_refused() -> None:
    entry = entry_of(new_key([])[0])
    with pytest.raises(SettingsError, match=r"The keys a and b in keys\.yaml have the same id"):
        checked(FILE, {"a": entry, "b": entry})


@pytest.mark.parametrize("name", ["", " a", "a b", "ä", "a" * 65, "a\nb", 'a"b'])
def test_a_name_that_metrics_and_logs_could_not_bear_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="The name of key 1"):
        checked(FILE, {name: entry_of(new_key([])[0])})


@pytest.mark.parametrize("wrong", ["name", "id", "sha256", "models", "priority", "field", "text", "list"])
def test_a_key_in_the_wrong_place_of_the_file_is_not_shown(wrong: str, tmp_path: Path) -> None:
    key, _, _ = new_key([])
    entry = entry_of(key)
    text = {
        "name": f"{key}: {entry}",
        "id": f"a: {entry | {'id': key}}",
        "sha256": f"a: {entry | {'sha256': key}}",
        "models": f"a: {entry | {'models': key}}",
        "priority": f"a: {entry | {'priority': key}}",
        "field": f"a: {entry} {key}",
        "text": key,
        "list": f"- {key}",
    }[wrong]
    file = tmp_path / "keys.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        read_entries(file)
    assert key[12:] not in str(caught.value)


def test_an_empty_file_has_no_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text("# none yet\n")
    assert read_entries(file) == {}
    assert not len(Keys({}))


def test_entries_are_compared_by_what_they_say() -> None:
    entry = entry_of(new_key([])[0])
    assert Entry.model_validate(entry) == Entry.model_validate({**entry, "admin": False})
