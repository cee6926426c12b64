from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from importlib.metadata import distribution

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mutants import Exact, Recurrent
from torch import nn

from attnbench import Decoder, Encoder, EncoderDecoder, LanguageModel, Spec
from attnbench.mixer import Use
from attnbench.settings import most_positions
from attnbench.transformer import Block, Shape, n_params_body

BUILT_IN = {p.name: p for p in distribution("attnbench").entry_points if p.group == "attnbench.variants"}
ATTENTIONS = {"exact": lambda: Exact} | {name: BUILT_IN[name].load for name in ("full", "fused")}


def near(actual, expected, tolerance):
    """Equal to a share of the largest number."""
    assert actual.shape == expected.shape
    assert (actual - expected).abs().max() <= tolerance * max(1, expected.abs().max())


def counterparts(layer, d_model):
    """Our parameter's name -> torch's parameter and the rows of it, for an encoder or a decoder layer."""
    found = {}
    attentions = {"mixer": layer.self_attn}
    norms = ["norm_mixer", "norm_ff"]
    if hasattr(layer, "multihead_attn"):
        attentions["cross"] = layer.multihead_attn
        norms.insert(1, "norm_cross")
    for name, attention in attentions.items():
        for i, letter in enumerate("qkv"):
            found[f"{name}.W_{letter}.weight"] = attention.in_proj_weight, slice(i * d_model, (i + 1) * d_model)
        found[f"{name}.W_o.weight"] = attention.out_proj.weight, slice(None)
    for i, name in enumerate(norms, start=1):
        found |= {
            f"{name}.{kind}": (getattr(getattr(layer, f"norm{i}"), kind), slice(None)) for kind in ("weight", "bias")
        }
    for ours, theirs in (("up", layer.linear1), ("down", layer.linear2)):
        found |= {f"feed_forward.{ours}.{kind}": (getattr(theirs, kind), slice(None)) for kind in ("weight", "bias")}
    return found


def agree_on_weights(blocks, layers, d_model):
    """Draw torch's weights (attention biases 0) and copy them into our blocks."""
    with torch.no_grad():
        for block, layer in zip(blocks, layers, strict=True):
            for name, parameter in layer.named_parameters():
                parameter.normal_(std=0.3)
                if "attn" in name and "bias" in name:
                    parameter.zero_()
            pairs = counterparts(layer, d_model)
            assert set(pairs) == {name for name, _ in block.named_parameters()}
            for name, (theirs, rows) in pairs.items():
                block.get_parameter(name).copy_(theirs[rows])


def same_gradients(blocks, layers, d_model, tolerance):
    for block, layer in zip(blocks, layers, strict=True):
        for name, (theirs, rows) in counterparts(layer, d_model).items():
            near(block.get_parameter(name).grad, theirs.grad[rows], tolerance)


@dataclass(frozen=True)
class Sizes:
    B: int = 2
    T: int = 5
    S: int = 7
    n_heads: int = 2
    d_head: int = 4
    d_ff: int = 12
    n_layers: int = 2
    seed: int = 0

    @property
    def d_model(self):
        return self.n_heads * self.d_head

    @property
    def shape(self):
        return Shape(self.d_model, self.n_heads, self.n_layers, max(self.T, self.S), self.d_ff)


small = st.integers(1, 6)
sizes = st.builds(Sizes, small, small, small, st.integers(1, 3), st.integers(2, 4), small, st.integers(1, 2), small)


def compare_encoder(attention, sizes, masked, dtype, tolerance):
    torch.manual_seed(sizes.seed)
    ours = Encoder(sizes.shape, ATTENTIONS[attention]()).to(dtype)
    layer = nn.TransformerEncoderLayer(
        sizes.d_model, sizes.n_heads, sizes.d_ff, dropout=0, batch_first=True, norm_first=True
    )
    theirs = nn.TransformerEncoder(layer, sizes.n_layers, nn.LayerNorm(sizes.d_model), enable_nested_tensor=False)
    theirs = theirs.to(dtype)
    agree_on_weights(ours.blocks, theirs.layers, sizes.d_model)
    x = torch.randn(sizes.B, sizes.T, sizes.d_model, dtype=dtype, requires_grad=True)
    real = torch.arange(sizes.T) < torch.randint(1, sizes.T + 1, (sizes.B, 1)) if masked else None
    y, z = ours(x, key_mask=real), theirs(x, src_key_padding_mask=None if real is None else ~real)
    compare(y, z, [x], tolerance)
    same_gradients(ours.blocks, theirs.layers, sizes.d_model, tolerance)


