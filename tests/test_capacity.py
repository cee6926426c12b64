"""Capacity of a fixed state: each memory against what linear algebra says of it."""

import pytest
import torch
from cores import noise

from attnbench.theory import capacity


@pytest.fixture(scope="module")
def shown():
    return capacity.show(True)


def test_every_prediction_holds_and_nothing_is_left_out(shown):
    assert [finding for finding in shown.findings if not finding.ok] == []
    assert shown.findings == capacity.show(False).findings


def test_the_picture_has_every_memory_at_every_load(shown):
    frame = shown.pictures[0].frame
    assert len(frame) == 5 * (6 + 4) == len(frame.drop_duplicates(["label", "facet", "K"]))
    assert frame["accuracy"].between(0, 1).all()


@torch.no_grad()
def test_the_delta_rule_gives_back_the_last_value_and_overwrites_a_key_that_comes_again():
    k, v = torch.nn.functional.normalize(noise(1, 3, 4), dim=-1), noise(1, 3, 5, seed=1)
    k[:, 2] = k[:, 0]
    found = capacity.delta(k, v)
    assert found[:, 2].numpy() == pytest.approx(v[:, 2].numpy())
    assert found[:, 0].numpy() == pytest.approx(v[:, 2].numpy())
    assert capacity.hebbian(k, v)[:, 0].numpy() != pytest.approx(v[:, 2].numpy(), abs=0.1)


@torch.no_grad()
def test_no_state_has_a_smaller_squared_error_than_the_pseudo_inverse():
    k, v = noise(2, 9, 4), noise(2, 9, 4, seed=1)
    error = {f: (f(k, v) - v).square().sum() for f in (capacity.hebbian, capacity.delta, capacity.pseudo_inverse)}
    assert min(error, key=error.get) is capacity.pseudo_inverse
    for seed in range(5):
        state = torch.linalg.pinv(k) @ v + 0.1 * noise(2, 4, 4, seed=seed)
        assert (k @ state - v).square().sum() > error[capacity.pseudo_inverse]


def test_what_noise_predicts_falls_with_the_load_and_rises_with_the_width():
    by_load = [capacity.predicted(64, K) for K in (1, 64, 128, 256, 512)]
    assert by_load == sorted(by_load, reverse=True)
    assert by_load[0] == pytest.approx(1, abs=1e-6)
    assert capacity.predicted(128, 256) > capacity.predicted(64, 256)
    assert capacity.predicted(64, 10**9) == pytest.approx(1 / 128, abs=1e-3)


def test_what_has_no_keys_is_no_memory():
    with pytest.raises(TypeError, match="lstm has no keys"):
        capacity.attention("lstm")(noise(1, 2, 4), noise(1, 2, 4))
