"""Commands that answer a question, by runs of their own or from one that was made. `cli` offers them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from attnbench.commands import AsJson, Debug, RunFolder, show
from attnbench.errors import RequestError, did_you_mean
from attnbench.settings import Level, Measure, Phase
from attnbench.targets import ask, one_source, plugin_files_of, seconds

if TYPE_CHECKING:
    from attnbench.analyse.audited import Claimed
    from attnbench.analyse.tried import Tried
    from attnbench.crossover_search import Answer
    from attnbench.execute.listener import Listener
    from attnbench.registry import Source

Target = "NAME|FILE[:CLASS]"
Plugins = Annotated[list[Path] | None, typer.Option("--plugin", metavar="FILE", help="A plugin file; may be repeated.")]


def crossover(
    a: Annotated[str, typer.Argument(metavar="A", help=f"What B is compared with: {Target}.")],
    b: Annotated[str, typer.Argument(metavar="B", help=f"What may be cheaper: {Target}.")],
    d: Annotated[str, typer.Option("--d", metavar="D,…", help="Widths d_model.")] = "64,128,256",
    batch: Annotated[str, typer.Option("--B", metavar="B,…", help="Batch sizes.")] = "1",
    phase: Annotated[str, typer.Option(metavar="PHASE", help=", ".join(get_args(Phase)) + ".")] = "forward",
    level: Annotated[str, typer.Option(metavar="LEVEL", help=", ".join(get_args(Level)) + ".")] = "layer",
    t_max: Annotated[int, typer.Option("--t-max", min=1, metavar="T", help="The largest T to try.")] = 8192,
    plugin: Plugins = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep the run here, with a report.")] = None,
    budget: Annotated[str, typer.Option(help="How long to search for; what is begun is ended.")] = "240s",
    debug: Debug = False,
) -> None:
    """Say at which T B becomes cheaper than A, in time and memory, for each width.

    T is searched, by both costs measured at ever closer sizes, until the interval of the crossover is narrow. What is
    not met up to --t-max is said to be none, never guessed. Then a block is taken apart there: how much of it is
    mixing, and how much faster it gets at most. The same command with the same --out goes on where it stopped.

    Example: attnbench crossover fused linear --d 64,256 --out my_crossover
    """
    from attnbench.crossover_search import Question, Search

    widths, batches = _counts("--d", d), _counts("--B", batch)
    _known("--phase", phase, get_args(Phase))
    _known("--level", level, get_args(Level))
    budget_s = seconds("--budget", budget) or 0.0
    (baseline, other), role = _both(a, b, plugin or [])
    files = tuple(file for source in (baseline, other) for file in plugin_files_of(source))
    question = Question(baseline.name, other.name, widths, batches, phase, level, t_max, files, role)
    with ExitStack() as stack:
        folder = out or Path(stack.enter_context(TemporaryDirectory(prefix="attnbench-"))) / "run"
        answer = Search(question, folder, budget_s=budget_s, shown=lambda: _shown(debug), say=_say).run()
        _print_answer(answer)
        if out is not None:
            from attnbench.report import of_runs

            print(f"report: {of_runs([out])[0]}")
    raise typer.Exit(0 if answer.is_one else 1)


def capacity(
    variants: Annotated[list[str], typer.Argument(metavar="VARIANT...", help=f"What is trained: {Target}.")],
    task: Annotated[str, typer.Option(metavar="TASK", help="What it is trained on.")] = "mqar",
    load: Annotated[str, typer.Option(metavar="OPTION", help="The task's option that is searched.")] = "n_pairs",
    d: Annotated[int, typer.Option("--d", min=1, metavar="D", help="The width d_model.")] = 32,
    length: Annotated[int, typer.Option("--T", min=1, metavar="T", help="The length.")] = 128,
    low: Annotated[int, typer.Option(metavar="LOW", help="The smallest load to train at.")] = 2,
    high: Annotated[int, typer.Option(metavar="HIGH", help="The largest; the task must fit into T.")] = 32,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="As for run: seed=[0,1,2], train.steps=500.")
    ] = None,
    plugin: Plugins = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep the run here, with a report.")] = None,
    debug: Debug = False,
) -> None:
    """Say up to which load of a task each variant learns it to 90 %.

    The load is bisected, each time with a fresh training, until a load that was learnt and one that was not are within
    15 % of each other. The same command with the same --out goes on where it stopped, and trains nothing twice.

    Example: attnbench capacity fused mamba2 deltanet --d 32 --out my_capacity
    """
    from attnbench.capacity_search import Question, Search
    from attnbench.report import capacity as words

    sources = _several(variants, plugin or [])
    files = tuple(file for source in sources for file in plugin_files_of(source))
    names = tuple(dict.fromkeys(source.name for source in sources))
    question = Question(names, task, load, d, length, low, high, tuple(overrides or ()), files)
    with ExitStack() as stack:
        folder = out or Path(stack.enter_context(TemporaryDirectory(prefix="attnbench-"))) / "run"
        found = Search(question, folder, shown=lambda: _shown(debug), say=_say).run()
        show(words.table(found, str(question), low, high))
        if out is not None:
            from attnbench.report import of_runs

            print(f"report: {of_runs([out])[0]}")
    raise typer.Exit(0 if all(one.is_one for one in found) else 1)


def _several(targets: list[str], plugins: list[Path]) -> list[Source]:
    from attnbench.execute.local import FreshProcesses

    with FreshProcesses() as processes:
        return [one_source(processes, target, plugins) for target in targets]


def _both(a: str, b: str, plugins: list[Path]) -> tuple[list[Source], str]:
    """Two variants, and the role in which both are compared. Raises RequestError when they are one."""
    from attnbench.execute.local import FreshProcesses

    with FreshProcesses() as processes:
        both = [one_source(processes, one, plugins) for one in (a, b)]
        if both[0].name == both[1].name:
            raise RequestError([f"{a} and {b}: expected two variants, got {both[0].name} twice"])
        roles = {ask(processes, "claimed", source, module="probes")["role"] for source in both}
    return both, "causal" if roles == {"causal"} else "bidirectional"


def try_variant(
    target: Annotated[str, typer.Argument(metavar=Target, help="A variant's name, or a plugin file.")],
    plugin: Plugins = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep the run here, with the page try.html and a report.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Say in two minutes what a variant is worth: promises, costs, what it learns, its claim.

    First its certificate; a variant that breaks a promise is not measured. Then one page: time, memory and operations
    beside fused, linear and lstm, crossovers with fused, recall and distance beside fused and the floor, the verdict on
    its claim, and what to run next. Exit status 1 when a promise is broken, a claim refuted, or a cell of it failed.

    Example: attnbench try my_attention.py --out my_try
    """
    from attnbench import trial
    from attnbench.run_folder import RunFolder

    began_s = time.monotonic()
    if out is not None and RunFolder(out).used:
        raise RequestError([f"{out}: holds a run already; give --out another folder"])
    certified = _certified(target, plugin or [])
    if certified is None:
        return
    source, about, line = certified
    with ExitStack() as stack:
        folder = out or Path(stack.enter_context(TemporaryDirectory(prefix="attnbench-try-"))) / "run"
        asked: dict[str, Any] = {"plugins": plugin_files_of(source), "began_s": began_s}
        found = trial.run(about, line, folder, lambda: _shown(debug), **asked)
        _print_tried(found, target, [*map(str, plugin or [])], out)
    raise typer.Exit(1 if found.wrong else 0)


