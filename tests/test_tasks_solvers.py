"""Every installed task and its solver: the answers of the solver, from inputs alone, are the labels."""

from dataclasses import replace

import pytest
import torch
from torch import Generator

from attnbench import registry
from attnbench.tasks import IGNORE, Batch, Task

SOURCES = registry.installed(registry.TASKS)
N = 40


def task_class(name: str) -> type[Task]:
    return registry.load(SOURCES[name])


def lengths_of(cls: type[Task]) -> list[int]:
    return sorted({cls.min_T(), cls.usual_T})


def unlabelled(batch: Batch) -> Batch:
    """What a model reads, and nothing of the answers."""
    nothing = torch.full_like(batch.labels, IGNORE)
    return replace(batch, labels=nothing, slices=torch.full_like(batch.slices, -1), numbers=None)


@pytest.mark.parametrize("name", SOURCES)
def test_the_solver_finds_every_answer_from_the_inputs_alone(name):
    cls = task_class(name)
    for T in lengths_of(cls):
        for seed in (0, 1):
            task = cls(T)
            batch = task.sample(N, Generator().manual_seed(seed))
            scored = batch.labels != IGNORE
            found = task.solve(unlabelled(batch))
            assert found.shape == (N, T)
            if task.ceiling < 1:  # noisy answers: the audit measures how many are found
                continue
            if batch.numbers is None:
                assert torch.equal(found[scored], batch.labels[scored])
            else:
                assert torch.allclose(found[scored], batch.numbers[scored], atol=1e-4)


@pytest.mark.parametrize("name", SOURCES)
def test_a_batch_holds_what_its_task_says(name):
    cls = task_class(name)
    for T in lengths_of(cls):
        task = cls(T)
        batch = task.sample(N, Generator().manual_seed(0))
        scored = batch.labels != IGNORE
        assert batch.tokens.shape == batch.labels.shape == batch.slices.shape == (N, T)
        assert {part.dtype for part in (batch.tokens, batch.labels, batch.slices)} == {torch.int64}
        assert ((batch.tokens >= 0) & (batch.tokens < task.vocab_size)).all()
        assert ((batch.labels[scored] >= 0) & (batch.labels[scored] < task.vocab_size)).all()
        assert scored.any()
        assert torch.equal(batch.slices >= 0, scored)
        assert (batch.slices < len(task.slice_names)).all()
        assert (batch.values is not None) == task.reads_values
        assert (batch.numbers is not None) == (task.answers == "number")
        assert (batch.source is not None) == (task.kind == "seq2seq")


@pytest.mark.parametrize("name", SOURCES)
def test_sizes_are_shares_and_names_are_no_two_alike(name):
    task = task_class(name)(task_class(name).usual_T)
    assert 0 <= task.chance <= task.floor < task.ceiling <= 1
    assert task.floor_from
    assert len(set(task.slice_names)) == len(task.slice_names)


@pytest.mark.parametrize("name", SOURCES)
def test_below_the_smallest_length_a_task_refuses_and_names_it(name):
    cls = task_class(name)
    if cls.min_T() > 1:
        with pytest.raises(ValueError, match=str(cls.min_T())):
            cls(cls.min_T() - 1)


@pytest.mark.parametrize("name", SOURCES)
def test_global_random_numbers_play_no_part(name):
    task = task_class(name)(task_class(name).usual_T)
    batches = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        batches.append(task.sample(N, Generator().manual_seed(0)))
    assert torch.equal(batches[0].inputs, batches[1].inputs)
    assert torch.equal(batches[0].labels, batches[1].labels)
