"""Reading from S3: list, head, ranged GETs pinned with `If-Match`. What goes wrong is sorted here, once, into what a
job does about it.

botocore's client alone: where boto3's transfer manager takes its CRT client, a custom endpoint is silently ignored.
"""

import http.client
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import IO, Any

import botocore.exceptions
import botocore.loaders
import botocore.session
import orjson
import urllib3.exceptions
from botocore.config import Config
from botocore.utils import get_environ_proxies

from prefetch.checksums import Expected, expected
from prefetch.errors import JobError
from prefetch.plain_http import Connections
from prefetch.plan import Listed
from prefetch.source import Source


class Kind(Enum):
    """What becomes of a request that failed."""

    AGAIN = "again"  # after a pause
    CREDENTIALS = "credentials"  # again with credentials read anew
    DENIED = "denied"  # once more: a policy that was just changed takes a moment
    REPLACED = "replaced"  # the file starts again
    GONE = "gone"
    ARCHIVED = "archived"
    REFUSED = "refused"


class S3Error(Exception):
    """A failed request: `reason` is a label of few values, the text what the server said."""

    def __init__(self, kind: Kind, reason: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.reason = reason


@dataclass(frozen=True)
class Pin:
    """One state of an object; a GET of another state fails."""

    etag: str
    version: str | None = None


@dataclass(frozen=True)
class Head:
    size: int
    pin: Pin
    checksum: Expected | None


@dataclass(frozen=True)
class S3Config:
    endpoint: str | None = None
    region: str | None = None
    connections: int = 8
    connect_timeout: float = 5
    read_timeout: float = 30


class Body:
    """The bytes of one answer, read in pieces: `size` of them. `checksum` is that of the whole object, `version` its
    version id in a versioned bucket."""

    def __init__(self, response: dict[str, Any]) -> None:
        self._stream = response["Body"]
        self.size: int = response["ContentLength"]
        self.checksum = expected(response)
        self.version = _version(response)

    def read_into(self, buffer: memoryview) -> int:
        """Fills the buffer; how many bytes were read, fewer than it takes only at the end. Raises S3Error."""
        try:
            count: int = self._stream.readinto(buffer)
            return count
        except _ERRORS as error:
            raise _sorted(error) from None

    def read(self) -> bytes:
        """All of them. Raises S3Error."""
        try:
            data: bytes = self._stream.read()
            return data
        except _ERRORS as error:
            raise _sorted(error) from None


class _Files(botocore.loaders.JSONFileLoader):  # type: ignore[misc]
    """botocore's descriptions of services, half of what its client costs, read by a faster parser."""

    def _load_file(self, full_path: str, open_method: Callable[[str, str], IO[bytes]]) -> Any:
        if not os.path.isfile(full_path):
            return None
        with open_method(full_path, "rb") as file:
            return orjson.loads(file.read())


class _Loader(botocore.loaders.Loader):  # type: ignore[misc]
    FILE_LOADER_CLASS = _Files

    def list_available_services(self, type_name: str) -> list[str]:
        # Not found by looking through the folders of some four hundred of them.
        return ["s3"]


class S3:
    """Safe for threads. Credentials come from where AWS's SDKs find them; they are refreshed there, and read anew when
    the server says that they have expired."""

    def __init__(self, config: S3Config) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._client = self._connect()

    def list(self, source: Source) -> Iterator[Listed]:
        """Every object below the source, page by page. Raises S3Error."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=source.bucket, Prefix=source.prefix)
        try:
            for page in pages:
                for entry in page.get("Contents", []):
                    yield Listed(entry["Key"], entry["Size"], entry["ETag"], entry.get("StorageClass", "STANDARD"))
        except _ERRORS as error:
            raise _sorted(error) from None

    def head(self, bucket: str, key: str) -> Head:
        """Raises S3Error."""
        try:
            return _head(self._client.head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED"))
        except _ERRORS as error:
            raise _sorted(error) from None

    @contextmanager
    def get(self, bucket: str, key: str, pin: Pin | None, bounds: tuple[int, int] | None) -> Iterator[Body]:
        """The bytes [begin, end), or the whole object. Raises S3Error, `REPLACED` if it is not the pinned state."""
        request: dict[str, Any] = {"Bucket": bucket, "Key": key}
        if pin:
            request["IfMatch"] = pin.etag
            if pin.version:
                request["VersionId"] = pin.version
        if bounds:
            request["Range"] = f"bytes={bounds[0]}-{bounds[1] - 1}"
        else:
            request["ChecksumMode"] = "ENABLED"
        try:
            response = self._client.get_object(**request)
        except _ERRORS as error:
            raise _sorted(error) from None
        try:
            if bounds and not response.get("ContentRange", "").startswith(request["Range"].replace("=", " ") + "/"):
                raise S3Error(Kind.REFUSED, "range", f"the server answered another range than {request['Range']}")
            yield Body(response)
        finally:
            # A connection whose answer was read to the end goes back to the pool; any other is closed.
            response["Body"].close()

    def renew_credentials(self, old: object) -> None:
        """Read the credentials anew, unless another thread has done so since `client` was `old`."""
        with self._lock:
            if self._client is old:
                self._client = self._connect()

    @property
    def client(self) -> object:
        """Changes when the credentials are renewed."""
        return self._client

    def _connect(self) -> Any:
        config = Config(
            # Ours are counted, have jitter and are per part.
            retries={"total_max_attempts": 1, "mode": "standard"},
            connect_timeout=self._config.connect_timeout,
            read_timeout=self._config.read_timeout,
            max_pool_connections=self._config.connections,
            response_checksum_validation="when_required",
            request_checksum_calculation="when_required",
            # Custom endpoints seldom have a name for each bucket.
            s3={"addressing_style": "path"} if self._config.endpoint else None,
            tcp_keepalive=True,
        )
        try:
            session = botocore.session.Session()
            session.register_component("data_loader", _Loader())
            # Nobody asks when an object was changed.
            session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=str)
            region = self._config.region or session.get_config_variable("region") or "us-east-1"
            client = session.create_client("s3", region_name=region, endpoint_url=self._config.endpoint, config=config)
            if not get_environ_proxies(client.meta.endpoint_url):
                connections = Connections(self._config.connect_timeout, self._config.read_timeout)
                client.meta.events.register("before-send.s3", connections.send)
            return client
        except botocore.exceptions.BotoCoreError as error:
            raise JobError(f"The S3 client cannot be made: {error}") from None


def _head(response: dict[str, Any]) -> Head:
    return Head(response["ContentLength"], Pin(response["ETag"], _version(response)), expected(response))


def _version(response: dict[str, Any]) -> str | None:
    """The id with which these bytes can be asked for, whatever takes their place. Objects from before versioning was
    switched on have the version "null", which is overwritten."""
    version: str | None = response.get("VersionId")
    return None if version == "null" else version


_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired")
_SLOW = ("SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "TooManyRequests")
_AGAIN = ("RequestTimeout", "RequestTimeTooSkewed", "InternalError", "ServiceUnavailable", "OperationAborted")


# What botocore, urllib3 and our own connections raise.
_ERRORS = (
    botocore.exceptions.ClientError,
    botocore.exceptions.BotoCoreError,
    urllib3.exceptions.HTTPError,
    http.client.HTTPException,
    OSError,
)


def _sorted(error: Exception) -> S3Error:
    match error:
        case botocore.exceptions.ClientError():
            return _of_answer(error)
        case botocore.exceptions.NoCredentialsError() | botocore.exceptions.CredentialRetrievalError():
            return S3Error(Kind.REFUSED, "credentials", f"no AWS credentials can be had: {error}")
        case botocore.exceptions.ReadTimeoutError() | botocore.exceptions.ConnectTimeoutError() | TimeoutError():
            return S3Error(Kind.AGAIN, "timeout", str(error))
        case botocore.exceptions.ResponseStreamingError() | ConnectionResetError():
            return S3Error(Kind.AGAIN, "reset", str(error))
        case botocore.exceptions.HTTPClientError() | botocore.exceptions.IncompleteReadError():
            return S3Error(Kind.AGAIN, "connection", str(error))
        case botocore.exceptions.BotoCoreError():
            return S3Error(Kind.REFUSED, "client", str(error))
        case _:
            return S3Error(Kind.AGAIN, "connection", str(error))


def _of_answer(error: Any) -> S3Error:
    code = error.response.get("Error", {}).get("Code", "")
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    said = f"{code}: {error.response.get('Error', {}).get('Message', '')}".rstrip(". :")
    if code in _EXPIRED:
        return S3Error(Kind.CREDENTIALS, "credentials", said)
    if code in _SLOW or status == 429:
        return S3Error(Kind.AGAIN, "slow_down", said)
    if code in _AGAIN or status >= 500:
        return S3Error(Kind.AGAIN, "server", said)
    # A range that begins behind the end: the object is shorter than it was.
    if status in (412, 416):
        return S3Error(Kind.REPLACED, "replaced", said)
    if code == "InvalidObjectState":
        return S3Error(Kind.ARCHIVED, "archived", said)
    if status == 404 and code != "NoSuchBucket":
        return S3Error(Kind.GONE, "gone", said)
    if status == 403 and code in ("AccessDenied", "403"):
        return S3Error(Kind.DENIED, "denied", said)
    return S3Error(Kind.REFUSED, "refused", said)