def _certified(target: str, plugins: list[Path]) -> tuple[Source, Claimed, str] | None:
    """A variant, what it claims, and the verdict of its certificate, which is printed; None for one that needs a GPU.

    Raises typer.Exit when it breaks a promise.
    """
    from attnbench import audit, trial
    from attnbench.execute.local import FreshProcesses

    with FreshProcesses() as processes:
        source = one_source(processes, target, plugins)
        about = audit.claimed(processes, source)
        devices = ask(processes, "profile", source.name, {source.name: source})["devices"]
        if devices["cpu"] is not None:
            print(_not_here(source.name, devices))
            return None
        _say(f"{source.name}: trying its promises")
        kept, lines = trial.keeps_promises(processes, source)
    print("\n".join(lines), flush=True)
    if not kept:
        raise typer.Exit(1)
    return source, about, lines[-1]


def _not_here(name: str, devices: Mapping[str, str | None]) -> str:
    """What to say of a variant that does not run on a CPU."""
    line = f"{name}: unsupported: {devices['cpu']}; nothing was measured"
    how = "" if devices["cuda"] else ": on a machine with a GPU, attnbench run SWEEP --set device=cuda measures it"
    return line + how


def _print_tried(found: Tried, target: str, plugins: list[str], out: Path | None) -> None:
    """Tables, verdict, cautions, what to run next; and the page, where the run is kept."""
    from attnbench.report import tried

    for table in tried.everything(found):
        show(table)
    following = tried.following(found, target, plugins)
    print("\n".join([*tried.verdict(found), *tried.cautions(found)]))
    print("next:")
    for command in following:
        print(f"  {command.text}\n      {command.why}")
    if out is not None:
        from attnbench.report import of_runs, try_page

        of_runs([out])
        print(f"page: {try_page.write(found, following, out)}")


