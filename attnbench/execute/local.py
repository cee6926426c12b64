"""Fresh processes on this machine: each job runs in a process of its own, with a time limit, and cannot harm another.

A forkserver that has imported torch (and run none of it) starts a process in tens of milliseconds with clean memory
statistics; where the system can have none, a spawned interpreter takes seconds and gives the same results.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any

from attnbench.errors import RequestError
from attnbench.execute import stages
from attnbench.execute.scratch import Scratch
from attnbench.out_of_memory import OOM_SIGNS, is_out_of_memory
from attnbench.registry import describe_error

PRELOAD = ["attnbench.execute.cell", "attnbench.execute.describe"]
PRELOAD_TRAINING = ["torch._dynamo"]  # the first optimiser of a process imports it, a second that belongs to no visit
LONGEST_SLEEP_S = 1e5  # poll(2) counts milliseconds in 32 bits
LONGEST_SOCKET = 103  # characters of a socket's path on the strictest system, macOS
SOCKET = "/pymp-12345678/listener-12345678"  # what multiprocessing adds to the temporary folder for a forkserver
SIGNAL_HINTS: dict[int, str] = {
    signal.SIGKILL: "perhaps out of memory",
    signal.SIGSEGV: "segmentation fault",
    signal.SIGABRT: "abort",
}


@dataclass(frozen=True)
class Job:
    """A call to make in a fresh process: `function` is named as module:function, so that the parent imports no torch.

    Arguments and result can be pickled.
    """

    function: str
    arguments: tuple[Any, ...]
    timeout_s: float | None = None
    tag: Any = None


@dataclass(frozen=True)
class Outcome:
    """How a job ended: `ok` with its value, or `oom`, `timeout`, `killed`, `failed` with a reason.

    seconds: from the request to the answer, the start of the process included. detail: traceback or last output.
    """

    status: str
    value: Any = None
    reason: str | None = None
    detail: str | None = None
    seconds: float = 0.0


@dataclass
class _Running:
    job: Job
    process: BaseProcess
    answers: Connection
    output: Path
    started_s: float
    stage: stages.Stage = field(default_factory=lambda: stages.Stage(""))

    def left_s(self) -> float | None:
        limit = self.job.timeout_s
        return None if limit is None else max(0.0, self.started_s + limit - time.perf_counter())


class FreshProcesses:
    """Runs jobs, each in a fresh process. Use as a context manager: leaving it ends whatever still runs.

    training: whether jobs will train models, so that what this needs is loaded once and not in each of them.
    """

    def __init__(self, start_method: str | None = None, *, training: bool = False) -> None:
        self.start_method = start_method or ("forkserver" if _can_have_a_forkserver() else "spawn")
        self._context: Any = multiprocessing.get_context(self.start_method)
        if self.start_method == "forkserver":
            self._context.set_forkserver_preload(PRELOAD + PRELOAD_TRAINING * training)
        self._running: list[_Running] = []
        self._scratch = Scratch()

    def __enter__(self) -> FreshProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def warm_up(self) -> None:
        """Wait until torch is loaded, which is to count against no job's limit."""
        self.call("os:getpid")

    def call(self, function: str, *arguments: Any, timeout_s: float | None = None) -> Outcome:
        """Run one job and wait for it."""
        return next(self.run([Job(function, arguments, timeout_s)], at_once=1))[1]

    def run(self, jobs: Iterable[Job], at_once: int) -> Iterator[tuple[Job, Outcome]]:
        """Run jobs, `at_once` side by side, and yield each with its outcome as it ends. The parent sleeps meanwhile."""
        waiting = iter(jobs)
        try:
            while True:
                while len(self._running) < at_once and (job := next(waiting, None)) is not None:
                    self._running.append(self._start(job))
                if not self._running:
                    return
                yield from self._finished()
        finally:
            self.stop_jobs()

    def stop_jobs(self) -> None:
        """End every process that still runs, and whatever it started."""
        for running in self._running:
            _kill(running)
        self._running.clear()

    def stop(self) -> None:
        """End everything and remove the folder of captured output."""
        self.stop_jobs()
        self._scratch.remove()

    def _start(self, job: Job) -> _Running:
        answers, theirs = self._context.Pipe(duplex=False)
        handle, output = tempfile.mkstemp(dir=self._scratch.path)
        os.close(handle)
        started_s = time.perf_counter()
        process = self._context.Process(target=_child, args=(theirs, output, job.function, job.arguments))
        with _hidden_main(), _deaf_to_interrupts():
            process.start()
        theirs.close()
        return _Running(job, process, answers, Path(output), started_s)

    def _finished(self) -> Iterator[tuple[Job, Outcome]]:
        """Sleep until a process answers, dies or runs out of time; yield what has ended."""
        limits = [left for running in self._running if (left := running.left_s()) is not None]
        doors = [door for running in self._running for door in (running.answers, running.process.sentinel)]
        ready = wait(doors, min([*limits, LONGEST_SLEEP_S]))
        for running in list(self._running):
            outcome = None
            if running.answers in ready or running.process.sentinel in ready:
                outcome = _outcome(running)
            if outcome is None and running.left_s() == 0.0:
                outcome = _ended(running, "timeout", f"ran past its limit of {running.job.timeout_s:g} s")
            if outcome is None:
                continue
            self._running.remove(running)
            _kill(running)
            yield running.job, _timed(outcome, running)


