"""The same weights and inputs through public packages: outputs and gradients are equal to a stated tolerance."""

import pytest
import torch
from matches import SMALL, at, compare, layers, mixer, noise, tokens
from rivals import RIVALS, longformer, nystrom
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore")  # of packages that are not ours
BY_NAME = {rival.name: rival for rival in RIVALS}


def needs(rival):
    if rival.version() is None:
        pytest.skip(f"{rival.package} is not installed: make peers")


@pytest.mark.parametrize("rival", [rival for rival in RIVALS if rival.equal], ids=lambda rival: rival.name)
def test_equals_the_public_implementation(rival):
    needs(rival)
    with rival.mended():
        found = compare(rival.match(at(rival.small, dtype=rival.dtype)))
    worst = max(found, key=found.__getitem__)
    assert found[worst] <= rival.tolerance, f"{worst}: {found[worst]:.3g}"


@pytest.mark.parametrize(
    "rival", [rival for rival in RIVALS if rival.equal and rival.departs], ids=lambda rival: rival.name
)
def test_a_departure_is_one(rival):
    needs(rival)
    found = compare(rival.match(at(SMALL, dtype=rival.dtype)))
    assert found["output"] > 10 * rival.tolerance


def test_rows_of_a_batch_know_each_other_in_nystrom_attention_and_not_in_ours():
    needs(BY_NAME["nystrom/nystrom-attention/NystromAttention"])
    match = nystrom(at(SMALL, dtype=torch.float64))
    x = match.inputs[0].detach()
    other = torch.cat((x[:1], 10 * x[1:]))
    changes = [(call(other) - call(x))[0].abs().max().item() for call in (match.ours, match.theirs)]
    assert changes[0] < 1e-12
    assert changes[1] > 1e-6


@pytest.mark.parametrize(("n_global", "n_hidden"), [(0, 5), (3, 0), (3, 5)])
def test_a_window_with_global_tokens_and_padding_equals_longformer(n_global, n_hidden):
    needs(BY_NAME["window/transformers/LongformerSelfAttention"])
    found = compare(longformer(SMALL, n_global, n_hidden))
    assert max(found.values()) <= 2e-5


@pytest.mark.parametrize("name", ["full", "fused"])
@pytest.mark.parametrize("role", ["bidirectional", "cross"])
def test_a_key_mask_is_that_of_multihead_attention(name, role):
    sizes = at(SMALL, dtype=torch.float64)
    ours = mixer(name, role, sizes)
    theirs = nn.MultiheadAttention(sizes.d_model, sizes.n_heads, batch_first=True)
    inputs = tokens(sizes) if role == "bidirectional" else [*tokens(sizes), noise(sizes, sizes.B, 11, sizes.d_model)]
    real = torch.rand(inputs[-1].shape[:2], generator=torch.Generator().manual_seed(0)) < 0.6

    def mine(x, context=None):
        return ours(x, context=context, key_mask=real)

    def public(x, context=None):
        keys = x if context is None else context
        return theirs(x, keys, keys, key_padding_mask=~real)[0]  # True hides there

    given = {"in_proj_weight": (ours.W_q.weight, ours.W_k.weight, ours.W_v.weight)}
    found = compare(layers(mine, ours, public, theirs, inputs, **given, out_proj__weight=(ours.W_o.weight,)))
    assert max(found.values()) <= 1e-12
