"""Amazon SNS over HTTP (SNS developer guide, "Verifying the signatures of Amazon SNS messages"). Pure: the certificate
is fetched by whoever calls.

Version 1 signs with SHA-1, version 2 with SHA-256; what is signed are some of the message's fields, in this order.
"""

import base64
import binascii
import datetime
import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from pydantic import Field

from prefetch.adapters.outcome import Event, Refused

HEADER = "x-amz-sns-message-type"
SIGNED = {
    "Notification": ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"),
    "SubscriptionConfirmation": ("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"),
    "UnsubscribeConfirmation": ("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"),
}
_HASHES: dict[str, type[hashes.HashAlgorithm]] = {"1": hashes.SHA1, "2": hashes.SHA256}
_ARN = re.compile(r"arn:(?P<partition>aws[\w-]*):sns:(?P<region>[\w-]+):\d+:.+", re.ASCII)


class Message(Event):
    Type: str
    MessageId: str
    TopicArn: str
    Message: str
    Timestamp: str
    SignatureVersion: str
    Signature: str
    SigningCertURL: str
    Subject: str | None = None
    SubscribeURL: str | None = None
    Token: str | None = Field(None, repr=False)


def check_topic(message: Message, topics: Sequence[str]) -> None:
    """Before anything is fetched: anyone can subscribe our address to a topic of theirs. Raises Refused."""
    if message.TopicArn not in topics:
        raise Refused(403, f"The topic {message.TopicArn} is not in 'sns_topics'.", "TopicArn")


def check_url(url: str | None, field: str, topics: Sequence[str], hosts: Sequence[str]) -> str:
    """A URL that may be fetched: https on an allowed host. Raises Refused."""
    allowed = set(hosts) or {_host(topic) for topic in topics}
    parts = urlsplit(url or "")
    if parts.scheme != "https" or parts.netloc not in allowed:
        raise Refused(403, f"{field} is not an https URL on an allowed host; 'sns_cert_hosts' lists them.", field)
    return parts.geturl()


def check_signature(message: Message, pem: bytes, now: float) -> None:
    """Raises Refused."""
    fields = SIGNED.get(message.Type)
    algorithm = _HASHES.get(message.SignatureVersion)
    if fields is None or algorithm is None:
        raise Refused(401, f"An SNS {message.Type} with signature version {message.SignatureVersion} is not known.")
    values = ((field, getattr(message, field)) for field in fields)
    text = "".join(f"{field}\n{value}\n" for field, value in values if value is not None)
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        key = certificate.public_key()
        signature = base64.b64decode(message.Signature, validate=True)
    except (ValueError, binascii.Error):
        raise Refused(401, "The SNS message's certificate or signature cannot be read.") from None
    when = datetime.datetime.fromtimestamp(now, datetime.UTC)
    if not certificate.not_valid_before_utc <= when <= certificate.not_valid_after_utc:
        raise Refused(401, "The SNS message's certificate is not valid now.")
    if not isinstance(key, rsa.RSAPublicKey):
        raise Refused(401, "The SNS message's certificate holds no RSA key.")
    try:
        key.verify(signature, text.encode(), padding.PKCS1v15(), algorithm())
    except InvalidSignature:
        raise Refused(401, "The SNS message's signature is wrong.") from None


def _host(topic: str) -> str:
    match = _ARN.fullmatch(topic)
    if not match:
        return ""
    suffix = "amazonaws.com.cn" if match["partition"] == "aws-cn" else "amazonaws.com"
    return f"sns.{match['region']}.{suffix}"
