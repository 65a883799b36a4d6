"""`python -m prefetch serve`: the service from its settings to its end."""

import logging
import sqlite3
from pathlib import Path

from prefetch import assemble
from prefetch.adapters.outcome import Trust
from prefetch.app import Service
from prefetch.errors import JobError
from prefetch.jobs import Jobs
from prefetch.settings import Settings
from prefetch.source import Source
from prefetch.sqs import Queue
from prefetch.worker import Worker
from service_base import logs
from service_base.errors import SettingsError
from service_base.server import listen, log_start, serve


def run(settings: Settings) -> int:
    """Raises SettingsError."""
    trust = _trust(settings)
    if not (trust.tokens or trust.mlflow_secret or trust.huggingface_secret or trust.sns_topics):
        raise SettingsError(
            "Nobody could announce: give 'tokens' (or 'tokens_file'), 'mlflow_secret', 'huggingface_secret' or "
            "'sns_topics'."
        )
    if not trust.allow:
        raise SettingsError("No source is allowed: give --allow s3://bucket/prefix/ (PREFETCH_ALLOW, 'allow').")
    try:
        engine = assemble.engine(settings, for_jobs=True)
        jobs = _jobs(engine.config.state / "jobs.sqlite3")
        queue = None
        if settings.queue != "local":
            queue = Queue(settings.queue, settings.sqs_endpoint, settings.s3_region, settings.sqs_visibility)
    except JobError as error:
        raise SettingsError(str(error)) from None
    worker = Worker(engine, jobs, queue, settings.jobs, settings.deadline, settings.staging_seconds)
    service = Service(engine, jobs, worker, queue, trust, settings.max_body_bytes)
    listener = listen(settings.host, settings.port)
    logs.configure(settings.log_level)
    # What these say of each request at INFO and below is no news of ours.
    for name in ("botocore", "boto3", "urllib3"):
        logging.getLogger(name).setLevel(logging.WARNING)
    log_start(logging.getLogger("prefetch"), listener, settings.effective())
    # httptools loses the body of a request that asks for HTTP/2 besides, as Java's clients do; h11 does not.
    serve(service.app, [listener], settings.shutdown_timeout, http="h11", at_signal=service.stop_streams)
    return 0


def _jobs(file: Path) -> Jobs:
    try:
        return Jobs(file)
    except sqlite3.Error as error:
        raise SettingsError(
            f"The setting 'state' is wrong: {file} cannot be used as the queue: {error}; move it away, or give another "
            "folder."
        ) from None


def _trust(settings: Settings) -> Trust:
    mlflow, huggingface = settings.mlflow_secret, settings.huggingface_secret
    return Trust(
        allow=tuple(Source.parse(url) for url in settings.allow),
        tokens=tuple(settings.all_tokens()),
        mlflow_secret=mlflow.get_secret_value() if mlflow else None,
        huggingface_secret=huggingface.get_secret_value() if huggingface else None,
        source_template=settings.source_template,
        sns_topics=tuple(settings.sns_topics),
        sns_cert_hosts=tuple(settings.sns_cert_hosts),
        marker_names=tuple(settings.marker_names),
    )
