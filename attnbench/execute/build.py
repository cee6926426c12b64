"""A cell as something that can be called: the module at its level, ready inputs, one call of its phase."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from attnbench.cells import Cell
from attnbench.mixer import Attention, Mixer, Spec
from attnbench.transformer import Block, EncoderDecoder, LanguageModel

MODEL_VOCAB = 256  # of a timed language model; small, so that mixing is not drowned by the head


@dataclass(frozen=True)
class Subject:
    """module: what the cell measures, parameters and all. mixer: the (first) mixer in it.

    inputs: tensors made outside the clock. forward: one forward pass over them, giving output_shape in dtype.
    """

    module: nn.Module
    mixer: Mixer
    inputs: tuple[Tensor, ...]
    forward: Callable[[], Tensor]
    output_shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def n_params(self) -> int:
        """Parameters of the module, of all its layers."""
        return sum(parameter.numel() for parameter in self.module.parameters())

    @property
    def param_bytes(self) -> int:
        """Bytes of parameters and buffers."""
        tensors = [*self.module.parameters(), *self.module.buffers()]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def call(self, phase: str) -> Callable[[], object]:
        """One call of a phase. Gradients are returned, not accumulated, so that calls are alike."""
        if phase == "forward":
            return self.forward
        seed = torch.randn(self.output_shape, dtype=self.dtype, device=self.inputs[0].device)
        wanted = [tensor for tensor in (*self.inputs, *self.module.parameters()) if tensor.requires_grad]

        def forward_backward() -> tuple[Tensor | None, ...]:
            gradients: tuple[Tensor | None, ...] = torch.autograd.grad(
                self.forward(), wanted, seed, allow_unused=True, materialize_grads=False
            )
            return gradients

        return forward_backward


def spec_of(cell: Cell) -> Spec:
    """What the cell's mixer is told."""
    return Spec(cell.d_model, cell.n_heads, cell.max_T, cell.role)


def language_model(cell: Cell, cls: type[Mixer], vocab_size: int) -> LanguageModel:
    """The model of a cell at level model, freshly initialised from torch's global generator."""
    return LanguageModel(
        vocab_size=vocab_size,
        d_model=cell.d_model,
        n_heads=cell.n_heads,
        n_layers=cell.n_layers or 1,
        max_T=cell.max_T,
        mixer=partial(cls, **cell.options),
        role=cell.role,
        d_ff=cell.d_ff,
        positions=cell.positions,
        embedding_std=cell.embedding_std or 0.02,
    )


def encoder_decoder(cell: Cell, cls: type[Mixer], cross: type[Mixer], vocab_size: int) -> EncoderDecoder:
    """The model of a cell whose task is sequence to sequence: the variant in both stacks, `cross` between them."""
    return EncoderDecoder(
        vocab_size=vocab_size,
        d_model=cell.d_model,
        n_heads=cell.n_heads,
        n_layers=cell.n_layers or 1,
        max_T=cell.max_T,
        mixer=partial(cls, **cell.options),
        cross=cross,
        d_ff=cell.d_ff,
        positions=cell.positions,
        embedding_std=cell.embedding_std or 0.02,
    )


def build_module(cell: Cell, cls: type[Mixer]) -> nn.Module:
    """The module that a timed cell measures, on its device and in its dtype."""
    if cell.level == "model":
        module: nn.Module = language_model(cell, cls, MODEL_VOCAB)
    else:
        module = cls(spec_of(cell), **cell.options)
        if cell.level == "block":
            assert isinstance(module, Mixer)
            module = Block(module, d_ff=cell.d_ff or 0)
    return module.to(device=cell.device, dtype=getattr(torch, cell.dtype))


def build_subject(cell: Cell, module: nn.Module) -> Subject:
    """Inputs and the forward call for a module that `build_module` made."""
    mixer = next(part for part in module.modules() if isinstance(part, Mixer))
    dtype = getattr(torch, cell.dtype)
    if cell.level == "model":
        tokens = torch.randint(MODEL_VOCAB, (cell.B, cell.T), device=cell.device)
        return Subject(module, mixer, (tokens,), partial(module, tokens), (cell.B, cell.T, MODEL_VOCAB), dtype)
    x = _normal(cell, cell.T)
    context = _normal(cell, cell.S) if cell.role == "cross" or cell.S != cell.T else None
    if cell.level == "core":
        return _core(cell, mixer, x, x if context is None else context)
    if context is None:
        return Subject(module, mixer, (x,), partial(module, x), tuple(x.shape), dtype)
    return Subject(module, mixer, (x, context), partial(module, x, context=context), tuple(x.shape), dtype)


def _core(cell: Cell, mixer: Mixer, x: Tensor, context: Tensor) -> Subject:
    """Attend alone, on ready queries, keys and values."""
    if not isinstance(mixer, Attention):
        raise TypeError(f"{cell.variant} has no queries and keys, so no level core")
    with torch.no_grad():
        projected = mixer.project(x, context)
    ready = tuple(part.detach().clone().requires_grad_() for part in projected)
    shape = (cell.B, mixer.spec.n_heads, cell.T, mixer.d_v)
    bare = nn.ModuleList()  # the core has no parameters of its own: projections are outside it
    return Subject(bare, mixer, ready, partial(mixer.attend, *ready, key_mask=None), shape, x.dtype)


def _normal(cell: Cell, length: int) -> Tensor:
    """(B, length, d_model), standard normal; its gradient is wanted, as in the middle of a stack."""
    x = torch.randn(cell.B, length, cell.d_model, device=cell.device, dtype=getattr(torch, cell.dtype))
    return x.requires_grad_()
