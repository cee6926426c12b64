"""Parameter counts: variants that do not match are named, and so are counts that depend on T."""

import pytest
from frames import frame, timed
from run_rows import tiny_cell

from attnbench import options
from attnbench.analyse.parameters import SPREAD, Spread, grows, spreads
from attnbench.execute.build import build_module, mixer_factory
from attnbench.registry import VARIANTS, installed, load
from attnbench.report.tables import tables, unmatched
from attnbench.sweep import VariantUse
from attnbench.transformer import n_params_body


def counted(**counts):
    """Two T and two d_model; the second width has nine times as many."""
    return frame(
        timed(name, T, d, 1, n_params_body=n * (d // 8) ** 2)
        for name, n in counts.items()
        for T in (64, 128)
        for d in (8, 24)
    )


def test_a_spread_above_a_tenth_is_named_per_width():
    found = spreads(counted(a=1000, b=1500, c=1200))
    assert found == [Spread(8, ("a", 1000), ("b", 1500)), Spread(24, ("a", 9000), ("b", 13500))]


def test_a_spread_of_a_tenth_is_none():
    assert spreads(counted(a=1000, b=round(1000 * (1 + SPREAD)))) == []
    assert spreads(counted(a=1000, b=round(1000 * (1 + SPREAD)) + 1)) != []


def test_a_variant_without_parameters_does_not_match_one_with_some():
    assert spreads(counted(none=0, a=10))[0] == Spread(8, ("none", 0), ("a", 10))
    assert spreads(counted(none=0, mean=0)) == []


def test_counts_that_nobody_took_are_left_out():
    assert spreads(counted(a=1000).assign(n_params_body=None)) == []
    assert spreads(frame([])) == []


def test_a_count_grows_where_it_has_several_values_over_T():
    rows = [timed(name, T, 8, 1, n_params=n) for name, T, n in (("a", 8, 1), ("a", 16, 2), ("b", 8, 1), ("b", 16, 1))]
    assert grows(frame(rows), "n_params", ["label", "d_model"]).tolist() == [True, True, False, False]


SIZES = {"d_model": 64, "n_heads": 4, "n_layers": 2, "d_ff": 256, "embedding_std": 0.02}
GROWING = {"linformer"}  # it projects the T keys onto a few


def model_row(name, T):
    """The counts of a default model with learned positions; None where the variant is not to be had here."""
    cls = load(installed(VARIANTS)[name])
    uses = {"parts": (VariantUse(name, options.resolve(cls, {})[0]),), "device": "meta", "level": "model"}
    for role in ("causal", "bidirectional"):
        cell = tiny_cell(**SIZES | uses | {"role": role, "positions": "learned", "T": T, "S": T, "max_T": T})
        try:
            module = build_module(cell, mixer_factory(cell, [cls]))
        except (ValueError, ImportError):
            continue  # the other role, or not here
        counts = {"n_params": sum(part.numel() for part in module.parameters()), "n_params_body": n_params_body(module)}
        return timed(name, T, 64, 1.0, level="model", phase="forward", role="causal", **counts)
    return None


@pytest.fixture(scope="module")
def models():
    return frame(row for name in installed(VARIANTS) for T in (128, 1024) if (row := model_row(name, T)))


def test_each_row_of_the_default_models_tells_parameters_with_and_without_embeddings(models):
    (cost,) = [table for table in tables(models, "fused") if table.name == "cost"]
    assert len(cost.shown) == len(models) > 50
    assert (cost.data["n_params"] > cost.data["n_params_body"]).all()
    assert cost.shown["n_params"].str.endswith(", grows with T").all()  # positions are learned
    marked = cost.shown["n_params_body"].str.endswith(", grows with T")
    assert set(cost.shown["variant"][marked]) == GROWING


def test_default_models_differ_by_more_than_a_tenth_and_are_said_to(models):
    assert "d = 64: " in unmatched(models)
    assert unmatched(models[models["label"].isin(["fused", "full", "window"])]) == ""
