"""What an announcement says, whoever sent it: typed once, at the edge. Pure."""

import hashlib
import re
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from prefetch.names import check_model, check_version, relative_path
from prefetch.source import Source

_SHA256 = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)


def _is_source(url: str) -> str:
    return str(Source.parse(url))


def _is_sha256(digest: str) -> str:
    if not _SHA256.fullmatch(digest):
        raise ValueError(f"{digest!r} is not a SHA-256 digest of 64 hexadecimal digits")
    return digest.lower()


class ManifestFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    size: int | None = Field(None, ge=0, description="bytes")
    sha256: Annotated[str, AfterValidator(_is_sha256)] | None = Field(None, description="64 hexadecimal digits")


class Manifest(BaseModel):
    """The files that the source must hold, by their path below it. A file that is not named is copied too."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    files: dict[str, ManifestFile]

    @field_validator("files")
    @classmethod
    def _are_paths(cls, files: dict[str, ManifestFile]) -> dict[str, ManifestFile]:
        for path in files:
            if relative_path(path, "") is None:
                raise ValueError(f"{path!r} is not a file's path")
        return files


class Announcement(BaseModel):
    """A version of a model and where it is. Also the body of our own webhook."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    model: Annotated[str, AfterValidator(check_model)] = Field(description="the model's name, its folder")
    version: Annotated[str, AfterValidator(check_version)] = Field(description="its version, the folder below")
    source: Annotated[str, AfterValidator(_is_source)] = Field(description="s3://bucket/prefix/")
    manifest: Manifest | None = Field(None, description="sizes and SHA-256 digests that the files must have")
    manifest_key: str | None = Field(None, description="key of such a manifest in the source's bucket")
    priority: int = Field(0, ge=-1000, le=1000, description="the higher is copied first")
    pin: bool = Field(False, description="never removed to make room")

    @model_validator(mode="after")
    def _manifest_is_in_the_source(self) -> Self:
        # What may be read is what the source may be.
        if self.manifest_key and not self.manifest_key.startswith(self.where.prefix):
            raise ValueError(f"'manifest_key' {self.manifest_key!r} is not below the source")
        return self

    def content_id(self) -> str:
        """The same for two announcements of the same thing, whatever their priority."""
        same = self.model_dump_json(include={"model", "version", "source", "manifest", "manifest_key"})
        return hashlib.sha256(same.encode()).hexdigest()

    @property
    def where(self) -> Source:
        return Source.parse(self.source)
