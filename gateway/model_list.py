"""The list of served models, kept as the model repositories and Triton have it: models appear, change and go while the
gateway runs.

One process looks which models there are (`ModelList`). What it found (`Listing`) is enough for another to read the
same models for itself (`Copy`). Files may lie on a network's file system and take long to read: after the start that
is done in a thread, and only for what is new or has changed.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from pydantic import BaseModel, ConfigDict

from gateway.files import Look, State, noting, state
from gateway.models import ServedModel, ServedModels, read_model
from gateway.repository import EngineArguments, Entry, entry, named_by_folder, names
from gateway.settings import NO_PARSER, ModelSettings, Settings
from service_base.errors import SettingsError

_log = logging.getLogger(__name__)

_LOOK_INTERVAL_S = 1.0

_Key = int | str
"""Which model: its number among those that the settings name, or else the name of its folder."""


class Source(BaseModel):
    """What a model is made from. A change of its files is another `revision`."""

    model_config = ConfigDict(frozen=True)

    settings: ModelSettings
    engine: EngineArguments
    revision: int


class Listing(BaseModel):
    """Which models there are; `broken` as in `ServedModels`."""

    model_config = ConfigDict(frozen=True)

    sources: list[Source]
    broken: dict[str, str]


@dataclass(frozen=True)
class _Sight:
    """What a look at a model's files gave: its `entry` in the repositories, and the `model` or a sentence that says why
    it cannot be used (`broken`). `depends_on` is all that was looked at."""

    depends_on: Mapping[Look, State] = field(default_factory=dict)
    entry: Entry | None = None
    source: Source | None = None
    model: ServedModel | None = None
    broken: str = ""

    def is_outdated(self) -> bool:
        return any(state(look) != before for look, before in self.depends_on.items())


class ModelList:
    """Reads the models that the settings name when made, or every vLLM model of the repositories where they name none.

    Raises `SettingsError` for a mistake in the settings, wrong files of a model that they name among them. Wrong files
    of another one cost that model alone: the log says so, once.
    """

    def __init__(self, settings: Settings) -> None:
        self._repositories = settings.model_repository
        self._configured = settings.models
        if not self._configured and "models" in settings.model_fields_set:
            raise SettingsError(
                "The setting 'models' names no model; name at least one, or leave it out to serve every vLLM model "
                "there is."
            )
        if not self._configured and not self._repositories:
            raise SettingsError(
                "No model is configured: set models: in the YAML file, or --model-repository to Triton's repository."
            )
        self.served = ServedModels()
        self._revision = 0
        self._sights: dict[_Key, _Sight] = {}
        for key in range(len(self._configured)) if self._configured else names(self._repositories):
            seen = self._see(key)
            if seen.broken and self._configured:
                raise SettingsError(seen.broken)
            if seen.entry is not None and seen.entry.others:
                raise SettingsError(f"{_twice(seen.entry)}; remove one of them.")
            self._take(key, seen)
        self._publish()
        if not len(self.served):
            where = ", ".join(map(str, self._repositories))
            _log.warning("no model is served yet: %s holds no usable one with the backend vllm", where)

    @property
    def discovers(self) -> bool:
        """Whether models appear by themselves."""
        return not self._configured

    @property
    def listing(self) -> Listing:
        sources = [seen.source for _, seen in self._in_order() if seen.source is not None]
        return Listing(sources=sources, broken=dict(self.served.broken))

    async def follow(
        self,
        listed: Callable[[], Collection[str]],
        is_ready: Callable[[str], bool],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """Keep the list true, until cancelled. `listed` are the names in the Tritons' repository indexes, `is_ready`
        says whether any Triton has a model ready, and `changed` is called after each change."""
        while True:
            await asyncio.sleep(_LOOK_INTERVAL_S)
            try:
                if await self.look(listed(), is_ready):
                    changed()
            except Exception:
                # A defect must not end the watch.
                _log.exception("the list of models could not be brought up to date")

    async def look(self, listed: Collection[str], is_ready: Callable[[str], bool]) -> bool:
        """Once; whether anything has changed."""
        before = self.listing
        new = [] if self._configured else sorted(set(listed) - self._sights.keys())
        for key, seen in (await asyncio.to_thread(self._look_again, new)).items():
            self._take(key, seen)
        for key in [key for key in self._sights if isinstance(key, str)]:
            self._let_go(key, key in listed, is_ready)
        self._publish()
        return self.listing != before

    def _look_again(self, new: Iterable[str]) -> dict[_Key, _Sight]:
        """At what is new, and at what another look would see otherwise. Runs in a thread."""
        outdated = [key for key, seen in self._sights.items() if seen.is_outdated()]
        return {key: self._see(key) for key in (*outdated, *new)}

    def _see(self, key: _Key) -> _Sight:
        found: Entry | None = None
        with noting() as looks:
            try:
                if isinstance(key, int):
                    settings = self._configured[key]
                    found = entry(self._repositories, settings.triton_model)
                else:
                    found = entry(self._repositories, key)
                    if found is None:
                        return _Sight(looks)
                    settings = named_by_folder(found.folder)
                engine = EngineArguments() if found is None else found.arguments
                model = read_model(settings, engine)
            except SettingsError as error:
                return _Sight(looks, found, broken=str(error))
            except Exception as error:
                # Wrong in a way that nobody foresaw: that must not cost the other models.
                return _Sight(looks, found, broken=f"Reading it failed: {error!r}.")
        return _Sight(looks, found, Source(settings=settings, engine=engine, revision=0), model)

    def _take(self, key: _Key, seen: _Sight) -> None:
        """What was seen anew. Where there is no model to be had any more, an old one stays."""
        old = self._sights.get(key, _Sight())
        if seen.entry is not None and seen.entry.others:
            _log.error("%s; the first is read, but Triton loads neither: remove one of them", _twice(seen.entry))
        if seen.broken:
            kept = " (what was read of it before stays in force)" if old.model is not None else ""
            _log.error("model %s cannot be used%s: %s", self._name(key), kept, seen.broken)
        elif seen.entry is None and old.entry is not None:
            _log.warning("model %s is gone from the model repository; Triton may go on with it", self._name(key))
        if seen.model is None or (seen.entry is None and old.entry is not None):
            self._sights[key] = replace(seen, source=old.source, model=old.model)
            return
        assert seen.model is not None
        assert seen.source is not None
        self._revision += 1
        self._sights[key] = replace(seen, source=seen.source.model_copy(update={"revision": self._revision}))
        _log.info(
            "model %s%s: tool parser %s, reasoning parser %s (%s)",
            seen.model.triton_model,
            " was read again, since its files have changed" if old.model is not None else "",
            seen.model.output.tool_parser or NO_PARSER,
            seen.model.output.reasoning_parser or NO_PARSER,
            seen.model.output.why,
        )

    def _let_go(self, key: str, is_listed: bool, is_ready: Callable[[str], bool]) -> None:
        """Of a model whose folder is gone, unless some Triton goes on with it."""
        seen = self._sights[key]
        if seen.entry is not None or seen.broken or (seen.model is not None and is_ready(key)):
            return
        if seen.model is not None:
            _log.info("model %s is served no longer: it is gone from the model repository", key)
        if is_listed:
            self._sights[key] = replace(seen, source=None, model=None)
        else:
            del self._sights[key]

    def _publish(self) -> None:
        seen = list(self._in_order())
        broken = {self._name(key): one.broken for key, one in seen if one.model is None and one.broken}
        self.served.replace((one.model for _, one in seen if one.model is not None), broken)

    def _in_order(self) -> list[tuple[_Key, _Sight]]:
        """The configured ones as they stand in the settings, others by name."""
        return sorted(self._sights.items(), key=lambda item: item[0])

    def _name(self, key: _Key) -> str:
        return key if isinstance(key, str) else self._configured[key].triton_model


class Copy:
    """The same models in another process, each read here for itself."""

    def __init__(self, listing: Listing) -> None:
        self.served = ServedModels()
        self._models: dict[int, ServedModel | str] = {}
        self._lock = asyncio.Lock()
        self._show(listing, self._read(listing))

    async def take(self, listing: Listing) -> None:
        """Another listing. Its files are read in a thread."""
        async with self._lock:
            self._show(listing, await asyncio.to_thread(self._read, listing))

    def _read(self, listing: Listing) -> dict[int, ServedModel | str]:
        """By their revision, the models or why one cannot be read."""
        return {source.revision: self._models.get(source.revision) or _model_of(source) for source in listing.sources}

    def _show(self, listing: Listing, models: dict[int, ServedModel | str]) -> None:
        broken = {
            source.settings.triton_model: reason
            for source in listing.sources
            if isinstance(reason := models[source.revision], str)
        }
        self._models = models
        whole = (model for model in models.values() if not isinstance(model, str))
        self.served.replace(whole, {**listing.broken, **broken})


def _model_of(source: Source) -> ServedModel | str:
    try:
        return read_model(source.settings, source.engine)
    except SettingsError as error:
        _log.error("model %s cannot be used: %s", source.settings.triton_model, error)
        return str(error)


def _twice(found: Entry) -> str:
    folders = ", ".join(str(folder) for folder in found.others)
    return f"The model {found.folder.name!r} lies in two repositories: {found.folder} and {folders}"
