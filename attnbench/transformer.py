"""The core Transformer: pre-LayerNorm blocks around any mixer (Vaswani et al. 2017; Xiong et al. 2020 for the order).

A block is LayerNorm → mixer → residual → LayerNorm → feed-forward with ReLU → residual; a decoder block has
LayerNorm → cross-attention → residual between the two. Models take a function `Spec -> Mixer`, never a name: a class
is one, `functools.partial(SlidingWindow, window=16)` is one, and a function that looks at `spec.layer` builds a hybrid.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, cast

from torch import Tensor, nn

from attnbench.mixer import Mixer, PositionKind, Role, Spec, State, check_count, check_name
from attnbench.positions import Positions
from attnbench.settings import most_positions

MixerFactory = Callable[[Spec], Mixer]


class FeedForward(nn.Module):
    """Two linear maps with a ReLU between them: (B, T, d_model) -> (B, T, d_model)."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.up = nn.Linear(d_model, d_ff)
        self.down = nn.Linear(d_ff, d_model)

    def forward(self, x: Tensor) -> Tensor:
        """Apply to each position by itself."""
        y: Tensor = self.down(self.up(x).relu())
        return y


class Block(nn.Module):
    """One pre-norm residual block. d_ff = 0 leaves the feed-forward out; `cross` makes it a decoder block."""

    def __init__(self, mixer: Mixer, *, d_ff: int, cross: Mixer | None = None) -> None:
        super().__init__()
        check_count("d_ff", d_ff, at_least=0)
        d_model = mixer.spec.d_model
        self.norm_mixer, self.mixer = nn.LayerNorm(d_model), mixer
        self.norm_cross = None if cross is None else nn.LayerNorm(d_model)
        self.cross = cross
        self.norm_ff = nn.LayerNorm(d_model) if d_ff else None
        self.feed_forward = FeedForward(d_model, d_ff) if d_ff else None

    def forward(
        self,
        x: Tensor,
        *,
        context: Tensor | None = None,
        key_mask: Tensor | None = None,
        context_mask: Tensor | None = None,
    ) -> Tensor:
        """x (B, T, d_model), context (B, S, d_model), masks (B, T) and (B, S), True where real."""
        x = x + self.mixer(self.norm_mixer(x), key_mask=key_mask)
        if self.norm_cross is not None and self.cross is not None:
            x = x + self.cross(self.norm_cross(x), context=context, key_mask=context_mask)
        return self._fed_forward(x)

    def prefill(
        self, x: Tensor, *, context: Tensor | None = None, context_mask: Tensor | None = None
    ) -> tuple[Tensor, list[State]]:
        """Read a prompt (B, T, d_model); the states of the mixer and, behind it, of the cross-attention."""
        y, state = self.mixer.prefill(self.norm_mixer(x))
        x, states = x + y, [state]
        if self.norm_cross is not None and self.cross is not None:
            y, state = self.cross.prefill(self.norm_cross(x), context=context, key_mask=context_mask)
            x, states = x + y, [*states, state]
        return self._fed_forward(x), states

    def step(self, x: Tensor, states: list[State]) -> tuple[Tensor, list[State]]:
        """One more token (B, d_model)."""
        y, state = self.mixer.step(self.norm_mixer(x), states[0])
        x, after = x + y, [state]
        if self.norm_cross is not None and self.cross is not None:
            y, state = self.cross.step(self.norm_cross(x), states[1])
            x, after = x + y, [*after, state]
        return self._fed_forward(x), after

    def _fed_forward(self, x: Tensor) -> Tensor:
        if self.norm_ff is None or self.feed_forward is None:
            return x
        fed: Tensor = x + self.feed_forward(self.norm_ff(x))
        return fed


@dataclass(frozen=True)
class Shape:
    """The sizes of a stack of blocks. d_ff None means 4 · d_model, 0 means no feed-forward."""

    d_model: int
    n_heads: int
    n_layers: int
    max_T: int
    d_ff: int | None = None

    def __post_init__(self) -> None:
        check_count("n_layers", self.n_layers)

    def blocks(self, role: Role, mixer: MixerFactory, cross: MixerFactory | None = None) -> nn.ModuleList:
        """n_layers blocks; the factories see each layer's own Spec."""
        d_ff = 4 * self.d_model if self.d_ff is None else self.d_ff
        return nn.ModuleList(
            Block(mixer(self._spec(role, i)), d_ff=d_ff, cross=cross(self._spec("cross", i)) if cross else None)
            for i in range(self.n_layers)
        )

    def _spec(self, role: Role, layer: int) -> Spec:
        return Spec(self.d_model, self.n_heads, self.max_T, role, layer)


