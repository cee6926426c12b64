"""The command line: parse, call, print. Exit status 0 all as asked, 1 something failed, 2 the request was wrong."""

from __future__ import annotations

import importlib.metadata
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnbench import audit_command, commands, questions, registry, tasks_command
from attnbench.check_command import check
from attnbench.claims.command import claims
from attnbench.commands import AsJson, Debug
from attnbench.errors import RequestError
from attnbench.registry import describe_error
from attnbench.targets import ask, seconds, sources_with
from attnbench.terminal import StoppedError, speak_plainly, stop_in_good_order
from attnbench.theory.command import theory
from attnbench.wording import printable

if TYPE_CHECKING:
    from attnbench.records import Run

app = typer.Typer(
    name="attnbench",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="What an attention variant costs, and what it can learn, over sequence length T and width d.\n\n"
    "Example: attnbench run experiments/quickstart.toml --out my_run",
)

Plugins = Annotated[list[Path], typer.Option("--plugin", metavar="FILE", help="A plugin file; may be repeated.")]


def _print_version(asked: bool) -> None:
    if asked:
        print(f"attnbench {importlib.metadata.version('attnbench')}")
        raise typer.Exit


@app.callback()
def _before_any(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command("run")
def run_command(
    sweep: Annotated[Path, typer.Argument(metavar="SWEEP", help="A sweep file (TOML).")],
    out: Annotated[Path | None, typer.Option(help="The run folder; default a new one under results/.")] = None,
    overrides: Annotated[
        list[str],
        typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. T=[64,128] or train.steps=100."),
    ] = [],
    plugin: Plugins = [],
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an earlier run of this folder.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Forget an earlier run of this folder.")] = False,
    retry: Annotated[
        list[str], typer.Option("--retry", metavar="STATUS", help="Try again what ended so; goes with --resume.")
    ] = [],
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop at the first cell that goes wrong.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would run, and run nothing.")] = False,
    budget: Annotated[
        str | None,
        typer.Option(help='Begin no visit after so long, e.g. "10m"; what is left over narrows intervals.'),
    ] = None,
    timeout: Annotated[str | None, typer.Option(help='Limit of each visit, e.g. "60s".')] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Visits side by side; timing is always one by one.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Run a sweep file and write its report.

    Every cell runs in fresh processes; records are kept as they come.

    Example: attnbench run experiments/quickstart.toml --out my_run --set "T=[64,256]"
    """
    from attnbench.execute.runner import check_request, run
    from attnbench.progress import ShownProgress

    check_request(out=out, resume=resume, overwrite=overwrite, retry=retry)
    asked: dict[str, Any] = {"plugins": plugin, "timeout_s": seconds("--timeout", timeout)}
    budget_s = seconds("--budget", budget)
    if dry_run:
        _show_plan(sweep, overrides, workers, **asked)
        return
    asked |= {"overrides": overrides, "resume": resume, "overwrite": overwrite, "retry": retry}
    asked |= {"workers": workers, "fail_fast": fail_fast, "budget_s": budget_s}
    try:
        with ShownProgress(debug=debug) as progress:
            made = run(sweep, out=out, listener=progress, **asked)
    except StoppedError as stop:
        _complain(f"{stop}; {_how_to_go_on(out, progress.folder, overwrite)}", debug=debug)
        raise typer.Exit(stop.status) from None
    _report([made.path])
    _print_disturbed(made)
    n_pending = made.counts.get("pending", 0)
    if budget and n_pending and not fail_fast:
        print(f"the budget of {budget} is spent, {n_pending} cells pending; {_how_to_go_on(out, made.path, overwrite)}")
    raise typer.Exit(0 if made.as_asked else 1)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="A run folder, or several.")],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder of the report; default RUN, if it is one.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Write a run's tables, plots and report.html.

    Several runs, of a CPU and of a GPU say, are shown side by side.

    Example: attnbench report my_run
    """
    _report(runs, out)


app.command()(commands.plot)
app.command()(commands.table)


app.command()(check)
app.command("try")(questions.try_variant)
app.command()(audit_command.audit)
app.command()(questions.crossover)
app.command()(questions.capacity)
app.command()(questions.explain)
app.command()(commands.new)
app.command()(theory)
app.command()(claims)
app.command()(commands.doctor)


@app.command()
def variants(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show one variant whole.")] = None,
    roles: Annotated[bool, typer.Option("--roles", help="What each can do, and why it cannot.")] = False,
    plugin: Plugins = [],
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List the variants, or show one whole.

    The list imports none of them. With NAME: options, claim, roles and reasons. With --roles: what each can do.

    Example: attnbench variants window
    """
    broken: list[str] = []
    if plugin or name or roles:
        from attnbench.execute.local import FreshProcesses

        with FreshProcesses() as processes:
            sources, broken = sources_with(processes, plugin)
            if name:
                registry.find(name, sources, broken=broken)
            if roles:
                asked = {name: sources[name]} if name else sources
                found, unloaded = ask(processes, "abilities", asked, module="abilities")
                commands.show_abilities(found, [*broken, *unloaded], as_json=as_json)
                return
            if name:
                commands.show_facts(ask(processes, "profile", name, sources), as_json)
                return
    else:
        sources = registry.installed(registry.VARIANTS)
    commands.show_sources(sources, broken, as_json)


app.command()(tasks_command.tasks)


def main() -> None:
    """Run the command line; a wrong request is told in one line per mistake."""
    debug = "--debug" in sys.argv
    speak_plainly()
    stop_in_good_order()
    try:
        app()
    except StoppedError as stop:
        _complain(str(stop), debug=debug)
        sys.exit(stop.status)
    except RequestError as error:
        _complain(*error.mistakes, debug=debug)
        sys.exit(2)
    except OSError as error:
        _complain(f"{error.filename or 'writing'}: {error.strerror or error}{_kept()}", debug=debug)
        sys.exit(1)
    except Exception as error:
        _complain(f"a fault of attnbench: {describe_error(error)}{_kept()}", debug=debug)
        sys.exit(1)


def _kept() -> str:
    """What a person fears for when a command that measures breaks off."""
    return "; what was measured is kept" if sys.argv[1:2] == ["run"] else ""


def _print_disturbed(made: Run) -> None:
    if made.n_disturbed:
        print(f"note: {made.n_disturbed} of {len(made.frame)} cells without an undisturbed time", file=sys.stderr)


def _how_to_go_on(out: Path | None, folder: Path | None, overwrite: bool) -> str:
    """What to say to the shell so that a run goes on where it stopped."""
    where = f"--out {folder} " if out is None and folder else ""
    return f"the same command with {where}--resume{' instead of --overwrite' if overwrite else ''} goes on from here"


def _complain(*lines: str, debug: bool) -> None:
    """Tell what went wrong, a line each."""
    if debug:
        traceback.print_exc()
    for line in lines:
        print(f"error: {printable(line)}", file=sys.stderr)


def _report(runs: list[Path], out: Path | None = None) -> None:
    """Write the report and say in two lines what there is to see."""
    from attnbench.report import of_runs

    page, frame = of_runs(runs, out)
    counts = {str(status): int(n) for status, n in frame["status"].value_counts().items()}
    others = ", ".join(f"{n} {status}" for status, n in counts.items() if status != "ok")
    print(f"{counts.get('ok', 0)} of {len(frame)} cells ok{f'; {others}' if others else ''}")
    print(f"report: {page}")


def _show_plan(sweep: Path, overrides: list[str], workers: int | None, **asked: Any) -> None:
    from attnbench.dry_run import changes, show
    from attnbench.execute.local import FreshProcesses
    from attnbench.execute.plan import make_plan
    from attnbench.measure.machine import usable_cores
    from attnbench.sweep_file import read_toml

    tables = read_toml(sweep, overrides)
    with FreshProcesses() as processes:
        plan = make_plan(processes, sweep, tables, **asked)
    show(plan, list(changes(read_toml(sweep), tables)), workers or usable_cores())


if __name__ == "__main__":
    main()
