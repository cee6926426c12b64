"""Every public implementation that ours are compared with, by number and by time."""

from __future__ import annotations

import importlib
import itertools
import os
import types
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from matches import SMALL, Match, Rival, Sizes, at, heads, joined, layers, mixer, noise, patched, tokens
from torch import Tensor, nn

from attnbench.kernels import delta_recurrence

SLOW_SCAN = "keeps every state: (B, T, 2 d_model, 16) numbers for each of some ten operations"
DENSE = "makes a matrix of all pairs for each head"


def quietly(module: str) -> Any:
    """Import a module of a public package without what it has to say."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(module)


def transformers(model: str) -> Any:
    """The module of one model, and its configuration beside it."""
    return quietly(f"transformers.models.{model}.modeling_{model}")


# torch


def multihead(name: str, sizes: Sizes, *, weights: bool) -> Match:
    ours, theirs = mixer(name, "causal", sizes), nn.MultiheadAttention(sizes.d_model, sizes.n_heads, batch_first=True)
    mask = torch.ones(sizes.T, sizes.T, dtype=torch.bool).triu(1)

    def call(x: Tensor) -> Tensor:
        return theirs(x, x, x, attn_mask=mask, is_causal=not weights, need_weights=weights)[0]

    given = {"in_proj_weight": (ours.W_q.weight, ours.W_k.weight, ours.W_v.weight)}
    return layers(ours, ours, call, theirs, tokens(sizes), **given, out_proj__weight=(ours.W_o.weight,))


def fused(sizes: Sizes) -> Match:
    ours = mixer("fused", "causal", sizes)
    return Match(ours.attend, partial(F.scaled_dot_product_attention, is_causal=True), heads(sizes))


def grouped(sizes: Sizes) -> Match:
    ours = mixer("gqa", "causal", sizes, n_kv_heads=1)
    q, k, v = heads(sizes)
    k, v = (x.detach()[:, :1].clone().requires_grad_() for x in (k, v))  # (B, 1, T, D)
    theirs = partial(F.scaled_dot_product_attention, is_causal=True, enable_gqa=True)
    return Match(lambda q, k, v: ours.attend(q, k.expand_as(q), v.expand_as(q)), theirs, [q, k, v])


def recurrent(name: str, layer: Callable[..., nn.Module], sizes: Sizes) -> Match:
    ours, theirs = mixer(name, "causal", sizes), layer(sizes.d_model, sizes.d_model, batch_first=True)
    weights = {f"{part}_l0": (getattr(ours.rightward, f"{part}_l0"),) for part in ("weight_ih", "weight_hh")}
    weights |= {f"{part}_l0": (getattr(ours.rightward, f"{part}_l0"),) for part in ("bias_ih", "bias_hh")}
    return layers(ours, ours, lambda x: theirs(x)[0], theirs, tokens(sizes), **weights)


# sparse


def local(sizes: Sizes) -> Match:
    module = quietly("local_attention")
    exact = module.LocalAttention(sizes.window, causal=True, exact_windowsize=True, use_rotary_pos_emb=False)
    ours = mixer("window", "causal", sizes, window=sizes.window + 1)  # theirs counts the keys before a token alone
    return Match(ours.attend, exact, heads(sizes))


def longformer(sizes: Sizes, n_global: int = 0, n_hidden: int = 0) -> Match:
    """n_global: tokens at the start that see all and are seen by all, with the same maps. n_hidden: padding behind."""
    module, w = transformers("longformer"), 2 * sizes.window
    config = quietly("transformers").LongformerConfig(
        hidden_size=sizes.d_model,
        num_attention_heads=sizes.n_heads,
        attention_window=[w],
        attention_probs_dropout_prob=0.0,
        num_hidden_layers=1,
    )
    ours = mixer("window", "bidirectional", sizes, window=w, n_global=n_global)
    theirs = module.LongformerSelfAttention(config, 0)
    for part in ("query", "key", "value"):
        setattr(theirs, f"{part}_global", getattr(theirs, part))
    place = torch.arange(sizes.T).expand(sizes.B, -1)
    hidden, everywhere = place >= sizes.T - n_hidden, place < n_global
    told = 10_000.0 * everywhere - 10_000.0 * hidden

    def call(x: Tensor) -> Tensor:
        y = theirs(x, told, hidden, everywhere, is_global_attn=n_global > 0)[0]
        return y.masked_fill(hidden[..., None], 0.0) if n_hidden else y

    def mine(x: Tensor) -> Tensor:
        y = merged(ours, x, key_mask=~hidden if n_hidden else None)
        return y.masked_fill(hidden[..., None], 0.0) if n_hidden else y

    return layers(mine, ours, call, theirs, tokens(sizes), **bert(ours))


def bigbird(sizes: Sizes) -> Match:
    """Theirs is given the random blocks of ours: in eval mode it has none, and looks at the first block once more."""
    module, common = transformers("big_bird"), {"attention_probs_dropout_prob": 0.0, "use_bias": False}
    config = quietly("transformers").BigBirdConfig(
        hidden_size=sizes.d_model,
        num_attention_heads=sizes.n_heads,
        block_size=sizes.block,
        num_random_blocks=2,
        **common,
    )
    theirs = module.BigBirdBlockSparseAttention(config)
    ours = mixer("bigbird", "bidirectional", sizes, block=sizes.block, n_random=2)
    drawn = list(ours.random_blocks(sizes.T // sizes.block).numpy())  # of each head (n_blocks - 2, 2)
    turns = itertools.cycle(drawn)
    theirs._bigbird_block_rand_mask_with_head = lambda **rest: drawn
    theirs._bigbird_block_rand_mask = lambda *rest, **more: next(turns)  # at the lengths of the paper, head by head
    masks = module.BigBirdModel.create_masks_for_block_sparse_attn(torch.ones(sizes.B, sizes.T), sizes.block)
    blocked, band, from_mask, to_mask = (mask.to(sizes.dtype) for mask in masks)

    def call(x: Tensor) -> Tensor:
        return theirs(x, band, from_mask, to_mask, blocked, blocked)[0]

    return layers(partial(merged, ours), ours, call, theirs, tokens(sizes), **bert(ours))


# linear, low rank


def performer(sizes: Sizes) -> Match:
    theirs = performer_module().FastAttention(sizes.D, nb_features=sizes.n_features).to(sizes.dtype)
    ours = mixer("performer", "bidirectional", sizes, n_features=sizes.n_features)
    theirs.projection_matrix.copy_(ours.projection)
    return Match(ours.attend, theirs, heads(sizes))


def performer_module() -> Any:
    return quietly("performer_pytorch.performer_pytorch")


def no_epsilon() -> AbstractContextManager[None]:
    module = performer_module()
    return patched(module, softmax_kernel=partial(module.softmax_kernel, eps=0.0))


def causal_linear(sizes: Sizes) -> Match:
    module, masking = quietly("fast_transformers.attention"), quietly("fast_transformers.masking")
    theirs, ours = module.CausalLinearAttention(sizes.D), mixer("linear", "causal", sizes)
    mask = masking.TriangularCausalMask(sizes.T)
    lengths = masking.LengthMask(torch.full((sizes.B,), sizes.T))

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # (B, T, H, D), as theirs are
        return theirs(q, k, v, mask, lengths, lengths).transpose(1, 2)

    return Match(ours.attend, call, heads(sizes))


def nystrom(sizes: Sizes) -> Match:
    theirs = quietly("nystrom_attention").NystromAttention(
        sizes.d_model, dim_head=sizes.D, heads=sizes.n_heads, num_landmarks=sizes.n_landmarks
    )
    ours = mixer("nystrom", "bidirectional", sizes, landmarks=sizes.n_landmarks)
    maps = {
        "to_qkv__weight": (ours.W_q.weight, ours.W_k.weight, ours.W_v.weight),
        "to_out__0__weight": (ours.W_o.weight,),
    }
    return layers(ours, ours, theirs, theirs, tokens(sizes), **maps, res_conv__weight=(ours.taps,))


def nystromformer(sizes: Sizes) -> Match:
    config = quietly("transformers").NystromformerConfig(
        hidden_size=sizes.d_model,
        num_attention_heads=sizes.n_heads,
        num_landmarks=sizes.n_landmarks,
        segment_means_seq_len=sizes.T,
        conv_kernel_size=65,
        attention_probs_dropout_prob=0.0,
    )
    theirs = transformers("nystromformer").NystromformerSelfAttention(config)
    ours = mixer("nystrom", "bidirectional", sizes, landmarks=sizes.n_landmarks, kernel=65)
    weights = bert(ours) | {"conv__weight": (ours.taps,)}
    return layers(partial(merged, ours), ours, lambda x: theirs(x)[0], theirs, tokens(sizes), **weights)


# state space and recurrent


def mambapy(sizes: Sizes) -> Match:
    module = quietly("mambapy.mamba")
    theirs = module.MambaBlock(module.MambaConfig(d_model=sizes.d_model, n_layers=1))
    return selective(theirs, sizes)


def mamba_mixer(sizes: Sizes) -> Match:
    config = quietly("transformers").MambaConfig(hidden_size=sizes.d_model, num_hidden_layers=1)
    return selective(transformers("mamba").MambaMixer(config, 0), sizes)


def selective(theirs: nn.Module, sizes: Sizes) -> Match:
    ours = mixer("mamba", "causal", sizes)
    maps = {"in_proj__weight": ours.W_in.weight, "x_proj__weight": ours.W_x.weight, "dt_proj__weight": ours.W_dt.weight}
    rest = {"dt_proj__bias": ours.W_dt.bias, "out_proj__weight": ours.W_out.weight, "A_log": ours.A_log, "D": ours.D}
    conv = {"conv1d__weight": ours.conv.weight, "conv1d__bias": ours.conv_bias}
    weights = {name: (weight,) for name, weight in (maps | rest | conv).items()}
    return layers(ours, ours, theirs, theirs, tokens(sizes), **weights)


def mamba2(sizes: Sizes) -> Match:
    config = quietly("transformers").Mamba2Config(
        hidden_size=sizes.d_model,
        num_hidden_layers=1,
        num_heads=sizes.n_heads,
        head_dim=2 * sizes.D,
        state_size=sizes.d_state,
        n_groups=1,
        use_conv_bias=False,
        chunk_size=min(256, sizes.T),
    )
    theirs = transformers("mamba2").Mamba2Mixer(config, 0)
    ours = mixer("mamba2", "causal", sizes, d_state=sizes.d_state)
    maps = {"in_proj__weight": ours.W_in.weight, "out_proj__weight": ours.W_out.weight, "norm__weight": ours.norm}
    rest = {"conv1d__weight": ours.convolution.weight, "dt_bias": ours.dt_bias, "A_log": ours.A_log, "D": ours.D}
    weights = {name: (weight,) for name, weight in (maps | rest).items()}
    return layers(ours, ours, theirs, theirs, tokens(sizes), **weights)


def rwkv6(sizes: Sizes) -> Match:
    """One row of the batch: theirs has no batch. Its residual connection is taken off again."""
    module, ours = rwkv_module(), mixer("rwkv", "causal", sizes)
    H, D, rank = sizes.n_heads, sizes.D, ours.blend_up.shape[1]
    ones, none = torch.ones(sizes.d_model, dtype=sizes.dtype), torch.zeros(sizes.d_model, dtype=sizes.dtype)
    maps = [ours.W_k, ours.W_v, ours.W_q, ours.W_gate, ours.W_o]

    def call(x: Tensor) -> Tensor:
        blends = [ours.blend[i] for i in (3, 1, 2, 0, 4)]  # ours stand in the order r, k, v, w, g; theirs w, k, v, r, g
        up = ours.blend_up[[3, 1, 2, 0, 4]]
        down = ours.blend_down.weight.T.view(-1, 5, rank)[:, [3, 1, 2, 0, 4]].flatten(1)
        decay = [ours.decay_down.weight.T, ours.decay_up.weight.T, ours.decay.view(H, D, 1), ours.bonus.view(H, D, 1)]
        weights = [layer.weight.T for layer in maps]
        start = x.new_zeros(H, D, D)
        told = [ones, none, ours.norm.flatten(), none, ours.blend_all, *blends, down, up, *decay, *weights]
        y, _, _ = module.RWKV.att_seq_v6_0(None, x[0], none, start, *told, *[None] * 20)
        return (y - x[0])[None]

    same = [(parameter, [parameter], joined) for parameter in ours.parameters()]
    return Match(ours, call, tokens(at(sizes, B=1)), list(ours.parameters()), list(ours.parameters()), same)


def rwkv_module() -> Any:
    os.environ.update(RWKV_JIT_ON="0", RWKV_CUDA_ON="0", RWKV_V7_ON="0")
    return quietly("rwkv.model")


def rwkv_norms() -> AbstractContextManager[None]:
    """No norm of the input, and RMS norms of heads, as in our layer, which is one without the block around it."""

    def rms(x: Tensor, num_groups: int, weight: Tensor, **rest: Any) -> Tensor:
        split = x.view(len(x), num_groups, -1)
        return F.rms_norm(split, split.shape[-1:], eps=1e-5).flatten(1) * weight

    same = types.SimpleNamespace(layer_norm=lambda x, *rest, **more: x, group_norm=rms, silu=F.silu)
    return patched(rwkv_module(), F=same)


def rwkv4(sizes: Sizes) -> Match:
    """Another version of the mechanism, one state per channel: for its time alone."""
    config = quietly("transformers").RwkvConfig(hidden_size=sizes.d_model, num_hidden_layers=1)
    theirs, ours = transformers("rwkv").RwkvSelfAttention(config, 0), mixer("rwkv", "causal", sizes)
    return Match(ours, lambda x: theirs(x)[0], tokens(sizes), list(ours.parameters()), list(theirs.parameters()))


def minimal(name: str, file: str, sizes: Sizes) -> Match:
    module = quietly(f"minGRU_pytorch.{file}")
    theirs, ours = getattr(module, file)(sizes.d_model), mixer(name, "causal", sizes)
    with torch.no_grad():
        ours.rightward.W_in.bias.zero_().requires_grad_(False)
    parameter = "to_hidden_and_gate__weight" if name == "mingru" else "to_hidden_and_f_i_gate__weight"

    def candidate_first(weight: Tensor) -> Tensor:
        return torch.cat((weight[-sizes.d_model :], weight[: -sizes.d_model]))

    return layers(
        ours, ours, theirs, theirs, tokens(sizes), **{parameter: (candidate_first, ours.rightward.W_in.weight)}
    )


def fourier(sizes: Sizes) -> Match:
    config = quietly("transformers").FNetConfig(hidden_size=sizes.d_model)
    theirs = transformers("fnet").FNetBasicFourierTransform(config)
    return Match(mixer("fnet", "bidirectional", sizes), lambda x: theirs(x)[0], tokens(sizes))


def gated_delta(sizes: Sizes) -> Match:
    """The rule alone, from q, k, v, steps and decays; theirs divides queries by the root of their width."""
    theirs = transformers("qwen3_next").torch_chunk_gated_delta_rule
    q, k, v = heads(sizes)
    k = F.normalize(k.detach(), dim=-1).requires_grad_()
    beta, decay = (noise(sizes, sizes.B, sizes.n_heads, sizes.T, seed=seed) for seed in (4, 5))

    def ours(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor) -> Tensor:
        start = q.new_zeros(sizes.B, sizes.n_heads, sizes.D, sizes.D)
        log_decay = -F.softplus(decay)
        return delta_recurrence(q * sizes.D**-0.5, k, v, beta.sigmoid(), start, chunk=64, log_decay=log_decay)[0]

    def call(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor) -> Tensor:
        q, k, v, beta, decay = (x.transpose(1, 2) for x in (q, k, v, beta, decay))  # time before heads
        return theirs(q, k, v, -F.softplus(decay), beta.sigmoid())[0].transpose(1, 2)

    return Match(ours, call, [q, k, v, beta, decay])


def merged(ours: Any, x: Tensor, **masks: Any) -> Tensor:
    """A layer of ours without its map out: (B, T, d_model) -> (B, T, d_model)."""
    return ours.attend(*ours.project(x, x), **masks).transpose(1, 2).flatten(2)


def bert(ours: Any) -> dict[str, tuple[Tensor]]:
    """The three maps in, as many models name them."""
    maps = {"query__weight": ours.W_q, "key__weight": ours.W_k, "value__weight": ours.W_v}
    ours.W_o.weight.requires_grad_(False)  # has no part
    return {name: (layer.weight,) for name, layer in maps.items()}


ONE_HEAD = at(SMALL, B=1, n_heads=1, d_model=8)
ONE_NORM = "takes the norms of A over all rows and heads of a batch at once, so that rows know each other"
FLOAT32: dict[str, Any] = {"dtype": torch.float32, "tolerance": 2e-5}

RIVALS = [
    Rival("full", "torch", "nn.MultiheadAttention with weights", "layer", partial(multihead, "full", weights=True)),
    Rival("fused", "torch", "nn.MultiheadAttention", "layer", partial(multihead, "fused", weights=False)),
    Rival("fused", "torch", "F.scaled_dot_product_attention", "core", fused, 1.02, 1.1),
    Rival("gqa", "torch", "F.scaled_dot_product_attention enable_gqa", "core", grouped),
    Rival("gru", "torch", "nn.GRU", "layer", partial(recurrent, "gru", nn.GRU), 0.8, 1.1),
    Rival("lstm", "torch", "nn.LSTM", "layer", partial(recurrent, "lstm", nn.LSTM), 1.02, 1.1),
    Rival("rnn", "torch", "nn.RNN", "layer", partial(recurrent, "rnn", nn.RNN), 1.02, 1.1),
    Rival("window", "local-attention", "LocalAttention", "core", local, 0.8, 0.8),
    Rival("window", "transformers", "LongformerSelfAttention", "layer", longformer, **FLOAT32),
    Rival(
        "bigbird",
        "transformers",
        "BigBirdBlockSparseAttention",
        "layer",
        bigbird,
        0.8,
        1.1,
        note="is given our random blocks (in eval mode it has none of its own) and makes a dense matrix of weights too",
    ),
    Rival(
        "performer",
        "performer-pytorch",
        "FastAttention",
        "core",
        performer,
        0.8,
        0.8,
        mended=no_epsilon,
        departs="adds 1e-4 to every feature, behind the division by the largest",
    ),
    Rival("linear", "pytorch-fast-transformers", "CausalLinearAttention", "core", causal_linear, 0.8, 1.1, **FLOAT32),
    Rival("nystrom", "nystrom-attention", "NystromAttention", "layer", nystrom, 0.8, 1.1, ONE_HEAD, departs=ONE_NORM),
    Rival(
        "nystrom",
        "transformers",
        "NystromformerSelfAttention",
        "layer",
        nystromformer,
        small=ONE_HEAD,
        departs=ONE_NORM,
    ),
    Rival("mamba", "mambapy", "MambaBlock", "layer", mambapy, 0.8, 1.1, longest=2048, because=SLOW_SCAN, **FLOAT32),
    Rival(
        "mamba",
        "transformers",
        "MambaMixer",
        "layer",
        mamba_mixer,
        0.8,
        1.1,
        longest=2048,
        because=SLOW_SCAN,
        **FLOAT32,
    ),
    Rival("mamba2", "transformers", "Mamba2Mixer", "layer", mamba2, 1.0, 1.1, **FLOAT32),
    Rival("mingru", "minGRU-pytorch", "minGRU", "layer", partial(minimal, "mingru", "minGRU")),
    Rival("minlstm", "minGRU-pytorch", "minLSTM", "layer", partial(minimal, "minlstm", "minLSTM")),
    Rival("gated_deltanet", "transformers", "torch_chunk_gated_delta_rule", "core", gated_delta, **FLOAT32),
    Rival("fnet", "transformers", "FNetBasicFourierTransform", "layer", fourier),
    Rival(
        "rwkv",
        "rwkv",
        "RWKV.att_seq_v6_0",
        "layer",
        rwkv6,
        1.0,
        1.1,
        mended=rwkv_norms,
        departs="normalises the input of the layer, and heads by a group norm, where ours has an RMS norm",
        **FLOAT32,
    ),
    Rival(
        "rwkv",
        "transformers",
        "RwkvSelfAttention",
        "layer",
        rwkv4,
        1.0,
        1.1,
        equal=False,
        departs="is version 4, with a state per channel in place of a matrix per head",
    ),
]