class Stack(nn.Module):
    """Blocks one after the other, and a final LayerNorm."""

    def __init__(self, blocks: nn.ModuleList, d_model: int) -> None:
        super().__init__()
        self.blocks = blocks
        self.norm = nn.LayerNorm(d_model)

    @property
    def layers(self) -> list[Block]:
        """The blocks in order."""
        return cast(list[Block], list(self.blocks))

    @property
    def wanted_positions(self) -> PositionKind:
        """The position embedding that these mixers ask for."""
        return most_positions([block.mixer.positions for block in self.layers])


class Encoder(Stack):
    """A stack of bidirectional blocks: (B, S, d_model) -> (B, S, d_model)."""

    def __init__(self, shape: Shape, mixer: MixerFactory) -> None:
        super().__init__(shape.blocks("bidirectional", mixer), shape.d_model)

    def forward(self, x: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        """key_mask: (B, S), True where a position is real."""
        for block in self.layers:
            x = block(x, key_mask=key_mask)
        y: Tensor = self.norm(x)
        return y


class Decoder(Stack):
    """A stack of causal blocks, with cross-attention over a context when `cross` is given."""

    def __init__(self, shape: Shape, mixer: MixerFactory, cross: MixerFactory | None = None) -> None:
        super().__init__(shape.blocks("causal", mixer, cross), shape.d_model)
        self.takes_context = cross is not None

    def forward(
        self,
        x: Tensor,
        *,
        context: Tensor | None = None,
        key_mask: Tensor | None = None,
        context_mask: Tensor | None = None,
    ) -> Tensor:
        """x (B, T, d_model), context (B, S, d_model). A context that nothing would read is an error."""
        self._check_context(context)
        for block in self.layers:
            x = block(x, context=context, key_mask=key_mask, context_mask=context_mask)
        y: Tensor = self.norm(x)
        return y

    def prefill(
        self, x: Tensor, *, context: Tensor | None = None, context_mask: Tensor | None = None
    ) -> tuple[Tensor, list[list[State]]]:
        """Read a prompt (B, T, d_model), T = 0 included; returns outputs and one list of states per block."""
        self._check_context(context)
        states = []
        for block in self.layers:
            x, state = block.prefill(x, context=context, context_mask=context_mask)
            states.append(state)
        return self.norm(x), states

    def step(self, x: Tensor, states: list[list[State]]) -> tuple[Tensor, list[list[State]]]:
        """One more token (B, d_model)."""
        after = []
        for block, before in zip(self.layers, states, strict=True):
            x, state = block.step(x, before)
            after.append(state)
        return self.norm(x), after

    def _check_context(self, context: Tensor | None) -> None:
        if (context is not None) != self.takes_context:
            raise ValueError(f"this decoder was built {'with' if self.takes_context else 'without'} cross-attention")


class ModelState(NamedTuple):
    """Decoding state of a language model: one list of states per block, and how many tokens were read."""

    blocks: list[list[State]]
    n_tokens: int


class TokenEmbedding(nn.Module):
    """Token and position embeddings: (B, T) of token ids, and of numbers where it reads them -> (B, T, d_model)."""

    def __init__(
        self, vocab_size: int, shape: Shape, positions: PositionKind, std: float, reads_values: bool = False
    ) -> None:
        super().__init__()
        check_count("vocab_size", vocab_size)
        self.tokens = nn.Embedding(vocab_size, shape.d_model)
        nn.init.normal_(self.tokens.weight, std=std)
        self.positions = Positions(positions, shape.max_T, shape.d_model, std)
        self.values = nn.Linear(1, shape.d_model, bias=False) if reads_values else None

    def forward(self, tokens: Tensor, values: Tensor | None = None, *, start: int = 0) -> Tensor:
        """`start`: the position of the first token given."""
        x = self.tokens(tokens)
        if self.values is not None and values is not None:
            x = x + self.values(values[..., None].to(x.dtype))  # (B, T, 1) -> (B, T, d_model)
        y: Tensor = self.positions(x, start)
        return y


class LanguageModel(nn.Module):
    """Tokens to logits through one stack: causal (a decoder without cross-attention) or bidirectional (an encoder).

    Example: `LanguageModel(vocab_size=64, d_model=64, n_heads=4, n_layers=2, max_T=128, mixer=MyAttention)`.
    positions: None takes what the mixers ask for. n_outputs: outputs of the head, vocab_size unless given.
    reads_values: whether it reads a number beside each token.
    Raises ValueError for a size or a name that cannot be.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        d_model: int,
        n_heads: int,
        n_layers: int,
        max_T: int,
        mixer: MixerFactory,
        role: Role = "causal",
        d_ff: int | None = None,
        positions: PositionKind | None = None,
        embedding_std: float = 0.02,
        n_outputs: int | None = None,
        reads_values: bool = False,
    ) -> None:
        super().__init__()
        if role == "cross":
            raise ValueError("a language model is causal or bidirectional; cross needs EncoderDecoder")
        check_name("role", role, ("causal", "bidirectional"))
        shape = Shape(d_model, n_heads, n_layers, max_T, d_ff)
        self.stack: Encoder | Decoder = Decoder(shape, mixer) if role == "causal" else Encoder(shape, mixer)
        kind = self.stack.wanted_positions if positions is None else positions
        self.embedding = TokenEmbedding(vocab_size, shape, kind, embedding_std, reads_values)
        self.head = nn.Linear(d_model, n_outputs or vocab_size, bias=False)

    def hidden(self, tokens: Tensor, values: Tensor | None = None, *, key_mask: Tensor | None = None) -> Tensor:
        """Token ids (B, T), and numbers (B, T) -> final hidden states (B, T, d_model), before the head."""
        y: Tensor = self.stack(self.embedding(tokens, values), key_mask=key_mask)
        return y

    def forward(self, tokens: Tensor, values: Tensor | None = None, *, key_mask: Tensor | None = None) -> Tensor:
        """Token ids (B, T), and numbers (B, T) -> logits (B, T, n_outputs)."""
        logits: Tensor = self.head(self.hidden(tokens, values, key_mask=key_mask))
        return logits

    def prefill(self, tokens: Tensor) -> tuple[Tensor, ModelState]:
        """Read a prompt (B, T), T = 0 included: logits (B, T, vocab_size) and the state for `step`.

        Raises TypeError in a bidirectional model.
        """
        y, states = self._decoder.prefill(self.embedding(tokens))
        return self.head(y), ModelState(states, tokens.shape[1])

    def step(self, token: Tensor, state: ModelState) -> tuple[Tensor, ModelState]:
        """One more token (B,): logits (B, vocab_size)."""
        x = self.embedding(token[:, None], start=state.n_tokens)[:, 0]
        y, blocks = self._decoder.step(x, state.blocks)
        return self.head(y), ModelState(blocks, state.n_tokens + 1)

    @property
    def _decoder(self) -> Decoder:
        if not isinstance(self.stack, Decoder):
            raise TypeError("a bidirectional model does not decode")
        return self.stack


class EncoderDecoder(nn.Module):
    """Source tokens (B, S) and target tokens (B, T) to logits (B, T, vocab_size).

    mixer: self-mixing of encoder and decoder; encoder_mixer, when given, replaces it in the encoder.
    cross: the decoder's attention over the encoder's output.
    Raises ValueError for a size or a name that cannot be, and where source and target differ in B.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        d_model: int,
        n_heads: int,
        n_layers: int,
        max_T: int,
        mixer: MixerFactory,
        cross: MixerFactory,
        encoder_mixer: MixerFactory | None = None,
        d_ff: int | None = None,
        positions: PositionKind | None = None,
        embedding_std: float = 0.02,
    ) -> None:
        super().__init__()
        shape = Shape(d_model, n_heads, n_layers, max_T, d_ff)
        self.encoder = Encoder(shape, encoder_mixer or mixer)
        self.decoder = Decoder(shape, mixer, cross)
        stacks = self.encoder, self.decoder
        kinds = [stack.wanted_positions if positions is None else positions for stack in stacks]
        self.source = TokenEmbedding(vocab_size, shape, kinds[0], embedding_std)
        self.target = TokenEmbedding(vocab_size, shape, kinds[1], embedding_std)
        self.head = nn.Linear(d_model, vocab_size, bias=False)

    def hidden(self, source: Tensor, target: Tensor, source_mask: Tensor | None = None) -> Tensor:
        """Source ids (B, S), target ids (B, T) -> final hidden states (B, T, d_model), before the head.

        source_mask: (B, S), True where a source token is real; padded ones change no output.
        """
        if source.shape[0] != target.shape[0]:
            raise ValueError(f"source and target must have one B, got {source.shape[0]} and {target.shape[0]}")
        context = self.encoder(self.source(source), key_mask=source_mask)
        y: Tensor = self.decoder(self.target(target), context=context, context_mask=source_mask)
        return y

    def forward(self, source: Tensor, target: Tensor, *, source_mask: Tensor | None = None) -> Tensor:
        """Source ids (B, S), target ids (B, T) -> logits (B, T, vocab_size). source_mask as in `hidden`."""
        logits: Tensor = self.head(self.hidden(source, target, source_mask))
        return logits


Model = LanguageModel | EncoderDecoder  # what can be trained on a task


def n_params_body(module: nn.Module) -> int:
    """Parameters of a model without token embeddings, their positions and the head; of any other module, all."""
    outside = [part for part in module.modules() if isinstance(part, TokenEmbedding)]
    heads = [module.head] if isinstance(module, LanguageModel | EncoderDecoder) else []
    apart = {parameter for part in (*outside, *heads) for parameter in part.parameters()}
    return sum(parameter.numel() for parameter in module.parameters() if parameter not in apart)
