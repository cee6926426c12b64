"""One step of training: AdamW with the treatments that variants declare, the schedule, clipping."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from attnbench.mixer import Mixer
from attnbench.positions import Positions
from attnbench.scoring import Chunk, outputs_of
from attnbench.settings import TrainSettings
from attnbench.transformer import Model


def train_step(model: Model, chunk: Chunk, optimizer: AdamW, clip: float) -> Tensor:
    """One update; returns the batch's mean loss, still on its device, so that no step waits for a device."""
    loss = chunk.losses(outputs_of(model, chunk)).sum() / max(1, len(chunk.labels))
    torch.autograd.backward(loss)
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def parameter_groups(model: nn.Module, lr: float, weight_decay: float) -> list[dict[str, Any]]:
    """Groups by weight decay (matrices only; embeddings and no_decay excepted) and by factor on the learning rate."""
    exempt = {p for m in model.modules() if isinstance(m, nn.Embedding | Positions) for p in m.parameters()}
    scale: dict[nn.Parameter, float] = {}
    for mixer in (m for m in model.modules() if isinstance(m, Mixer)):
        named = dict(mixer.named_parameters())
        if unknown := sorted({*mixer.no_decay, *mixer.lr_scale} - named.keys()):
            raise ValueError(f"{type(mixer).__name__} has no parameter {', '.join(unknown)} to treat apart")
        exempt |= {named[name] for name in mixer.no_decay}
        scale |= {named[name]: factor for name, factor in mixer.lr_scale.items()}
    groups: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for p in model.parameters():
        groups.setdefault((p.ndim >= 2 and p not in exempt, scale.get(p, 1.0)), []).append(p)
    return [
        {"params": params, "lr": lr * factor, "weight_decay": weight_decay if decays else 0.0}
        for (decays, factor), params in groups.items()
    ]


def lr_factor(step: int, settings: TrainSettings) -> float:
    """Linear warm-up to 1, then a cosine to 0.1 at the last step."""
    n_warmup = round(settings.warmup * settings.steps)
    if step < n_warmup:
        return (step + 1) / n_warmup
    progress = (step - n_warmup) / max(1, settings.steps - 1 - n_warmup)
    return 0.55 + 0.45 * math.cos(math.pi * min(1.0, progress))
