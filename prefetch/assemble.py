"""From the settings to the engine that they describe. The service's other parts are made in `service.py`."""

from pathlib import Path

from prefetch.copy import CopySettings
from prefetch.hydrate import Association
from prefetch.pull import Engine, EngineConfig
from prefetch.s3 import S3Config
from prefetch.settings import Settings
from prefetch.source import Source
from prefetch.space import Policy
from prefetch.triton import TritonConfig
from service_base.errors import SettingsError


def target(settings: Settings) -> Path:
    """Raises SettingsError where none is given."""
    if settings.target is None:
        raise SettingsError("Give the folder of the models with --target (PREFETCH_TARGET, 'target' in the file).")
    return settings.target.expanduser().absolute()


def engine(settings: Settings) -> Engine:
    """Raises SettingsError, JobError."""
    triton = None
    if settings.triton and settings.triton_repository and settings.triton_template:
        if not settings.triton_template.is_dir():
            raise SettingsError(f"The setting 'triton_template' is wrong: {settings.triton_template} is no folder.")
        triton = TritonConfig(
            tuple(settings.triton),
            settings.triton_repository.expanduser().absolute(),
            settings.triton_template.expanduser().absolute(),
            settings.triton_load_timeout,
        )
    return Engine(
        EngineConfig(
            target=target(settings),
            state=settings.state.expanduser().absolute(),
            s3=S3Config(
                settings.s3_endpoint,
                settings.s3_region,
                settings.concurrency,
                settings.connect_timeout,
                settings.read_timeout,
            ),
            copy=CopySettings(settings.part_bytes, settings.attempts),
            concurrency=settings.concurrency,
            bytes_per_second=settings.bytes_per_second,
            markers=tuple(settings.marker_names),
            associations=tuple(
                Association(one.path.expanduser().absolute(), Source.parse(one.source), one.auto_export)
                for one in settings.associations
            ),
            hydrate_stall_seconds=settings.hydrate_stall,
            policy=Policy(settings.high_watermark, settings.low_watermark, settings.reserve_bytes),
            triton=triton,
        )
    )