def compare_decoder(attention, sizes, masked, dtype, tolerance):
    torch.manual_seed(sizes.seed)
    cls = ATTENTIONS[attention]()
    ours = Decoder(sizes.shape, cls, cross=cls).to(dtype)
    layer = nn.TransformerDecoderLayer(
        sizes.d_model, sizes.n_heads, sizes.d_ff, dropout=0, batch_first=True, norm_first=True
    )
    theirs = nn.TransformerDecoder(layer, sizes.n_layers, nn.LayerNorm(sizes.d_model)).to(dtype)
    agree_on_weights(ours.blocks, theirs.layers, sizes.d_model)
    x = torch.randn(sizes.B, sizes.T, sizes.d_model, dtype=dtype, requires_grad=True)
    context = torch.randn(sizes.B, sizes.S, sizes.d_model, dtype=dtype, requires_grad=True)
    real = torch.arange(sizes.S) < torch.randint(1, sizes.S + 1, (sizes.B, 1)) if masked else None
    future = torch.ones(sizes.T, sizes.T, dtype=torch.bool).triu(1)
    y = ours(x, context=context, context_mask=real)
    z = theirs(x, context, tgt_mask=future, memory_key_padding_mask=None if real is None else ~real)
    compare(y, z, [x, context], tolerance)
    same_gradients(ours.blocks, theirs.layers, sizes.d_model, tolerance)


def compare(y, z, inputs, tolerance):
    """Outputs and the gradients of the inputs; leaves the gradients of all parameters behind."""
    near(y, z, tolerance)
    weight = torch.randn_like(y)
    slopes, expected = (torch.autograd.grad((out * weight).sum(), inputs, retain_graph=True) for out in (y, z))
    for slope, other in zip(slopes, expected, strict=True):
        near(slope, other, tolerance)
    ((y + z) * weight).sum().backward()


@pytest.mark.parametrize("attention", ATTENTIONS)
@settings(deadline=None, max_examples=20)
@given(sizes=sizes, masked=st.booleans())
def test_an_encoder_is_torchs_encoder_in_outputs_and_gradients(attention, sizes, masked):
    compare_encoder(attention, sizes, masked, torch.float64, 1e-12)


@pytest.mark.parametrize("attention", ATTENTIONS)
@settings(deadline=None, max_examples=20)
@given(sizes=sizes, masked=st.booleans())
def test_a_decoder_is_torchs_decoder_in_outputs_and_gradients_also_where_s_is_not_t(attention, sizes, masked):
    compare_decoder(attention, sizes, masked, torch.float64, 1e-12)


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("compare", [compare_encoder, compare_decoder])
def test_they_agree_in_single_precision_too(compare, attention):
    compare(attention, Sizes(T=16, S=11), True, torch.float32, 1e-6)


def hybrid(spec):
    """Recurrent in even layers, attention in odd ones."""
    return Exact(spec) if spec.layer % 2 else Recurrent(spec)


def language_model(mixer=Exact, **changes):
    torch.manual_seed(0)
    shape = {"vocab_size": 11, "d_model": 8, "n_heads": 2, "n_layers": 2, "max_T": 12, "embedding_std": 1.0}
    return LanguageModel(mixer=mixer, **(shape | changes)).double().eval()


def test_a_factory_sees_the_place_of_each_layer_and_builds_a_hybrid():
    seen = []

    def factory(spec):
        seen.append(spec)
        return hybrid(spec)

    model = language_model(factory, n_layers=3)
    assert seen == [Spec(8, 2, 12, "causal", layer) for layer in range(3)]
    assert [type(block.mixer) for block in model.stack.blocks] == [Recurrent, Exact, Recurrent]


