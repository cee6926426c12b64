"""A cell as something that can be called: the module at its level and ready inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.compiler.config
from torch import Tensor, nn

from attnbench import blame
from attnbench.cells import Cell
from attnbench.mixer import Attention, Mixer, Spec
from attnbench.tasks import Task
from attnbench.transformer import Block, EncoderDecoder, LanguageModel, MixerFactory, Model, n_params_body

TRAINING_PHASES = ("backward", "forward_backward", "train_step")
MODEL_VOCAB = 256  # of a timed language model; small, so that mixing is not drowned by the head


@dataclass(frozen=True)
class Workload:
    """module: what the cell measures, parameters and all. mixers: those in it, one per layer.

    inputs: tensors made outside the clock. forward: one forward pass over them, giving output_shape in dtype.
    prefill: reads them as a prompt and returns outputs and state. step: mixes one more token into such a state.
    """

    module: nn.Module
    mixers: tuple[Mixer, ...]
    inputs: tuple[Tensor, ...]
    forward: partial[Tensor]
    prefill: Callable[[], tuple[Tensor, Any]]
    step: Callable[[Any], object]
    output_shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def n_params(self) -> int:
        """Parameters of the module, of all its layers."""
        return sum(parameter.numel() for parameter in self.module.parameters())

    @property
    def parameters(self) -> list[Tensor]:
        """Parameters of the module and, where a core uses them without it, of its mixers."""
        return list(dict.fromkeys(part for owner in (self.module, *self.mixers) for part in owner.parameters()))

    @property
    def n_params_body(self) -> int:
        """Those that neither the vocabulary nor the positions of a model ask for."""
        return n_params_body(self.module)

    @property
    def param_bytes(self) -> int:
        """Bytes of parameters and buffers."""
        tensors = [*self.module.parameters(), *self.module.buffers()]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def spec_of(cell: Cell) -> Spec:
    """What the cell's mixer is told."""
    return Spec(cell.d_model, cell.n_heads, cell.max_T, cell.role)


def mixer_factory(cell: Cell, classes: Sequence[type[Mixer]]) -> MixerFactory:
    """What builds the cell's mixers: layer i is part i of its stack, counted round and round.

    classes: one per part of the cell.
    """

    def mixer(spec: Spec) -> Mixer:
        part = spec.layer % len(classes)
        return blame.built(classes[part], spec, **cell.parts[part].options)

    return mixer


def language_model(
    cell: Cell, mixer: MixerFactory, vocab_size: int, *, n_outputs: int | None = None, reads_values: bool = False
) -> LanguageModel:
    """The model of a cell at level model in its dtype, freshly initialised from torch's global generator."""
    model = LanguageModel(
        vocab_size=vocab_size, n_outputs=n_outputs, reads_values=reads_values, role=cell.role, **_sizes(cell, mixer)
    )
    return model.to(getattr(torch, cell.dtype))


def encoder_decoder(cell: Cell, mixer: MixerFactory, cross: MixerFactory, vocab_size: int) -> EncoderDecoder:
    """The model of a cell whose task is sequence to sequence: the variant in both stacks, `cross` between them."""
    model = EncoderDecoder(vocab_size=vocab_size, cross=cross, **_sizes(cell, mixer))
    return model.to(getattr(torch, cell.dtype))


def _sizes(cell: Cell, mixer: MixerFactory) -> dict[str, Any]:
    return {
        "d_model": cell.d_model,
        "n_heads": cell.n_heads,
        "n_layers": cell.n_layers or 1,
        "max_T": cell.max_T,
        "mixer": mixer,
        "d_ff": cell.d_ff,
        "positions": cell.positions,
        "embedding_std": cell.embedding_std or 0.02,
    }


def task_model(cell: Cell, mixer: MixerFactory, cross: MixerFactory | None, task: Task, *others: Task) -> Model:
    """The model of an accuracy cell, as its task needs it, with the largest vocabulary of this and the other tasks."""
    vocab_size = max(one.vocab_size for one in (task, *others))
    if cross is not None:
        return encoder_decoder(cell, mixer, cross, vocab_size)
    n_outputs = 1 if task.answers == "number" else None
    return language_model(cell, mixer, vocab_size, n_outputs=n_outputs, reads_values=task.reads_values)


