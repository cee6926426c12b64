"""Faults that benchmarks have really had, put into copies of attnbench one by one: each has to turn its test red.

`python tests/faults.py` prints the table; its exit status is 1 when a fault passes, or a test fails without one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Fault:
    """One line of a source file as it is and as it would be wrong, and the test that has to notice."""

    name: str
    file: str
    right: str
    wrong: str
    test: str

    def plant(self, root: Path) -> None:
        """Write it into the copy of attnbench at root. Raises ValueError unless the line stands there once."""
        path = root / self.file
        source = path.read_text()
        if source.count(self.right) != 1:
            raise ValueError(
                f"{self.name}: {self.file} has {self.right!r} {source.count(self.right)} times, expected 1"
            )
        path.write_text(source.replace(self.right, self.wrong))


FAULTS = (
    Fault(
        "test data in training",
        "attnbench/splits.py",
        "yield block.rows(in_split(block.inputs, split))",
        "yield block",
        "tests/test_tasks.py::test_splits_share_no_sequence_even_where_plain_draws_would",
    ),
    Fault(
        "padding counted as right",
        "attnbench/scoring.py",
        "labels, slices = part.labels.flatten(), part.slices.flatten()",
        "labels, slices = part.labels.flatten().clamp(min=0), part.slices.flatten().clamp(min=0)",
        "tests/test_train.py::test_positions_without_a_label_are_neither_right_nor_wrong",
    ),
    Fault(
        "mean over batches",
        "attnbench/scoring.py",
        "accuracy=right.sum().item() / len(right),",
        "accuracy=sum(right[row == i].double().mean().item() for i in set(row.tolist())) / len(set(row.tolist())),",
        "tests/test_train.py::test_totals_are_summed_over_tokens_and_not_averaged_over_batches",
    ),
    Fault(
        "batch taken for time",
        "variants/recurrent.py",
        "layer = cls.layer_class(d_in, d_out, batch_first=True)",
        "layer = cls.layer_class(d_in, d_out, batch_first=False)",
        "tests/test_learning.py::test_recurrences_take_time_for_time_and_learn_what_was_some_steps_ago",
    ),
    Fault(
        "settings chosen on test data",
        "attnbench/train.py",
        "trials, best, model = _tried(build, task, settings, seed, validation, device)",
        "trials, best, model = _tried(build, task, settings, seed, test, device)",
        "tests/test_train.py::test_the_learning_rate_is_chosen_on_validation_and_never_on_test",
    ),
    Fault(
        "best over test steps",
        "attnbench/train.py",
        "        return self.curve[-1][1], self.curve[-1][2]",
        "        return max((accuracy, loss) for _, accuracy, loss in self.curve)",
        "tests/test_protocol.py::test_a_trial_is_scored_with_the_weights_of_the_step_that_it_is_judged_at",
    ),
    Fault(
        "seed ignored",
        "attnbench/splits.py",
        "[type(task).__name__, task.T, task.options, seed, split]",
        "[type(task).__name__, task.T, task.options, 0, split]",
        "tests/test_tasks.py::test_data_depend_on_task_options_length_seed_and_split_and_on_nothing_else",
    ),
    Fault(
        "data differ by variant",
        "attnbench/splits.py",
        "generator = Generator().manual_seed(_digest(task, split, seed))",
        "generator = torch.default_generator",
        "tests/test_train.py::test_every_variant_meets_the_same_data",
    ),
    Fault(
        "brackets dropped",
        "attnbench/tasks/listops.py",
        "tokens[:, : self.shape.max_length] = expressions",
        "tokens[:, : self.shape.max_length] = expressions.masked_fill(expressions == CLOSE, PADDING)",
        "tests/test_tasks_audit.py::test_every_installed_task_passes_its_audit[listops]",
    ),
    Fault(
        "labels shifted by one",
        "attnbench/tasks/mqar.py",
        "return Batch(tokens, labels, slices)",
        "return Batch(tokens, labels.roll(1, dims=1), slices.roll(1, dims=1))",
        "tests/test_tasks_audit.py::test_every_installed_task_passes_its_audit[mqar]",
    ),
    Fault(
        "chance misreported",
        "attnbench/tasks/mqar.py",
        "self.chance, self.floor = 2 / vocab_size, 1 / n_pairs",
        "self.chance, self.floor = 1 / vocab_size, 1 / vocab_size",
        "tests/test_tasks_audit.py::test_every_installed_task_passes_its_audit[mqar]",
    ),
)


def copied(folder: Path) -> Path:
    """A copy of the sources and tests that Python prefers to the installed attnbench."""
    for name in ("attnbench", "variants", "tests", "experiments"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "attnbench_variants").symlink_to("variants")
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def passes(root: Path, test: str) -> bool:
    """Whether a test passes in the copy. Raises RuntimeError when it cannot be run."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-n", "0", test]
    env = os.environ | {"PYTHONPATH": str(root)}
    done = subprocess.run(command, check=False, cwd=root, env=env, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{test} did not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode == 0


def outcome(fault: Fault, sound: Path) -> str:
    """`caught`, or what is wrong; sound: a copy without a fault, where the same test has to pass."""
    if not passes(sound, fault.test):
        return "its test fails without it"
    with tempfile.TemporaryDirectory() as folder:
        root = copied(Path(folder))
        fault.plant(root)
        return "missed" if passes(root, fault.test) else "caught"


def main() -> int:
    """Print what became of each fault."""
    with tempfile.TemporaryDirectory() as folder:
        sound = copied(Path(folder))
        outcomes = []
        for fault in FAULTS:
            outcomes.append(outcome(fault, sound))
            print(f"{fault.name:30} {outcomes[-1]:10} {fault.test}", flush=True)
    return int(any(found != "caught" for found in outcomes))


if __name__ == "__main__":
    sys.exit(main())