def test_encoder_decoder_and_cross_attention_are_built_for_their_roles():
    seen = {"mixer": [], "cross": [], "encoder": []}

    def recording(name):
        return lambda spec: seen[name].append((spec.role, spec.layer)) or Exact(spec)

    shape = {"vocab_size": 5, "d_model": 4, "n_heads": 1, "n_layers": 2, "max_T": 6}
    EncoderDecoder(**shape, mixer=recording("mixer"), cross=recording("cross"), encoder_mixer=recording("encoder"))
    assert seen == {
        "mixer": [("causal", 0), ("causal", 1)],
        "cross": [("cross", 0), ("cross", 1)],
        "encoder": [("bidirectional", 0), ("bidirectional", 1)],
    }


@pytest.mark.parametrize("mixer", [Exact, Recurrent, hybrid])
@pytest.mark.parametrize("T0", [0, 1, 5, 12])
def test_decoding_token_by_token_equals_the_whole_pass(mixer, T0):
    model, tokens = language_model(mixer, positions="learned"), torch.randint(11, (3, 12))
    with torch.no_grad():
        y, states = model.stack.prefill(model.embedding(tokens[:, :T0]))
        outputs = [y]
        for t in range(T0, 12):
            y, states = model.stack.step(model.embedding(tokens[:, t : t + 1], start=t)[:, 0], states)
            outputs.append(y[:, None])
        torch.testing.assert_close(torch.cat(outputs, dim=1), model.hidden(tokens), rtol=0, atol=1e-12)


