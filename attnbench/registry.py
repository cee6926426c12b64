"""Names of variants and tasks -> classes, over entry points and plugin files. Listing imports nothing.

A plugin is an entry point of the group `attnbench.variants` or `attnbench.tasks` (its name is the name) or a Python
file: each Mixer and each Task subclass that the file defines is offered under its class attribute `name`, else its
class name in snake_case.
Loading needs torch and runs strangers' code, so the command line and the sweep do it in a process of its own.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from attnbench.errors import RequestError, did_you_mean

VARIANTS = "attnbench.variants"
TASKS = "attnbench.tasks"
_WORD = r"\w[\w.-]*"  # what a name may be; a + stands between the parts of a stack
_MACHINERY = ("<frozen importlib", importlib.__file__, __file__)


@dataclass(frozen=True)
class Source:
    """Where a name leads to: `target` is module:Class or FILE:Class, `origin` the package or file that offers it."""

    name: str
    target: str
    origin: str


class PluginError(RequestError):
    """A plugin that cannot be loaded: its source, the original error and where in the plugin it was raised."""


def installed(group: str) -> dict[str, Source]:
    """Everything that installed packages offer in a group, by name; imports none of it.

    Raises RequestError when two packages claim one name, and for a name that is no word.
    """
    found: dict[str, Source] = {}
    for point in sorted(entry_points(group=group), key=lambda point: (point.name, point.value)):
        origin = f"{point.dist.name} {point.dist.version}" if point.dist else "unknown"
        if not re.fullmatch(_WORD, point.name):
            raise RequestError([f'{origin}: entry point "{point.name}": expected a word like "block_mean"'])
        add(found, Source(point.name, point.value, origin))
    return found


def add(found: dict[str, Source], source: Source) -> None:
    """Put a source under its name. The same source twice is no error; another one under that name is."""
    other = found.setdefault(source.name, source)
    if other.target != source.target:
        raise RequestError([f'two plugins are named "{source.name}": {_place(other)} and {_place(source)}'])


def file_sources(file: str | Path, group: str = VARIANTS) -> list[Source]:
    """What one plugin file offers in a group. Raises PluginError when it offers neither a variant nor a task."""
    path = Path(file).resolve()
    found = _classes(load_file(path))
    if not any(found.values()):
        raise PluginError([f"plugin {file}: defines no subclass of attnbench.Mixer or attnbench.tasks.Task"])
    _check_names([cls for classes in found.values() for cls in classes.values()], file)
    return [Source(variant_name(cls), f"{path}:{place}", str(file)) for place, cls in found[group].items()]


def find(name: str, known: Mapping[str, Source], what: str = "variant", broken: Iterable[str] = ()) -> Source:
    """The source of a name. Raises RequestError with the nearest known name, and what is broken, which may be it."""
    if name not in known:
        raise RequestError([*broken, f'unknown {what} "{name}"{did_you_mean(name, known)}'])
    return known[name]


def load(source: Source) -> type:
    """Import the one class that a source names. Raises PluginError, with the original error, when that fails."""
    place, _, name = source.target.rpartition(":")
    module = load_file(Path(place)) if place.endswith(".py") else _guarded(source.origin, place)
    cls = getattr(module, name, None)
    if not isinstance(cls, type):
        raise PluginError([f"plugin {source.origin}: {place} has no class {name}"])
    return cls


class _Uncompiled(SourceFileLoader):
    """Leaves no __pycache__ beside a plugin, in a folder that is somebody's, or a run's and then holds copies alone."""

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        """Nothing is written."""


def load_file(path: Path) -> ModuleType:
    """Run a plugin file as a module under a name of its own, so that no stem clashes with another module's.

    Raises PluginError with the original error, its place in the file, and the traceback as its cause.
    """
    path = path.resolve()
    if not path.is_file():
        raise PluginError([f"plugin {path}: no such file"])
    name = f"attnbench_plugin_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise PluginError([f"plugin {path}: not a Python file"])
        if isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Uncompiled(name, str(path))
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException as error:
            sys.modules.pop(name, None)
            raise _plugin_error(str(path), error) from error
    return sys.modules[name]


def variant_name(cls: type) -> str:
    """The name a class is offered under: its own attribute `name`, else its class name in snake_case."""
    own = cls.__dict__.get("name")
    if isinstance(own, str):
        return own
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", cls.__name__).lower()


def _check_names(classes: list[type], file: str | Path) -> None:
    """A class attribute `name` is a word: it stands in sweep files, labels and names of files. Raises PluginError."""
    for cls in classes:
        own = cls.__dict__.get("name")
        given = own is not None and not hasattr(own, "__get__")  # a property or a method is no name, and no mistake
        if given and not (isinstance(own, str) and re.fullmatch(_WORD, own)):
            raise PluginError([f'plugin {file}: {cls.__name__}.name: expected a word like "block_mean", got {own!r}'])


def _classes(module: ModuleType) -> dict[str, dict[str, type]]:
    """By group, the classes that a module itself defines, each under the first public name that leads to it."""
    from attnbench.mixer import Mixer
    from attnbench.tasks import Task

    found: dict[str, dict[str, type]] = {VARIANTS: {}, TASKS: {}}
    for name, value in vars(module).items():
        if not isinstance(value, type) or value.__module__ != module.__name__ or name.startswith("_"):
            continue
        for group, base in ((VARIANTS, Mixer), (TASKS, Task)):
            if issubclass(value, base) and value not in found[group].values():
                found[group][name] = value
    return found


def _guarded(origin: str, module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except BaseException as error:
        raise _plugin_error(origin, error) from error


def _plugin_error(origin: str, error: BaseException) -> PluginError:
    """One line for any way in which strangers' code can fail at import, sys.exit included."""
    if isinstance(error, KeyboardInterrupt):
        raise error
    return PluginError([f"plugin {origin}: {describe_error(error, within=origin)}"])


def describe_error(error: BaseException, within: str | None = None) -> str:
    """`Type: message (file:line)` on one line, the place being the plugin's own innermost line where there is one.

    within: a file that is blamed rather than those it calls. A RequestError says itself what it is about.
    """
    if isinstance(error, RequestError):
        return "; ".join(error.mistakes)
    words = " ".join((error.msg if isinstance(error, SyntaxError) else str(error)).split())
    place = _blamed(error, within)
    return f"{type(error).__name__}{f': {words}' if words else ''}{f' ({place})' if place else ''}"


def _blamed(error: BaseException, within: str | None) -> str | None:
    """file:line of a syntax error, else of the innermost frame outside torch and attnbench, else outside torch."""
    if isinstance(error, SyntaxError):
        return f"{Path(error.filename).name}:{error.lineno}" if error.filename else None
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_MACHINERY)]
    beside_torch = [frame for frame in frames if not frame.filename.startswith(_home(sys.modules.get("torch")))]
    strangers = [frame for frame in beside_torch if not frame.filename.startswith(_home(sys.modules["attnbench"]))]
    named = [frame for frame in frames if frame.filename == within]
    blamed = named or strangers or beside_torch or frames
    return f"{Path(blamed[-1].filename).name}:{blamed[-1].lineno}" if blamed else None


def _home(package: ModuleType | None) -> tuple[str, ...]:
    """The folder of a package, as a prefix of its files; none when it is not loaded."""
    file = getattr(package, "__file__", None)
    return (str(Path(file).parent) + os.sep,) if file else ()


def _place(source: Source) -> str:
    return f"{source.origin} ({source.target.rpartition(':')[2]})"
