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
from service_base.files import asked, unwritable


def target(settings: Settings) -> Path:
    """Raises SettingsError where none is given."""
    if settings.target is None:
        raise SettingsError("Give the folder of the models with --target (PREFETCH_TARGET, 'target' in the file).")
    return settings.target.expanduser().absolute()


def published(settings: Settings) -> Path:
    """The target, for a command on what is published there. Raises SettingsError also where it is missing: that is a
    wrong or unmounted folder, not an empty one."""
    folder = target(settings)
    _check(folder, "target")
    return folder


def engine(settings: Settings, *, for_jobs: bool) -> Engine:
    """For jobs, missing folders that they write to are made; for what only looks, or removes, they are an error: all
    would seem unpublished, and nothing loaded. Raises SettingsError, JobError."""
    folder = target(settings)
    written = {"target": folder}
    triton = _triton(settings)
    if triton:
        _check(triton.template, "triton_template")
        written["triton_repository"] = triton.repository
    for setting, one in written.items():
        (_make if for_jobs else _check)(one, setting)
    return Engine(
        EngineConfig(
            target=folder,
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


def _triton(settings: Settings) -> TritonConfig | None:
    if not (settings.triton and settings.triton_repository and settings.triton_template):
        return None
    return TritonConfig(
        tuple(settings.triton),
        settings.triton_repository.expanduser().absolute(),
        settings.triton_template.expanduser().absolute(),
        settings.triton_load_timeout,
    )


def _check(folder: Path, setting: str) -> None:
    if not asked(folder, folder.is_dir):
        raise SettingsError(
            f"The setting {setting!r} is wrong: there is no folder {folder}; mount it, or give the right one."
        )


def _make(folder: Path, setting: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"The setting {setting!r} is wrong: {folder} cannot be made: {error.strerror}.") from None
    if why := unwritable(folder):
        raise SettingsError(f"The setting {setting!r} is wrong: {why}, or give another one.")