def _print_answer(answer: Answer) -> None:
    """The crossovers, and what a block is made of there."""
    from attnbench.analyse.amdahl import by_level, splits
    from attnbench.report import crossing, split

    question = answer.question
    show(crossing.table(answer.crossovers, question.baseline, question.other, answer.spent, answer.reasons))
    if found := splits(answer.split):
        show(split.shares(found))
        show(split.levels(by_level(answer.split, question.baseline), question.baseline))
        print("\n".join(split.sentence(one) for one in found))


def _shown(debug: bool) -> AbstractContextManager[Listener]:
    """The progress of one step of many: what a step does not ask for is no news, and neither is one without visits."""
    from attnbench.progress import ShownProgress

    class Steps(ShownProgress):
        def started(self, *, expected_s: Sequence[tuple[Measure, float]], **more: Any) -> None:
            if expected_s:
                super().started(expected_s=expected_s, **more)

        def uncounted(self, *, n_cells: int) -> None:
            pass

    return Steps(debug=debug)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _counts(flag: str, text: str) -> tuple[int, ...]:
    """Positive whole numbers given as "64,128", each once. Raises RequestError, which names the flag."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise RequestError([f'{flag} {text}: expected positive whole numbers such as "64,128"'])
    return tuple(dict.fromkeys(map(int, parts)))


def _known(flag: str, value: str, known: Iterable[str]) -> None:
    """Raise RequestError, with the nearest name, unless the value is one of these."""
    if value not in known:
        raise RequestError([f"{flag} {value}: unknown{did_you_mean(value, known)}"])


def explain(
    run: RunFolder,
    cell: Annotated[str, typer.Argument(metavar="CELL", help="A cell's id, or how it begins; see cells.jsonl.")],
    other: Annotated[str | None, typer.Argument(metavar="CELL", help="A second cell, to see what differs.")] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Say why a cell of a run costs what it costs, or what makes two cost differently.

    The cell is built again in a fresh process and one call of it is looked at: time by operator, number of calls,
    launching, allocations, and how near it comes to this machine's peaks.

    Example: attnbench explain results/quickstart 41a0
    """
    from attnbench.explained import explain as explain_cells
    from attnbench.report import explanation

    found = explain_cells(run, [cell, *([other] if other else [])])
    facts = [(one.id, one.facts) for one in found]
    if as_json:
        cells = [
            {"cell": one.id, "title": one.title, "note": one.note} | explanation.derived(one.facts) for one in found
        ]
        differences = {"difference_s": explanation.differences(facts)} if len(facts) > 1 else {}
        print(json.dumps({"cells": cells} | differences, indent=2))
        return
    for one in found:
        print(f"{one.id}: {one.title}" + (f"; note: {one.note}" if one.note else ""))
    show(explanation.summary(facts))
    show(explanation.operators(facts))
