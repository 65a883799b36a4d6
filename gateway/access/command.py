"""`python -m gateway keys new|list|revoke`: the command line, and the file as text.

The file may be edited by hand, so what is not concerned stays as it is, comments included; each write replaces the file
as a whole. Exit code 2, and one sentence, for what cannot be done.
"""

import argparse
import contextlib
import fcntl
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from gateway.access.keys import Entry, check_name, checked, new_key, read_entries
from gateway.settings import Settings
from service_base.errors import SettingsError
from service_base.files import read_text
from service_base.flags import Parser, add_flags
from service_base.settings import read

_HEAD = "# Keys of the gateway, by name; python -m gateway keys makes, lists and revokes them.\n"


def main(arguments: Sequence[str]) -> int:
    try:
        given = parser().parse_args(arguments)
        options = vars(given)
        run: Callable[[Path, dict[str, Any]], None] = options.pop("run")
        own = {name: options.pop(name) for name in [*options] if name not in ("config", "keys_file")}
        settings = read(Settings, options)
        if settings.keys_file is None:
            raise SettingsError("Give --keys-file: the file that holds the keys.")
        run(settings.keys_file, own)
    except SettingsError as error:
        print(f"gateway keys: {error}", file=sys.stderr)
        return 2
    return 0


def parser() -> argparse.ArgumentParser:
    flags = Parser(
        prog="python -m gateway keys",
        description="Makes, lists and revokes the keys that clients send as `Authorization: Bearer …`. A running "
        "gateway follows the file within a second.",
        allow_abbrev=False,
    )
    commands = flags.add_subparsers(required=True, metavar="new|list|revoke")

    def command(name: str, help: str, run: Callable[[Path, dict[str, Any]], None]) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.", allow_abbrev=False)
        added.set_defaults(run=run)
        add_flags(added, Settings, ["keys_file"])
        return added

    new = command("new", "make a key and print it, once: the file keeps its hash alone", _new)
    new.add_argument("name", metavar="NAME", help="stands in logs and metrics")
    new.add_argument("--models", metavar="NAMES", help="what it may ask for, separated by commas; all unless given")
    new.add_argument("--requests-per-minute", type=int, metavar="COUNT", help="no limit unless given")
    new.add_argument(
        "--tokens-per-minute", type=int, metavar="COUNT", help="of prompts and answers; no limit unless given"
    )
    new.add_argument("--priority", type=int, metavar="NUMBER", help="smaller is served earlier; 0 unless given")
    new.add_argument("--admin", action="store_true", help="a key for the admin routes, and for these only")
    command("list", "list the keys: all but the secrets, which nobody has", _list)
    revoke = command("revoke", "take a key out of the file", _revoke)
    revoke.add_argument("name", metavar="NAME")
    return flags


def _new(file: Path, options: dict[str, Any]) -> None:
    name = options.pop("name")
    try:
        check_name(name)
    except ValueError as error:
        raise SettingsError(f"The name is wrong: {error}.") from None
    if options["models"] is not None:
        options["models"] = [model.strip() for model in options["models"].split(",")]
    with _locked(file):
        text, entries = (read_text(file), read_entries(file)) if file.exists() else (_HEAD, {})
        if name in entries:
            raise SettingsError(f"There is a key {name} in {file}; revoke it first, or take another name.")
        key, key_id, digest = new_key(entry.id for entry in entries.values())
        said = {option: value for option, value in options.items() if value is not None and value is not False}
        entry = {"id": key_id, "sha256": digest} | said
        added = yaml.safe_dump({name: entry}, sort_keys=False, allow_unicode=True)
        changed = f"{text}{'' if text.endswith(chr(10)) or not text else chr(10)}{added}"
        _write(file, changed, entries | checked(file, {name: entry}))
    print(key)
    print("It is shown this once; the file keeps its hash alone.", file=sys.stderr)


def _list(file: Path, _: dict[str, Any]) -> None:
    for name, entry in read_entries(file).items():
        said = entry.model_dump(exclude={"id", "sha256"}, exclude_defaults=True)
        shown = (f"{field}: {', '.join(value) if isinstance(value, list) else value}" for field, value in said.items())
        print("; ".join([f"{name} gw-{entry.id}-…", *shown]))


def _revoke(file: Path, options: dict[str, Any]) -> None:
    name = options["name"]
    with _locked(file):
        text, entries = read_text(file), read_entries(file)
        if name not in entries:
            raise SettingsError(f"There is no key {name!r} in {file}.")
        tree = yaml.compose(text, yaml.SafeLoader)
        assert isinstance(tree, yaml.MappingNode)
        (span,) = [(key.start_mark, value.end_mark) for key, value in tree.value if key.value == name]
        # A block ends where the next thing begins; one line of braces ends in its own line.
        last = span[1].line if span[1].column == 0 else span[1].line + 1
        lines = text.splitlines(keepends=True)
        kept = {other: entry for other, entry in entries.items() if other != name}
        _write(file, "".join(lines[: span[0].line] + _comments(lines[span[0].line : last]) + lines[last:]), kept)
    print(f"The key {name} is revoked.", file=sys.stderr)


def _comments(lines: list[str]) -> list[str]:
    """Those behind an entry, which belong to what follows it."""
    kept: list[str] = []
    for line in reversed(lines):
        if line.strip() and not line.startswith("#"):
            break
        kept.insert(0, line)
    return kept


def _write(file: Path, text: str, expected: dict[str, Entry]) -> None:
    """Replace the file, once the new text is seen to say what it should."""
    target = Path(os.path.realpath(file))
    try:
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o600
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        scratch = Path(name)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as written:
                written.write(text)
                written.flush()
                os.fchmod(written.fileno(), mode)
                os.fsync(written.fileno())
            if not _says(scratch, expected):
                raise SettingsError(f"{file} is written in a way that cannot be changed here; edit it by hand.")
            scratch.replace(target)
        except BaseException:
            scratch.unlink()
            raise
    except OSError as error:
        raise SettingsError(f"{file} cannot be written: {error.strerror}.") from None


def _says(file: Path, expected: dict[str, Entry]) -> bool:
    try:
        return read_entries(file) == expected
    except SettingsError:
        return False


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Two commands at once would lose one of their keys. The file itself is replaced, so its folder is locked."""
    try:
        folder = os.open(Path(os.path.realpath(file)).parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise SettingsError(f"The folder of {file} cannot be opened: {error.strerror}.") from None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)