@pytest.mark.parametrize("T0", [0, 3])
def test_decoding_with_a_masked_context_equals_the_whole_pass(T0):
    torch.manual_seed(0)
    decoder = Decoder(Shape(8, 2, 2, 7), hybrid, cross=Exact).double()
    x, context = torch.randn(2, 7, 8).double(), torch.randn(2, 5, 8).double()
    real = torch.arange(5) < torch.tensor([[5], [2]])
    with torch.no_grad():
        y, states = decoder.prefill(x[:, :T0], context=context, context_mask=real)
        outputs = [y]
        for t in range(T0, 7):
            y, states = decoder.step(x[:, t], states)
            outputs.append(y[:, None])
        whole = decoder(x, context=context, context_mask=real)
    torch.testing.assert_close(torch.cat(outputs, dim=1), whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("mixer", [Exact, hybrid])
def test_a_causal_model_sees_no_later_token_at_any_position(mixer):
    model, tokens = language_model(mixer), torch.randint(11, (1, 12))
    with torch.no_grad():
        logits = model(tokens)
        for t in range(12):
            changed = torch.cat((tokens[:, :t], (tokens[:, t:] + 1) % 11), dim=1)
            other = model(changed)
            torch.testing.assert_close(other[:, :t], logits[:, :t], rtol=0, atol=1e-12)
            assert not torch.allclose(other[:, t:], logits[:, t:])


@pytest.mark.parametrize("mixer", [Exact, Recurrent])
def test_padded_tokens_change_no_real_logit_of_a_bidirectional_model(mixer):
    model, tokens = language_model(mixer, role="bidirectional"), torch.randint(11, (2, 12))
    real = torch.arange(12) < torch.tensor([[12], [5]])
    changed = torch.where(real, tokens, (tokens + 3) % 11)
    with torch.no_grad():
        logits, other = model(tokens, key_mask=real), model(changed, key_mask=real)
        torch.testing.assert_close(other[real], logits[real], rtol=0, atol=1e-12)
        torch.testing.assert_close(model(tokens[1:, :5]), logits[1:, :5], rtol=0, atol=1e-12)


def serving(role):
    """Built-in variants, and ours, that serve this role with padding on the right."""
    classes = {"exact": Exact, "recurrent": Recurrent} | {name: point.load() for name, point in BUILT_IN.items()}
    spec, use = Spec(8, 2, 11, role), Use(T=5, S=11, mask="right")
    return [pytest.param(cls, id=name) for name, cls in classes.items() if cls.unsupported(spec, use) is None]


def source_padding_is_unseen(**mixers):
    torch.manual_seed(0)
    shape = {"vocab_size": 11, "d_model": 8, "n_heads": 2, "n_layers": 2, "max_T": 11, "embedding_std": 1.0}
    model = EncoderDecoder(**shape, **({"mixer": Exact, "cross": Exact} | mixers)).double().eval()
    source, target = torch.randint(11, (2, 11)), torch.randint(11, (2, 5))
    real = torch.arange(11) < torch.tensor([[11], [6]])
    logits = model(source, target, source_mask=real)
    assert logits.shape == (2, 5, 11)
    changed = torch.where(real, source, (source + 1) % 11)
    torch.testing.assert_close(model(changed, target, source_mask=real), logits, rtol=0, atol=1e-12)
    torch.testing.assert_close(model(source[1:, :6], target[1:]), logits[1:], rtol=0, atol=1e-12)
    assert not torch.allclose(model(source, target)[1], logits[1])  # the mask is not ignored


@pytest.mark.parametrize("cls", serving("bidirectional"))
def test_source_padding_is_unseen_through_any_encoder(cls):
    source_padding_is_unseen(encoder_mixer=cls)


@pytest.mark.parametrize("cls", serving("causal"))
def test_source_padding_is_unseen_through_any_decoder(cls):
    source_padding_is_unseen(mixer=cls, encoder_mixer=Exact)


@pytest.mark.parametrize("cls", serving("cross"))
def test_source_padding_is_unseen_through_any_cross_attention(cls):
    source_padding_is_unseen(cross=cls)


def test_without_a_feed_forward_a_block_is_one_residual():
    torch.manual_seed(0)
    block = Block(Exact(Spec(8, 2, 5)), d_ff=0)
    x = torch.randn(2, 5, 8)
    assert torch.equal(block(x), x + block.mixer(block.norm_mixer(x)))
    assert {name.split(".")[0] for name, _ in block.named_parameters()} == {"norm_mixer", "mixer"}


def test_the_feed_forward_is_four_times_as_wide_unless_told_otherwise():
    widths = {d_ff: language_model(d_ff=d_ff).stack.blocks[0].feed_forward for d_ff in (None, 3, 0)}
    assert (widths[None].up.out_features, widths[3].up.out_features, widths[0]) == (32, 3, None)


def test_head_widths_and_grouped_keys_are_free():
    model = language_model(partial(Exact, n_kv_heads=1, d_k=3, d_v=5))
    mixer = model.stack.blocks[0].mixer
    assert [tuple(w.weight.shape) for w in (mixer.W_q, mixer.W_k, mixer.W_v, mixer.W_o)] == [
        (6, 8),
        (3, 8),
        (5, 8),
        (8, 10),
    ]
    assert model(torch.randint(11, (2, 12))).shape == (2, 12, 11)


def test_a_context_that_nothing_would_read_is_an_error_and_so_is_a_missing_one():
    x, context = torch.zeros(1, 3, 8), torch.zeros(1, 4, 8)
    plain, crossed = (Decoder(Shape(8, 2, 1, 5), Exact, cross) for cross in (None, Exact))
    for call in (plain, plain.prefill):
        with pytest.raises(ValueError, match="without cross-attention"):
            call(x, context=context)
    for call in (crossed, crossed.prefill):
        with pytest.raises(ValueError, match="with cross-attention"):
            call(x)


def test_a_language_model_has_no_cross_role():
    with pytest.raises(ValueError, match="EncoderDecoder"):
        language_model(role="cross")


def encoder_decoder(**changes):
    shape = {"vocab_size": 11, "d_model": 8, "n_heads": 2, "n_layers": 1, "max_T": 12, "mixer": Exact, "cross": Exact}
    return EncoderDecoder(**shape | changes).double()


@pytest.mark.parametrize("build", [language_model, encoder_decoder])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n_layers": 0}, "n_layers must be at least 1, got 0"),
        ({"n_layers": 1.5}, "n_layers must be a whole number, got 1.5"),
        ({"d_ff": -1}, "d_ff must be at least 0, got -1"),
        ({"vocab_size": 0}, "vocab_size must be at least 1, got 0"),
        ({"max_T": 0}, "max_T must be at least 1, got 0"),
        ({"d_model": 0}, "d_model must be at least 1, got 0"),
        ({"n_heads": 3}, "d_model must be divisible by n_heads, got 8 and 3"),
        ({"positions": "rotary"}, "positions must be 'learned' or 'sinusoidal' or 'none', got 'rotary'"),
        ({"positions": ""}, "positions must be 'learned' or 'sinusoidal' or 'none', got ''"),
    ],
)
def test_a_size_or_a_name_that_cannot_be_is_refused_by_name(build, wrong, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        build(**wrong)


def test_an_unknown_role_is_refused():
    with pytest.raises(ValueError, match="role must be 'causal' or 'bidirectional', got 'casual'"):
        language_model(role="casual")


@pytest.mark.parametrize(("B_source", "B_target"), [(1, 3), (3, 1), (2, 3)])
def test_source_and_target_of_different_batches_are_never_broadcast(B_source, B_target):
    model, mask = encoder_decoder(), torch.ones(B_source, 4, dtype=torch.bool)
    with pytest.raises(ValueError, match=f"source and target must have one B, got {B_source} and {B_target}"):
        model(torch.zeros(B_source, 4).long(), torch.zeros(B_target, 5).long(), source_mask=mask)


def test_a_mask_of_another_batch_is_never_broadcast():
    tokens = torch.zeros(3, 4).long()
    for mask in (torch.ones(1, 4), torch.ones(4, 4), torch.ones(3, 5)):
        with pytest.raises(ValueError, match=r"key_mask must be bool \(3, 4\)"):
            encoder_decoder()(tokens, tokens, source_mask=mask.bool())
        with pytest.raises(ValueError, match=r"key_mask must be bool \(3, 4\)"):
            language_model()(tokens, key_mask=mask.bool())


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_a_sequence_beyond_max_t_is_an_error_that_names_both_numbers(positions):
    with pytest.raises(ValueError, match=r"T = 13 .*max_T = 12"):
        language_model(positions=positions)(torch.zeros(1, 13, dtype=torch.long))


def test_without_positions_a_model_runs_beyond_max_t():
    assert language_model(positions="none")(torch.zeros(1, 13, dtype=torch.long)).shape == (1, 13, 11)


@pytest.mark.parametrize(("mixer", "kind"), [(Exact, "learned"), (Recurrent, "none"), (hybrid, "learned")])
def test_positions_are_what_the_most_demanding_layer_wants_unless_told_otherwise(mixer, kind):
    assert language_model(mixer).embedding.positions.kind == kind
    assert language_model(mixer, positions="sinusoidal").embedding.positions.kind == "sinusoidal"


def test_the_most_demanding_of_position_kinds_wins():
    assert most_positions(["none", "sinusoidal", "none"]) == "sinusoidal"
    assert most_positions(["sinusoidal", "learned"]) == "learned"


def test_encoder_and_decoder_have_the_positions_that_their_own_mixers_want():
    shape = {"vocab_size": 5, "d_model": 4, "n_heads": 1, "n_layers": 1, "max_T": 6}
    model = EncoderDecoder(**shape, mixer=Exact, cross=Exact, encoder_mixer=Recurrent)
    assert (model.source.positions.kind, model.target.positions.kind) == ("none", "learned")


def test_embeddings_start_with_the_standard_deviation_asked_for():
    model = language_model(vocab_size=500, d_model=64, max_T=500, embedding_std=0.02)
    for table in (model.embedding.tokens.weight, model.embedding.positions.table):
        assert table.std().item() == pytest.approx(0.02, rel=0.02)


@pytest.mark.parametrize("mixer", [Exact, Recurrent])
def test_the_body_of_a_model_knows_neither_vocabulary_nor_max_t(mixer):
    model = language_model(mixer)
    assert n_params_body(model) == sum(p.numel() for p in model.stack.parameters())
    assert n_params_body(language_model(mixer, vocab_size=500, max_T=500)) == n_params_body(model)
    shape = {"vocab_size": 5, "d_model": 4, "n_heads": 1, "n_layers": 1, "max_T": 6}
    both = EncoderDecoder(**shape, mixer=mixer, cross=Exact)
    stacks = (both.encoder, both.decoder)
    assert n_params_body(both) == sum(p.numel() for stack in stacks for p in stack.parameters())


def test_every_parameter_of_a_model_learns():
    torch.manual_seed(0)
    shape = {"vocab_size": 11, "d_model": 8, "n_heads": 2, "n_layers": 2, "max_T": 6}
    model = EncoderDecoder(**shape, mixer=Exact, cross=Exact)
    logits = model(torch.randint(11, (4, 6)), torch.randint(11, (4, 6)))
    (logits * torch.randn_like(logits)).sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []
