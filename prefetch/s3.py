"""Reading from S3: list, head, ranged GETs pinned with `If-Match`. What goes wrong is sorted here, once, into what a
job does about it.

botocore's client alone: where boto3's transfer manager takes its CRT client, a custom endpoint is silently ignored.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

import botocore.exceptions
import botocore.session
import urllib3.exceptions
from botocore.config import Config

from prefetch.checksums import Expected, expected
from prefetch.errors import JobError
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
    """The bytes of one answer, read in pieces: `size` of them. `checksum` is that of the whole object."""

    def __init__(self, response: dict[str, Any]) -> None:
        self._stream = response["Body"]
        self.size: int = response["ContentLength"]
        self.checksum = expected(response)

    def read(self, amount: int) -> bytes:
        """Up to `amount` bytes, fewer only at the end. Raises S3Error."""
        with sorted_errors():
            data: bytes = self._stream.read(amount)
            return data


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
        with sorted_errors():
            for page in pages:
                for entry in page.get("Contents", []):
                    yield Listed(entry["Key"], entry["Size"], entry["ETag"], entry.get("StorageClass", "STANDARD"))

    def head(self, bucket: str, key: str) -> Head:
        with sorted_errors():
            return _head(self._client.head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED"))

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
        with sorted_errors():
            response = self._client.get_object(**request)
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
            region = self._config.region or session.get_config_variable("region") or "us-east-1"
            return session.create_client("s3", region_name=region, endpoint_url=self._config.endpoint, config=config)
        except botocore.exceptions.BotoCoreError as error:
            raise JobError(f"The S3 client cannot be made: {error}") from None


def _head(response: dict[str, Any]) -> Head:
    version = response.get("VersionId")
    return Head(
        response["ContentLength"],
        # Objects from before versioning was switched on have the version "null", which is overwritten.
        Pin(response["ETag"], None if version in (None, "null") else version),
        expected(response),
    )


_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired")
_SLOW = ("SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "TooManyRequests")
_AGAIN = ("RequestTimeout", "RequestTimeTooSkewed", "InternalError", "ServiceUnavailable", "OperationAborted")


@contextmanager
def sorted_errors() -> Iterator[None]:
    """Turns what botocore and urllib3 raise into S3Error."""
    try:
        yield
    except botocore.exceptions.ClientError as error:
        raise _of_answer(error) from None
    except (botocore.exceptions.NoCredentialsError, botocore.exceptions.CredentialRetrievalError) as error:
        raise S3Error(Kind.REFUSED, "credentials", f"no AWS credentials can be had: {error}") from None
    except (botocore.exceptions.ReadTimeoutError, botocore.exceptions.ConnectTimeoutError) as error:
        raise S3Error(Kind.AGAIN, "timeout", str(error)) from None
    except botocore.exceptions.ResponseStreamingError as error:
        raise S3Error(Kind.AGAIN, "reset", str(error)) from None
    except (botocore.exceptions.HTTPClientError, botocore.exceptions.IncompleteReadError) as error:
        raise S3Error(Kind.AGAIN, "connection", str(error)) from None
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise S3Error(Kind.AGAIN, "connection", str(error)) from None
    except botocore.exceptions.BotoCoreError as error:
        raise S3Error(Kind.REFUSED, "client", str(error)) from None


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
