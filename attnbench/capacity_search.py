"""How much can a variant be trained to hold: the largest load of a task at which it still reaches 90 %, by bisection.

Each step is the same run gone on with, as in `crossover_search`: every training is an ordinary cell of one run folder,
and the same question asked again trains nothing. What is found is a capacity to learn within the given training, at
least as much as to hold. Where accuracy does not fall steadily with the load, it is the largest load that was learnt.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pandas import DataFrame

from attnbench.analyse.capacity import Found, found_in, next_loads
from attnbench.errors import RequestError
from attnbench.execute.listener import Listener
from attnbench.execute.tables import run_tables
from attnbench.protocol import LEARNED

MODEL = {"n_heads": 1, "n_layers": 2, "d_ff": 0}
TRAIN = {"steps": 1000, "batch_size": 32, "lr": 3e-3, "n_validation": 256, "n_test": 1024, "stop_at": 0.99}
TIMEOUT_S = 1800
OWN = ("variant", "task", "measure")  # keys of the grid that no override may change


@dataclass(frozen=True)
class Question:
    """Up to which load, of an integer option of a task, does each variant learn? overrides: as for --set."""

    variants: tuple[str, ...]
    task: str = "mqar"
    load: str = "n_pairs"
    d_model: int = 32
    T: int = 128
    low: int = 2
    high: int = 32
    overrides: tuple[str, ...] = ()
    plugins: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.low < self.high:
            raise RequestError([f"--low {self.low} --high {self.high}: expected 1 <= LOW < HIGH"])
        keys = [override.partition("=")[::2] for override in self.overrides]
        for key, value in ((key.strip(), value.strip()) for key, value in keys):
            if key in OWN:
                raise RequestError([f"--set {key}={value}: {key} is what the search itself decides; see --help"])
            if value.startswith("[") and "." not in key and key != "seed":
                raise RequestError([f"--set {key}={value}: expected one value; only seed may be a list here"])

    def __str__(self) -> str:
        return f"Up to which {self.load} of {self.task} does each variant reach {LEARNED:g}?"


class Search:
    """One search. Call `run` once.

    folder, shown, say: as in `crossover_search.Search`.
    """

    def __init__(
        self,
        question: Question,
        folder: Path,
        *,
        shown: Callable[[], AbstractContextManager[Listener]],
        say: Callable[[str], None],
    ) -> None:
        self.question, self.folder, self.shown, self.say = question, folder, shown, say
        self.loads: dict[str, list[int]] = {variant: [] for variant in question.variants}
        self.found = {variant: Found(variant, {}) for variant in question.variants}

    def run(self) -> list[Found]:
        """Search, all variants side by side. Raises RequestError before anything runs when the request is wrong."""
        while step := {variant: loads for variant in self.loads if (loads := self._wanted(variant))}:
            told = (f"{variant}: {', '.join(map(str, loads))}" for variant, loads in step.items())
            self.say(f"{self.question.load} of {'; '.join(told)}")
            for variant, loads in step.items():
                self.loads[variant] += loads
            frame = self._run()
            self.found = {variant: found_in(frame, variant, self.question.load) for variant in self.loads}
        return list(self.found.values())

    def _wanted(self, variant: str) -> list[int]:
        found = self.found[variant]
        wanted = [] if found.trouble else next_loads(found.scores, self.question.low, self.question.high)
        return [load for load in wanted if load not in self.loads[variant]]

    def _run(self) -> DataFrame:
        question = self.question
        defaults = MODEL | {"measure": ["accuracy"], "d_model": question.d_model, "T": question.T}
        tables: dict[str, Any] = {"question": str(question), "timeout": TIMEOUT_S, "defaults": defaults, "train": TRAIN}
        tables["grid"] = [
            {"variant": variants, "task": [{"name": question.task, question.load: load}], "seed": [0]}
            for load, variants in self._by_load().items()
        ]
        with TemporaryDirectory(prefix="attnbench-capacity-") as name, self.shown() as listener:
            asked = {"overrides": question.overrides, "plugins": question.plugins, "resume": True, "listener": listener}
            return run_tables(tables, Path(name), out=self.folder, **asked).frame

    def _by_load(self) -> dict[int, list[str]]:
        loads = sorted({load for chosen in self.loads.values() for load in chosen})
        return {load: [variant for variant, chosen in self.loads.items() if load in chosen] for load in loads}
