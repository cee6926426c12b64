"""Names and files that commands are given, looked up: where they lead, and what a process with torch says of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench import registry
from attnbench.errors import RequestError, did_you_mean
from attnbench.registry import Source

if TYPE_CHECKING:
    from attnbench.execute.local import FreshProcesses

QUESTION_TIMEOUT_S = 120.0


def targets(
    processes: FreshProcesses, target: str | None, plugins: list[Path], timeout_s: float
) -> tuple[list[str], dict[str, Source]]:
    """The names that NAME or FILE[:CLASS] stands for, all there are without one, and where they lead."""
    if target is None:
        sources, broken = sources_with(processes, plugins, timeout_s=timeout_s)
        if broken:
            raise RequestError(broken)
        return list(sources), sources
    file, colon, wanted = target.partition(".py:")
    file += ".py" if colon else ""
    if not file.endswith(".py"):
        sources, broken = sources_with(processes, plugins, timeout_s=timeout_s)
        if target not in sources:
            raise RequestError([f'unknown variant "{target}"{did_you_mean(target, sources)}', *broken])
        return [target], sources
    _there([Path(file), *plugins])
    offered: dict[str, Source] = ask(processes, "offered_by", file, timeout_s=timeout_s)
    names = [name for name, source in offered.items() if wanted in ("", name, source.target.rpartition(":")[2])]
    if not names:
        classes = [source.target.rpartition(":")[2] for source in offered.values()]
        none = f"has no mixer {wanted}{did_you_mean(wanted, classes)}" if wanted else "offers no variant"
        raise RequestError([f"{file}: {none}"])
    return names, offered


def one_source(
    processes: FreshProcesses, target: str, plugins: list[Path], timeout_s: float = QUESTION_TIMEOUT_S
) -> Source:
    """Where the one variant that NAME or FILE[:CLASS] stands for leads. Raises RequestError when there are several."""
    names, sources = targets(processes, target, plugins, timeout_s)
    if len(names) > 1:
        raise RequestError([f"{target}: offers {', '.join(names)}; say which: {sources[names[0]].target}"])
    return sources[names[0]]


def plugin_files_of(source: Source) -> list[Path]:
    """The plugin files that a run needs for a variant."""
    origin = Path(source.origin)
    return [origin] if origin.suffix == ".py" else []


def sources_with(
    processes: FreshProcesses,
    plugins: list[Path],
    group: str = registry.VARIANTS,
    timeout_s: float = QUESTION_TIMEOUT_S,
) -> tuple[dict[str, Source], list[str]]:
    """What is installed in a group and what plugin files offer, and a line for each file that does not load."""
    _there(plugins)
    if not plugins:
        return registry.installed(group), []
    found, broken, clashes = ask(processes, "sources_with", [str(file) for file in plugins], group, timeout_s=timeout_s)
    if clashes:
        raise RequestError(clashes)
    return found, broken


def _there(files: list[Path]) -> None:
    """Raises RequestError with a line for each file that is none."""
    if missing := [f"{file}: no such plugin file" for file in files if not file.is_file()]:
        raise RequestError(missing)


def ask(
    processes: FreshProcesses,
    question: str,
    *arguments: Any,
    module: str = "describe",
    timeout_s: float = QUESTION_TIMEOUT_S,
) -> Any:
    """The answer of a function of `attnbench.execute`, called in a fresh process. Raises RequestError without one."""
    from attnbench.execute.runner import answer

    processes.warm_up()
    return answer(processes.call(f"attnbench.execute.{module}:{question}", *arguments, timeout_s=timeout_s))


def seconds(flag: str, text: str | None) -> float | None:
    """A duration given on the command line, "60s", "5m" or bare seconds. Raises RequestError, which names the flag."""
    from pydantic import TypeAdapter, ValidationError

    from attnbench.settings import Seconds

    if text is None:
        return None
    try:
        return TypeAdapter(Seconds).validate_python(float(text) if text.isascii() and text.isdigit() else text)
    except ValidationError as error:
        raise RequestError([f'{flag} {text}: expected a duration such as "60s" or "5m"']) from error