def build_module(cell: Cell, mixer: MixerFactory) -> nn.Module:
    """The module that a timed cell measures, on its device and in its dtype."""
    if cell.level == "model":
        module: nn.Module = language_model(cell, mixer, MODEL_VOCAB)
    elif cell.level == "block":
        module = Block(mixer(spec_of(cell)), d_ff=cell.d_ff or 0)
    else:
        module = mixer(spec_of(cell))
    return module.to(device=cell.device, dtype=getattr(torch, cell.dtype)).train(cell.phase in TRAINING_PHASES)


def build_workload(cell: Cell, module: nn.Module) -> Workload:
    """Inputs and calls for a module that `build_module` made."""
    if cell.level == "core":
        return _core(cell, module)
    if isinstance(module, LanguageModel):
        return _model(cell, module)
    if not isinstance(module, Mixer | Block):
        raise TypeError(f"level {cell.level} measures a mixer or a block, got {type(module).__name__}")
    x = _normal(cell, cell.T)
    taken = {"context": _normal(cell, cell.S)} if cell.role == "cross" else {}
    return Workload(
        module=module,
        mixers=mixers_of(module),
        inputs=(x, *taken.values()),
        forward=partial(module, x, **taken),
        prefill=partial(module.prefill, x, **taken),
        step=partial(module.step, x[:, -1].detach()),
        output_shape=tuple(x.shape),
        dtype=x.dtype,
    )


def compiled(work: Workload) -> Workload:
    """The same with its forward pass compiled for its shapes, anew in each process so that this can be timed."""
    torch.compiler.config.force_disable_caches = True
    run = torch.compile(work.forward.func, dynamic=False)
    return replace(work, forward=partial(run, *work.forward.args, **work.forward.keywords))


def _model(cell: Cell, module: LanguageModel) -> Workload:
    tokens = torch.randint(MODEL_VOCAB, (cell.B, cell.T), device=cell.device)
    return Workload(
        module=module,
        mixers=mixers_of(module),
        inputs=(tokens,),
        forward=partial(module, tokens),
        prefill=partial(module.prefill, tokens),
        step=partial(module.step, tokens[:, -1]),
        output_shape=(cell.B, cell.T, MODEL_VOCAB),
        dtype=getattr(torch, cell.dtype),
    )


def _core(cell: Cell, mixer: nn.Module) -> Workload:
    """Attend alone, on ready queries, keys and values; projections are outside a core, and so are parameters."""
    if not isinstance(mixer, Attention):
        raise TypeError(f"{cell.variant} has no queries and keys, so no level core")
    with torch.no_grad():
        x = _normal(cell, cell.T)
        projected = mixer.project(x, x if cell.S == cell.T and cell.role != "cross" else _normal(cell, cell.S))
    ready = tuple(part.detach().clone().requires_grad_() for part in projected)
    return Workload(
        module=nn.ModuleList(),
        mixers=(mixer,),
        inputs=ready,
        forward=partial(mixer.attend, *ready, key_mask=None),
        prefill=_no_decoding,
        step=_no_decoding,
        output_shape=(cell.B, mixer.spec.n_heads, cell.T, mixer.d_v),
        dtype=x.dtype,
    )


def _no_decoding(*_: object) -> Any:
    raise TypeError("a core does not decode")


def mixers_of(module: nn.Module) -> tuple[Mixer, ...]:
    """The mixer of each block, in order, or the one that the module is. A mixer inside a mixer is its own affair."""
    blocks = [part for part in module.modules() if isinstance(part, Block)]
    return tuple(block.mixer for block in blocks) or tuple(part for part in [module] if isinstance(part, Mixer))


def _normal(cell: Cell, length: int) -> Tensor:
    """(B, length, d_model), standard normal; its gradient is wanted, as in the middle of a stack."""
    x = torch.randn(cell.B, length, cell.d_model, device=cell.device, dtype=getattr(torch, cell.dtype))
    return x.requires_grad_()
