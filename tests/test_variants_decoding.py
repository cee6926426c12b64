"""Token by token, each built-in variant gives what the whole pass gives."""

from __future__ import annotations

import pytest
import torch
from cores import NO_CROSS, NO_STEPS, ON_CPU, RECURRENT, assert_equal, build, noise, ragged_mask

CAUSAL = [
    ("full", {}),
    ("fused", {}),
    ("full", {"n_kv_heads": 1, "d_k": 5, "d_v": 2}),
    ("fused", {"n_kv_heads": 1, "d_k": 5, "d_v": 2}),
    ("window", {"window": 1}),
    ("window", {"window": 4}),
    ("window", {"window": 4, "n_kv_heads": 1, "d_k": 5, "d_v": 2}),
    ("window", {"window": 100}),
    ("linear", {"chunk": 4}),
    ("linear", {"n_kv_heads": 1, "d_k": 5, "d_v": 2}),
    ("strided", {"stride": 1}),
    ("strided", {"stride": 3, "n_kv_heads": 1, "d_k": 5, "d_v": 2}),
    ("strided", {"stride": 100}),
    ("mean", {}),
    ("none", {}),
    ("tcn", {}),
    ("tcn", {"kernel": 1}),
    ("tcn", {"kernel": 6}),
    *[(name, {}) for name in RECURRENT],
]
MASKED = [case for case in CAUSAL if case[0] not in RECURRENT]
CROSS = [case for case in CAUSAL if case[0] not in NO_CROSS]


def label(value):
    return "-".join(f"{k}{v}" for k, v in value.items()) or "plain" if isinstance(value, dict) else None


def step_through(mixer, x, y, state):
    """Outputs of a prompt (y) and of one step per token of x; every state is stepped again at the end."""
    outputs, states = [y], [state]
    for token in x.unbind(1):
        y, state = mixer.step(token, states[-1])
        outputs.append(y[:, None])
        states.append(state)
    for token, state, y in zip(x.unbind(1), states, outputs[1:], strict=False):
        assert torch.equal(mixer.step(token, state)[0], y[:, 0]), (
            "a state stepped again with the same x gives another y"
        )
    return torch.cat(outputs, dim=1), states[-1]


@torch.no_grad()
@pytest.mark.parametrize("T_prompt", [0, 1, 3, 4, 9, 17])
@pytest.mark.parametrize(("name", "options"), CAUSAL, ids=label)
def test_prompt_and_steps_equal_the_whole_pass(name, options, T_prompt):
    mixer, x = build(name, max_T=17, **options), noise(2, 17, 12)
    y, state = mixer.prefill(x[:, :T_prompt])
    assert y.shape == (2, T_prompt, 12)
    decoded, _ = step_through(mixer, x[:, T_prompt:], y, state)
    assert_equal([decoded], [mixer(x)], 1e-11)


@torch.no_grad()
@pytest.mark.parametrize(("name", "options"), MASKED, ids=label)
def test_hidden_keys_of_a_prompt_stay_hidden(name, options):
    mixer, x, key_mask = build(name, **options), noise(4, 12, 12), ragged_mask(4, 9)
    decoded, _ = step_through(mixer, x[:, 9:], *mixer.prefill(x[:, :9], key_mask=key_mask))
    whole = torch.cat((key_mask, torch.ones(4, 3, dtype=torch.bool)), dim=1)
    assert_equal([decoded], [mixer(x, key_mask=whole)], 1e-11)


@torch.no_grad()
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize(("name", "options"), CROSS, ids=label)
def test_cross_attention_reads_its_context_once(name, options, masked):
    mixer, x, context = build(name, "cross", **options), noise(4, 6, 12), noise(4, 11, 12, seed=1)
    key_mask = ragged_mask(4, 11) if masked else None
    decoded, _ = step_through(mixer, x[:, 2:], *mixer.prefill(x[:, :2], context=context, key_mask=key_mask))
    assert_equal([decoded], [mixer(x, context=context, key_mask=key_mask)], 1e-11)


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "options", "n_numbers"),
    [
        ("window", {"window": 5}, 2 * 5 * 12),
        ("window", {"window": 5, "n_kv_heads": 1}, 2 * 5 * 4),
        ("linear", {}, 3 * 4 * (4 + 1)),
        ("linear", {"d_k": 2, "d_v": 6}, 3 * 2 * (6 + 1)),
        ("lstm", {}, 2 * 12),
        ("gru", {}, 12),
        ("rnn", {}, 12),
        ("mean", {}, 12 + 1),
        ("none", {}, 0),
        ("tcn", {}, 2 * 2 * 12),
        ("tcn", {"kernel": 1}, 0),
    ],
    ids=label,
)
def test_a_state_of_fixed_size_has_its_size(name, options, n_numbers):
    for max_T, T in ((20, 20), (1000, 20), (1000, 300)):
        _, state = build(name, max_T=max_T, **options).prefill(noise(1, T, 12))
        assert sum(value.untyped_storage().nbytes() for value in state.values()) == 8 * n_numbers


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "options"),
    [("window", {"window": 4}), ("linear", {}), ("mean", {}), ("tcn", {}), *[(name, {}) for name in RECURRENT]],
    ids=label,
)
def test_no_step_writes_to_a_state_of_fixed_size(name, options):
    mixer, x = build(name, **options), noise(1, 9, 12)
    _, state = mixer.prefill(x[:, :7])
    before = {key: value.clone() for key, value in state.items()}
    mixer.step(x[:, 7], mixer.step(x[:, 8], state)[1])
    assert all(torch.equal(state[key], before[key]) for key in before)


@torch.no_grad()
@pytest.mark.parametrize("name", [name for name in ON_CPU if name not in NO_STEPS])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_decoding_in_half_precision_stays_near_float64(name, dtype):
    mixer, x = build(name), noise(2, 12, 12, dtype=dtype)
    expected = mixer(x.double())
    mixer = mixer.to(dtype)
    decoded, _ = step_through(mixer, x[:, 5:], *mixer.prefill(x[:, :5]))
    assert decoded.dtype == dtype
    assert_equal([decoded], [expected], 2e-2)
