"""Names that become paths: object keys, models and versions. Pure; nothing here touches the file system.

A name that passes stays below the folder that it is joined to: each of its components is a real name (not empty, not
`.` or `..`) without control characters. Names are not normalised: two keys that look the same are two files.
"""

import unicodedata

# The longest file name of Linux's file systems, in bytes (NAME_MAX).
_NAME_BYTES = 255
# Written into each published folder and beside it; a source cannot bring its own.
READY = "READY.json"
CURRENT = "current"


def relative_path(key: str, prefix: str) -> str | None:
    """The path below the model's folder for an object below `prefix` (which ends with `/` or is empty).

    `None` for a folder marker: a key that ends with `/`. Raises ValueError, a sentence that names the key.
    """
    path = key[len(prefix) :]
    if not path or path.endswith("/"):
        return None
    problem = _problem(path)
    if problem:
        raise ValueError(f"The object key {key!r} cannot become a file below the model's folder: {problem}.")
    if path == READY:
        raise ValueError(f"The object key {key!r} cannot be copied: {READY} is written by prefetch when it publishes.")
    return path


def check_paths(paths: list[str]) -> None:
    """Raises ValueError where one path would be both a file and a folder."""
    files = set(paths)
    for path in paths:
        parent = path
        while "/" in parent:
            parent = parent.rpartition("/")[0]
            if parent in files:
                raise ValueError(f"{parent!r} would be both a file and the folder of {path!r}; rename one object.")


def check_model(name: str) -> str:
    """A model's name: components separated by `/`. Raises ValueError with a sentence's end."""
    if problem := _problem(name) or _hidden(name):
        raise ValueError(f"{name!r} cannot be a model's name: {problem}")
    if CURRENT in name.split("/"):
        raise ValueError(f"{name!r} cannot be a model's name: '{CURRENT}' is the link to the version in use")
    return name


def check_version(name: str) -> str:
    """A version's name: one component. Raises ValueError with a sentence's end."""
    problem = _problem(name) or _hidden(name)
    if not problem and "/" in name:
        problem = "a version is one folder, without '/'"
    if not problem and name == CURRENT:
        problem = f"'{CURRENT}' is the link to the version in use"
    if problem:
        raise ValueError(f"{name!r} cannot be a version's name: {problem}")
    return name


def _problem(path: str) -> str | None:
    if not path:
        return "it is empty"
    for component in path.split("/"):
        if component == "..":
            return "a component is '..'"
        if component == ".":
            return "a component is '.'"
        if not component:
            return "it begins or ends with '/' or has '//'"
        if any(unicodedata.category(character) in ("Cc", "Cs") for character in component):
            return "it holds a control character"
        if len(component.encode()) > _NAME_BYTES:
            return f"a component is longer than {_NAME_BYTES} bytes"
    return None


def _hidden(name: str) -> str | None:
    # .staging and .prefetch are folders of our own.
    return "a component begins with '.'" if any(part.startswith(".") for part in name.split("/")) else None
