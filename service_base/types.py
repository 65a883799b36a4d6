"""The types of settings that several services have, each with its checks and with how its flag is written.

Checks raise `ValueError` with a sentence's end.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_settings import NoDecode

from service_base import strict_json
from service_base.addresses import check_base_url, check_host
from service_base.errors import shown
from service_base.flags import Flag

_Type = TypeVar("_Type")


def from_json(value: Any) -> Any:
    """What JSON text says; other values, such as a file's, as they are."""
    if not isinstance(value, str):
        return value
    try:
        return strict_json.value_of(value)
    except ValueError as error:
        raise ValueError(f"it is not valid JSON: {error}") from None


def _items(value: Any) -> Any:
    # One variable holds several values. An empty one among them might be a token that lets everybody in.
    if not isinstance(value, str):
        return value
    items = [item.strip() for item in value.split(",")] if value.strip() else []
    if not all(items):
        raise ValueError("the comma-separated list has an empty item; remove the comma")
    return items


def _is_path(value: Any) -> Any:
    # An empty path would be the current folder.
    if not isinstance(value, str | Path) or not str(value).strip() or "\0" in str(value):
        raise ValueError(f"it must be the path of a file or folder (got {shown(value)})")
    return value


Host = Annotated[str, AfterValidator(check_host), Flag("ADDRESS")]
Port = Annotated[int, Field(ge=0, le=65535), Flag("PORT")]
BaseUrl = Annotated[str, AfterValidator(check_base_url), Flag("URL")]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False), Flag("SECONDS")]
DrainSeconds = Annotated[int, Field(ge=0), Flag("SECONDS")]
Count = Annotated[int, Field(ge=1), Flag("COUNT")]
Bytes = Annotated[int, Flag("BYTES")]
LogLevel = Literal["debug", "info", "warning", "error"]
# Strict alone, only a `Path` object would do; files and JSON hold text.
FilePath = Annotated[Path, Field(strict=False), BeforeValidator(_is_path), Flag("FILE")]
FolderPath = Annotated[Path, Field(strict=False), BeforeValidator(_is_path), Flag("DIR")]
Listed = Annotated[list[_Type], NoDecode, BeforeValidator(_items)]
"""A flag that may be repeated, a comma-separated variable, a list in the file."""
FromJson = Annotated[_Type, NoDecode, BeforeValidator(from_json), Flag("JSON")]
