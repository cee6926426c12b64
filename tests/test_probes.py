"""Paths and steps are those that follow from a mechanism."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from runs import PLUGINS

from attnbench import registry
from attnbench.execute.probes import claimed, n_layers, probed
from attnbench.registry import VARIANTS, PluginError, Source, installed

BUILT_IN = installed(VARIANTS)


@given(T=st.integers(2, 20), reach=st.integers(1, 20))
def test_a_band_takes_as_many_layers_as_its_reach_needs(T, reach):
    behind = torch.arange(T)[:, None] - torch.arange(T)
    assert n_layers(lambda layer: (behind >= 0) & (behind <= reach), "causal") == -(-(T - 1) // reach)
    assert n_layers(lambda layer: behind.abs() <= reach, "bidirectional") == -(-(T - 1) // reach)


@given(T=st.integers(2, 40))
def test_a_reach_that_doubles_with_each_layer_takes_a_logarithm_of_them(T):
    behind = torch.arange(T)[:, None] - torch.arange(T)
    assert n_layers(lambda layer: (behind == 0) | (behind == 2**layer), "causal") == (T - 1).bit_length()


def test_a_layer_that_mixes_nothing_does_not_end_the_path():
    def every_other(layer):
        return torch.ones(5, 5, dtype=torch.bool) if layer % 2 else torch.eye(5, dtype=torch.bool)

    assert n_layers(every_other, "causal") == 2


def test_what_never_meets_takes_no_number_of_layers():
    assert n_layers(lambda layer: torch.eye(5, dtype=torch.bool), "causal") is None
    assert n_layers(lambda layer: torch.ones(5, 5).tril().bool(), "bidirectional") is None


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("full", [1, 1]),
        ("linear", [1, 1]),
        ("lstm", [1, 1]),
        ("window", [1, 2]),
        ("strided", [2, 2]),
        ("tcn", [4, 5]),  # 4 (2^L - 1) positions back
        ("none", [None] * 2),
    ],
)
def test_layers_of_the_built_in_variants(name, layers):
    assert probed(BUILT_IN[name], "causal", [48, 96])["layers"] == layers


@pytest.mark.parametrize(("name", "grows"), [("full", False), ("window", False), ("gru", True), ("rnn", True)])
def test_calls_grow_with_T_where_steps_follow_each_other(name, grows):
    short, long = probed(BUILT_IN[name], "causal", [128, 256])["calls"]
    assert (long > 1.9 * short) == grows
    assert grows or long == short


def test_what_a_variant_says_of_itself():
    facts = claimed(BUILT_IN["window"])
    assert facts["claim"]["path"] == "T / window"
    assert "window" in facts["options"]
    assert (facts["role"], facts["core"]) == ("causal", True)
    assert not claimed(BUILT_IN["lstm"])["core"]
    silent = next(one for one in registry.file_sources(PLUGINS / "cheats.py") if one.name == "silent")
    assert claimed(silent)["claim"] is None


def test_what_is_no_mixer_is_told():
    with pytest.raises(PluginError, match="no subclass"):
        claimed(Source("task", "attnbench.tasks.distance:Distance", "here"))
