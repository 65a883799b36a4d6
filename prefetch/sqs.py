"""Amazon SQS as the queue of several machines: jobs go in where they are announced and come out where there is room.

A message is hidden while it is worked on, again and again; when the machine dies it is seen by another. A job that
fails comes again when its message's time of hiding is over, and after the queue's `maxReceiveCount` SQS moves it to the
dead-letter queue.
"""

import json
import logging
import threading
from dataclasses import dataclass
from typing import Any

import botocore.exceptions
import botocore.session
from botocore.config import Config
from pydantic import ValidationError

from prefetch.announcement import Announcement
from prefetch.errors import JobError

_log = logging.getLogger(__name__)

_WAIT_SECONDS = 10  # long polling; SQS allows 20
_TROUBLE = (botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError)


@dataclass(frozen=True)
class Message:
    job_id: str
    announcement: Announcement
    announced: float  # Unix time
    receipt: str


class Queue:
    """Safe for threads. Raises JobError where SQS cannot be asked."""

    def __init__(self, queue: str, endpoint: str | None, region: str | None, visibility: int) -> None:
        """`queue` is `sqs://HOST/ACCOUNT/NAME`: the queue's URL with another scheme."""
        rest = queue.removeprefix("sqs://")
        self._url = f"{endpoint}/{rest.partition('/')[2]}" if endpoint else f"https://{rest}"
        host = rest.partition("/")[0].split(".")
        region = region or (host[1] if len(host) > 2 and host[0] == "sqs" else None)
        self._visibility = visibility
        config = Config(read_timeout=_WAIT_SECONDS + 20, retries={"total_max_attempts": 5, "mode": "standard"})
        try:
            session = botocore.session.Session()
            self._client: Any = session.create_client("sqs", region_name=region, endpoint_url=endpoint, config=config)
        except botocore.exceptions.BotoCoreError as error:
            raise JobError(f"The SQS client cannot be made: {error}") from None

    def send(self, job_id: str, announcement: Announcement, announced: float) -> None:
        body = {"job": job_id, "announced": announced, "announcement": announcement.model_dump(exclude_none=True)}
        try:
            self._client.send_message(QueueUrl=self._url, MessageBody=json.dumps(body))
        except _TROUBLE as error:
            raise JobError(f"The job cannot be put into the queue {self._url}: {error}") from None

    def receive(self) -> Message | None:
        """Waits a while for one. What is no job of ours stays, for the dead-letter queue."""
        try:
            answer = self._client.receive_message(
                QueueUrl=self._url,
                MaxNumberOfMessages=1,
                WaitTimeSeconds=_WAIT_SECONDS,
                VisibilityTimeout=self._visibility,
            )
        except _TROUBLE as error:
            raise JobError(f"The queue {self._url} cannot be read: {error}") from None
        for message in answer.get("Messages", []):
            try:
                body = json.loads(message["Body"])
                announcement = Announcement.model_validate_json(json.dumps(body["announcement"]))
                return Message(str(body["job"]), announcement, float(body["announced"]), message["ReceiptHandle"])
            except (ValueError, KeyError, TypeError, ValidationError):
                _log.error("a message in the queue is no job", extra={"message_id": message["MessageId"]})
        return None

    def keep(self, message: Message, stop: threading.Event) -> None:
        """Keeps the message hidden until `stop` is set."""
        while not stop.wait(self._visibility / 3):
            self._hide(message, self._visibility)

    def done(self, message: Message) -> None:
        try:
            self._client.delete_message(QueueUrl=self._url, ReceiptHandle=message.receipt)
        except _TROUBLE as error:
            # It will come again and find the model published.
            _log.warning("a message that is done cannot be removed from the queue: %s", error)

    def give_back(self, message: Message) -> None:
        """To be seen by any machine at once."""
        self._hide(message, 0)

    def _hide(self, message: Message, seconds: int) -> None:
        try:
            self._client.change_message_visibility(
                QueueUrl=self._url, ReceiptHandle=message.receipt, VisibilityTimeout=seconds
            )
        except _TROUBLE as error:
            _log.warning("a message's visibility cannot be changed: %s", error)
