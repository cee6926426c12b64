"""Steps of training per second against a plain loop over the same model, interleaved in one process.

The plain loop draws each batch as it needs it, makes logits at every position and updates with AdamW as it comes.
Seconds are CPU seconds of this process, so that what else runs weighs little. Run it with `make bench`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from importlib.metadata import entry_points
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Generator, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from attnbench.optimise import adamw, lr_factor, train_step
from attnbench.scoring import chunks_of
from attnbench.settings import TrainSettings
from attnbench.splits import training_batches
from attnbench.tasks import IGNORE
from attnbench.tasks.mqar import MQAR
from attnbench.transformer import LanguageModel

B, N_ROUNDS, N_STEPS = 64, 10, 40
TASK = MQAR(64, n_pairs=8, vocab_size=128)
SETTINGS = TrainSettings(steps=10**6, batch_size=B, lr=[3e-3])
TARGET = 1.5


def model() -> LanguageModel:
    torch.manual_seed(0)
    (point,) = entry_points(group="attnbench.variants", name="fused")
    return LanguageModel(
        vocab_size=TASK.vocab_size, d_model=64, n_heads=1, n_layers=2, max_T=TASK.T, mixer=point.load(), d_ff=0
    )


def plain() -> Iterator[None]:
    made, generator = model(), Generator().manual_seed(0)
    optimizer = AdamW(made.parameters(), lr=3e-3, weight_decay=0.1)
    while True:
        batch = TASK.sample(B, generator)
        loss = F.cross_entropy(made(batch.tokens).flatten(0, 1), batch.labels.flatten(), ignore_index=IGNORE)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(made.parameters(), 1.0)
        optimizer.step()
        yield


def ours() -> Iterator[None]:
    made = model()
    optimizer = adamw(made, 3e-3, 0.1)
    schedule = LambdaLR(optimizer, lambda step: lr_factor(step, SETTINGS))
    for batch in training_batches(TASK, B, 0):
        for chunk in chunks_of(batch, B, torch.device("cpu")):
            train_step(made, chunk, optimizer, SETTINGS.clip)
            schedule.step()
            yield


def seconds(steps: Iterator[None], n: int) -> float:
    """CPU seconds of n steps."""
    start = time.process_time()
    for _ in islice(steps, n):
        pass
    return time.process_time() - start


def test_training_against_a_plain_loop(benchmark):
    loops = plain(), ours()
    benchmark.pedantic(next, (loops[1],), rounds=3, warmup_rounds=1)
    if not benchmark.enabled:
        return
    for steps in loops:
        seconds(steps, 10)
    rounds = [[seconds(steps, N_STEPS) for steps in loops] for _ in range(N_ROUNDS)]
    plain_s, ours_s = (statistics.median(times) / N_STEPS for times in zip(*rounds, strict=True))
    ratio = statistics.median(slow / fast for slow, fast in rounds)
    benchmark.extra_info |= {"ratio": ratio, "target": TARGET}
    print(f"\n{1e3 * plain_s:.2f} ms a step plain, {1e3 * ours_s:.2f} ms here: ratio {ratio:.3f}, target {TARGET}")