def _child(answers: Connection, output: str, function: str, arguments: tuple[Any, ...]) -> None:
    """Run in the fresh process: a process group of its own, output captured, no life beyond the parent's."""
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)  # so that whatever a plugin starts ends with us, and Ctrl-C reaches the parent alone
    _die_with_parent()
    with open(output, "ab", buffering=0) as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    stages.listen(answers.send)
    try:
        module, _, name = function.partition(":")
        answers.send(Outcome("ok", getattr(import_module(module), name)(*arguments)))
    except RequestError as error:
        answers.send(Outcome("failed", reason=str(error), detail=_traceback(error)))
    except BaseException as error:
        status = "oom" if is_out_of_memory(error) else "failed"
        answers.send(Outcome(status, reason=describe_error(error), detail=_traceback(error)))
    finally:
        answers.close()


def _traceback(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def _die_with_parent() -> None:
    """Leave once the parent is gone, however it went."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_leave_after, args=(parent,), daemon=True).start()


def _leave_after(parent: Any) -> None:
    parent.join()
    with suppress(OSError, AttributeError):
        os.killpg(os.getpid(), signal.SIGKILL)  # this process and what a plugin started in it
    os._exit(1)


def _outcome(running: _Running) -> Outcome | None:
    """What a process that answered or died has to say; None when it only said what it is at."""
    alive = running.process.is_alive()  # asked first: what a dead process has written is in the pipe by now
    try:
        while running.answers.poll():
            answer: Outcome | stages.Stage = running.answers.recv()
            if isinstance(answer, Outcome):
                return answer
            running.stage = answer
    except (EOFError, OSError):
        alive = False  # it died while it answered
    except Exception as error:  # an object of a plugin's own, say
        return Outcome("failed", reason=f"its answer cannot be read: {describe_error(error)}")
    return None if alive else _died(running)


def _died(running: _Running) -> Outcome:
    """What became of a process that ended without an answer."""
    running.process.join(timeout=5)
    code = running.process.exitcode
    output = _tail(running.output)
    if any(sign in output for sign in OOM_SIGNS):
        return Outcome("oom", reason=_last_line(output), detail=output)
    if code is not None and code < 0:
        hint = SIGNAL_HINTS.get(-code) or signal.strsignal(-code)
        return _ended(running, "killed", f"killed (signal {-code}, {hint})", output)
    return _ended(running, "failed", f"the process ended by itself with status {code}", output)


def _ended(running: _Running, status: str, reason: str, detail: str | None = None) -> Outcome:
    """The outcome of a process that gave none itself, with the stage that it was at."""
    where = f" while {running.stage.words}" if running.stage.words else ""
    return Outcome(status, reason=reason + where, detail=detail)


def _timed(outcome: Outcome, running: _Running) -> Outcome:
    return replace(outcome, seconds=time.perf_counter() - running.started_s)


def _kill(running: _Running) -> None:
    """End a process and its group, and let go of what belonged to it."""
    pid = running.process.pid
    with suppress(OSError):
        if pid is not None and hasattr(os, "killpg"):
            os.killpg(pid, signal.SIGKILL)
    with suppress(OSError):
        running.process.kill()
    running.process.join()
    running.process.close()
    running.answers.close()
    running.output.unlink(missing_ok=True)


def _tail(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(errors="replace")[-4000:]
    return ""


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def _can_have_a_forkserver() -> bool:
    """Whether the system has one, and a temporary folder whose name leaves room for its socket's."""
    offered = "forkserver" in multiprocessing.get_all_start_methods()
    return offered and len(os.fsencode(tempfile.gettempdir() + SOCKET)) <= LONGEST_SOCKET


_MAIN = threading.Lock()  # runs in several threads of one program would take each other's stand-in for the script


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """What starts within does not hear Ctrl-C, which is for this process alone: it hears it when the block ends.

    A forkserver that is interrupted while it still imports would print its traceback.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _hidden_main() -> Iterator[None]:
    """Keep multiprocessing from running the caller's main script again in each child.

    Our jobs never live in __main__, and a script without a main guard would start processes for ever.
    """
    with _MAIN:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main
