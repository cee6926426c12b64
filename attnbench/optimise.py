"""One step of training: AdamW with the treatments that variants declare, the schedule, clipping."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from attnbench.mixer import Mixer
from attnbench.positions import Positions
from attnbench.scoring import Chunk, Hidden, outputs_of
from attnbench.settings import DType, TrainSettings
from attnbench.transformer import Model

FUSED_ON = ("cpu", "cuda")  # devices on which AdamW is one kernel for all parameters


def adamw(model: nn.Module, lr: float, weight_decay: float) -> AdamW:
    """The optimiser of a trial: all parameters in one kernel where their device and dtypes take it."""
    parameters = [*model.parameters()]
    fused = all(p.device.type in FUSED_ON and p.is_floating_point() for p in parameters)
    return AdamW(parameter_groups(model, lr, weight_decay), fused=fused)


def train_step(
    model: Model,
    chunk: Chunk,
    optimizer: AdamW,
    clip: float,
    *,
    amp: DType | None = None,
    hidden: Hidden | None = None,
) -> Tensor:
    """One update; returns the batch's mean loss, still on its device, so that no step waits for a device.

    amp: the dtype in which the forward pass multiplies matrices, see `autocast`. Losses are float32 at the least.
    hidden: stands in for the model's own, see `hidden_of`.
    """
    with autocast(chunk.labels.device, amp):
        outputs = outputs_of(model, chunk, hidden)
    loss = chunk.losses(outputs).sum() / max(1, len(chunk.labels))
    torch.autograd.backward(loss)
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def autocast(device: torch.device, amp: DType | None) -> torch.autocast:
    """torch's mixed precision in this dtype; None leaves everything in the dtype of the parameters."""
    dtype = torch.bfloat16 if amp is None else getattr(torch, amp)
    return torch.autocast(device.type, dtype, enabled=amp is not None)


def hidden_of(model: Model, compile: bool) -> Hidden:
    """What stands before the head, compiled where wanted, for the shapes of a training batch."""
    return torch.compile(model.hidden, dynamic=False) if compile else model.hidden


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
