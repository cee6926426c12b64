from __future__ import annotations

import dataclasses
import inspect
import json
import subprocess
import sys
from functools import cache
from importlib.metadata import distribution
from pathlib import Path

import mutants
import pytest
import torch
from broken_copies import COPIES
from hypothesis import given, settings
from hypothesis import strategies as st
from mutants import BREAKS, Exact, Recurrent

import attnbench
from attnbench import causality, forms, promises
from attnbench.conformance import ROLES, NonConformant, certify, check_variant
from attnbench.options import resolve
from attnbench.registry import describe_error, file_sources, load
from attnbench.subject import LENGTHS, MAX_T, N_KEYS, PRECISIONS, BrokenError, NotApplicableError, Subject

SUPPORTED = [(Exact, role) for role in ROLES] + [(Recurrent, "causal"), (Recurrent, "bidirectional")]
BUILT_IN = {p.name: p for p in distribution("attnbench").entry_points if p.group == "attnbench.variants"}
PLUGINS = {  # file, the promise that its fault is named after, the role
    "leaks_future": ("causal_values", "causal"),
    "mixes_rows": ("rows_independent", "cross"),
    "ignores_key_mask": ("key_mask_honoured", "bidirectional"),
    "wrong_normaliser": ("weights_sum_to_one", "causal"),
}


def plugin(stem):
    (source,) = file_sources(Path(__file__).parent / "plugins" / f"{stem}.py")
    return load(source)


def broken_names(certificate):
    return {result.name for result in certificate.broken}


@cache
def certified(cls, role, dtype):
    """The certificate of a class of this suite in one role: several tests read the same one."""
    return certify(cls, roles=[role], dtype=dtype)


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize(("cls", "role"), SUPPORTED)
def test_a_correct_mixer_keeps_every_promise_in_every_dtype(cls, role, dtype):
    certificate = certified(cls, role, dtype)
    assert certificate.ok, certificate.verdict()
    assert [result.name for result in certificate.results] == [promise.__name__ for promise in promises.PROMISES]
    assert {result.status for result in certificate.results} <= {"kept", "not applicable"}


@pytest.mark.parametrize(("cls", "role"), SUPPORTED)
def test_only_promises_that_cannot_concern_a_correct_mixer_are_not_applicable(cls, role):
    expected = {"permutation_equivariance", "equals_slow_form"}
    if role != "causal":
        expected |= {"causal_values", "causal_gradients", "aligned_bottom_right"}
    if role == "bidirectional":
        expected |= {"decoding"}
    if cls is Recurrent:
        expected |= {"weights_sum_to_one", "aligned_bottom_right"}
    results = certified(cls, role, "float64").results
    assert {result.name for result in results if result.status == "not applicable"} == expected


@pytest.mark.parametrize("options", [{"n_kv_heads": 1}, {"d_k": 3, "d_v": 6}])
def test_free_head_widths_and_grouped_keys_keep_every_promise(options):
    check_variant(Exact, options=options)


def test_other_widths_keep_every_promise():
    check_variant(Exact, n_heads=3, d_head=5)
    check_variant(Recurrent, roles=["causal"], n_heads=1, d_head=1)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])  # the finest and the coarsest
@pytest.mark.parametrize("name", [name for name in BUILT_IN if name != "xformers"])  # it has no kernel for a CPU
def test_a_built_in_variant_keeps_every_promise(name, dtype):
    certificate = certify(BUILT_IN[name].load(), dtype=dtype)
    assert certificate.ok, certificate.verdict()


@pytest.mark.parametrize(("cls", "role", "names"), BREAKS)
def test_a_faulty_mixer_breaks_the_promises_that_its_fault_concerns_and_no_other(cls, role, names):
    assert broken_names(certify(cls, roles=[role])) == names


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_leaks_mixing_and_ignored_masks_are_seen_in_every_dtype(dtype):
    assert "causal_values" in broken_names(certify(mutants.AddsBlockMean, roles=["causal"], dtype=dtype))
    assert "causal_gradients" in broken_names(certify(mutants.SeesFutureByGradient, roles=["causal"], dtype=dtype))
    assert "rows_independent" in broken_names(certify(mutants.MixesRows, roles=["cross"], dtype=dtype))
    assert "key_mask_honoured" in broken_names(certify(mutants.IgnoresKeyMask, roles=["cross"], dtype=dtype))


@pytest.mark.parametrize("multiple", [3, 5, 64, 128])
def test_a_variant_that_takes_few_lengths_is_held_to_its_promises_at_those(multiple):
    def restricted(base):
        def unsupported(cls, spec, use, **options):
            reason = super(made, cls).unsupported(spec, use, **options)
            return reason or (f"T must be a multiple of {multiple}" if use.T % multiple else None)

        made = type("Restricted", (base,), {"unsupported": classmethod(unsupported)})
        return made

    good, leaky = (certify(restricted(base), roles=["causal"]) for base in (Exact, mutants.SeesFutureByGradient))
    assert good.ok, good.verdict()
    assert broken_names(leaky) == {"causal_gradients"}
    kept = {result.name for result in good.results if result.status == "kept"}
    assert kept >= {"shape", "finite", "causal_values", "causal_gradients", "rows_independent"}


MEASURED = {*LENGTHS, 5, 6, 8, 9, N_KEYS, 60, 66, 70}  # every length that a promise likes


@pytest.mark.parametrize(("cls", "role"), SUPPORTED)
def test_no_promise_is_left_out_for_lengths_that_a_sweep_measures(cls, role):
    usual, moved = certified(cls, role, "float64"), certify(cls, roles=[role], avoid=MEASURED)
    assert [(r.name, r.status) for r in moved.results] == [(r.name, r.status) for r in usual.results]


@pytest.mark.parametrize(("cls", "role", "names"), [given for given in BREAKS if given[1] == "cross"])
def test_a_fault_is_found_at_other_lengths_than_those_that_a_sweep_measures(cls, role, names):
    assert broken_names(certify(cls, roles=[role], avoid=MEASURED)) == names


@given(avoid=st.sets(st.integers(1, MAX_T), max_size=MAX_T))
@settings(max_examples=50, deadline=None)
def test_no_length_that_is_tried_is_avoided_while_there_is_another(avoid):
    subject = Subject(Exact, {}, "cross", avoid=frozenset(avoid))
    found = subject.taken(*LENGTHS)
    assert avoid.isdisjoint(found)
    assert bool(found) == (subject.n_keys not in avoid) == (len(avoid) < MAX_T)


def test_a_fault_of_the_second_layer_is_found_there_and_named():
    late = plugin("leaks_late")
    assert certify(late, roles=["causal"]).ok
    broken = certify(late, roles=["causal"], layer=1).broken
    assert {result.name for result in broken} == {"causal_values", "causal_gradients", "decoding"}
    assert all("layer 1" in result.detail for result in broken)
    with pytest.raises(NonConformant, match="layer 1") as caught:
        check_variant(late, roles=["causal"])
    assert caught.value.certificate.broken == broken


def test_every_promise_has_a_mutant_and_every_mutant_is_tried():
    caught = set().union(*(names for *_, names in BREAKS)) | {promise for *_, promise in COPIES}
    assert caught == {promise.__name__ for promise in (*promises.PROMISES, *promises.THOROUGH)}
    tried = {cls for cls, *_ in BREAKS} | {Exact, Recurrent}
    untried = {cls for _, cls in inspect.getmembers(mutants, inspect.isclass) if cls.__module__ == "mutants"} - tried
    cannot_run = {"RaisesInConstructor", "RaisesInForward", "RaisesInUnsupported", "ServesNobody"}
    assert {cls.__name__ for cls in untried} == cannot_run


def test_a_promise_can_be_tried_by_itself():
    promises.any_length(Subject(Exact, {}, "bidirectional"))
    with pytest.raises(NotApplicableError, match="not causal"):
        promises.causal_values(Subject(Exact, {}, "bidirectional"))
    with pytest.raises(NotApplicableError, match="no cross role"):
        promises.finite(Subject(Recurrent, {}, "cross"))
    with pytest.raises(BrokenError, match="a row alone differs"):
        promises.rows_independent(Subject(mutants.MixesRows, {}, "bidirectional"))


@pytest.mark.parametrize("stem", PLUGINS)
def test_a_faulty_plugin_file_is_caught_by_the_name_of_its_fault(stem):
    promise, role = PLUGINS[stem]
    with pytest.raises(NonConformant) as caught:
        attnbench.check_variant(plugin(stem), roles=[role])
    assert promise in broken_names(caught.value.certificate)
    assert f"[{role}] {promise}: broken" in str(caught.value)


@pytest.mark.parametrize("options", [{"beyond": 200}, {"beyond": 505}, {"beyond": 200, "multiple": 64}])
def test_a_leak_that_no_short_sequence_shows_is_caught(options):
    (result,) = certify(plugin("leaks_far"), options=options, roles=["causal"]).broken
    assert result.name == "causal_values"
    assert "changed with x[t:]" in result.detail
    assert certify(plugin("leaks_far"), options=options | {"beyond": 600}, roles=["causal"]).ok


class StopsAt256(BUILT_IN["full"].load()):
    def attend(self, q, k, v, *extra, key_mask=None):
        y = super().attend(q, k, v, key_mask=key_mask)
        return torch.cat((y[:, :, :256], 0 * y[:, :, 256:]), dim=2)


@pytest.mark.parametrize("role", ROLES)
def test_a_fault_past_blocks_of_256_is_caught_by_the_slow_form(role):
    promises.equals_slow_form(Subject(StopsAt256, {}, role))
    with pytest.raises(BrokenError, match=r"x \(1, 257, 8\).* differs from the slow form"):
        promises.equals_slow_form(Subject(StopsAt256, {}, role, thorough=True))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("name", "options"), [("performer", {"kind": "relu", "n_features": 32}), ("linear", {})])
def test_a_gradient_that_vanishes_is_held_to_the_rounding_of_what_cancels(name, options, dtype):
    promises.equals_slow_form(Subject(BUILT_IN[name].load(), options, "cross", dtype, thorough=True))  # S = 1 too
    exact, step = torch.zeros(8, dtype=torch.float64), 1e-2
    forms._nearly(exact + 0.09 * step, exact, "gradient of x", 0.1, least=step)
    with pytest.raises(BrokenError):
        forms._nearly(exact + 0.11 * step, exact, "gradient of x", 0.1, least=step)


@pytest.mark.parametrize(
    ("made", "told"), [(lambda v: (v, v), "a tuple"), (lambda v: v[:, :1], r"shape \(1, 1, 16, 4\)")]
)
def test_a_slow_form_that_returns_another_kind_of_thing_is_told_by_name(made, told):
    wrong = type("Odd", (BUILT_IN["full"].load(),), {"slow_attend": lambda self, q, k, v, **_: made(v)})
    expected = r"expected a tensor \(B, H, T, d_v\) = \(1, 2, 16, 4\)"
    with pytest.raises(BrokenError, match=f"Odd.slow_attend returned {told}, {expected}"):
        promises.equals_slow_form(Subject(wrong, {}, "causal"))


BLOCKS = ("block", "chunk", "kernel", "landmarks", "rank", "size", "stride", "window")


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_slow_form_is_tried_past_every_block_that_a_variant_has_by_default(name):
    options, mistakes = resolve(BUILT_IN[name].load(), {})
    assert not mistakes
    assert all(options.get(one) is None or options[one] < forms.FAR_T for one in BLOCKS)
    assert all(options.get(one) is None or 2 * options[one] < MAX_T for one in ("block", "chunk", "window"))


def test_looking_far_is_quick():
    inputs = Subject(Exact, {}, "causal", n_heads=4, d_head=16).inputs(1, max(causality.FAR))
    assert inputs.x.numel() * len(causality.FAR_CUTS) < 10**6  # numbers that go through the mixer, once for each cut


def test_the_good_plugin_file_keeps_every_promise_in_every_role():
    certificate = attnbench.check_variant(plugin("good"))
    assert {result.role for result in certificate.results if result.status == "kept"} == set(ROLES)
    assert certificate.variant == "cosine"


@pytest.mark.parametrize("stem", ["good", *PLUGINS])
def test_the_class_of_a_plugin_file_is_short(stem):
    assert len(inspect.getsource(plugin(stem).attend).splitlines()) < 25


def test_a_leak_is_reported_with_its_role_input_options_error_and_tolerance():
    certificate = certify(plugin("leaks_future"), options={"block": 3}, roles=["causal"])
    (result,) = (result for result in certificate.broken if result.name == "causal_values")
    assert result.role == "causal"
    for part in ("x (1, 2, 8)", "float64", "block = 3", "t = 1", "max abs difference", "tolerance 1e-09"):
        assert part in result.detail


def test_a_crash_is_reported_with_its_type_message_and_line_of_the_plugin():
    (result,) = (r for r in certify(mutants.CrashesAtOne, roles=["bidirectional"]).broken if r.name == "any_length")
    line = 1 + inspect.getsource(mutants).splitlines().index('            raise IndexError("no second position")')
    assert result.detail == f"x (2, 1, 8), float64: IndexError: no second position (mutants.py:{line})"


def test_a_crash_inside_torch_is_traced_to_the_line_that_called_it():
    try:
        Exact(attnbench.Spec(8, 2, 16))(torch.zeros(1, 3, 8).double())
    except RuntimeError as error:
        described = describe_error(error)
    assert "test_conformance.py" in described  # the innermost frame outside attnbench and torch


@pytest.mark.parametrize("cls", [mutants.RaisesInConstructor, mutants.RaisesInForward])
def test_a_mixer_that_cannot_run_is_an_error_and_nothing_else_is_tried(cls):
    certificate = certify(cls)
    assert [(r.name, r.role, r.status) for r in certificate.results] == [("shape", role, "error") for role in ROLES]
    assert all("no such luck (mutants.py:" in result.detail for result in certificate.broken)


def test_a_misspelt_option_is_an_error_that_names_it():
    (result,) = certify(Exact, options={"n_kv_head": 1}, roles=["causal"]).results
    assert result.status == "error"
    assert "n_kv_head" in result.detail


@pytest.mark.parametrize("told", [True, False, 0, ["why"]])
def test_a_capability_that_gives_no_reason_in_words_is_named(told):
    made = type("Vague", (Exact,), {"unsupported": classmethod(lambda *_, **__: told)})
    (result,) = certify(made, roles=["causal"]).broken
    assert result.detail.endswith(f"Vague.unsupported returned {told!r}, expected a reason or None")


def test_a_capability_that_raises_is_an_error():
    (result,) = certify(mutants.RaisesInUnsupported, roles=["cross"]).results
    assert (result.status, "KeyError" in result.detail) == ("error", True)


def test_a_refused_role_is_not_applicable_with_its_reason():
    certificate = check_variant(Recurrent)
    (cross,) = (result for result in certificate.results if result.role == "cross")
    assert (cross.status, cross.detail) == ("not applicable", "no cross role")


@pytest.mark.parametrize(("cls", "roles"), [(mutants.ServesNobody, None), (Recurrent, ["cross"]), (Exact, [])])
def test_a_variant_that_serves_no_role_is_red(cls, roles):
    assert not certify(cls, roles=roles).broken
    with pytest.raises(NonConformant, match="serves none of the roles"):
        check_variant(cls, roles=roles)


def test_the_exception_lists_every_broken_promise_and_carries_the_certificate():
    with pytest.raises(NonConformant) as caught:
        check_variant(mutants.MixesRows)
    certificate = caught.value.certificate
    assert len(certificate.broken) > 3
    assert isinstance(caught.value, AssertionError)
    assert str(caught.value).splitlines()[1:] == [line for line in certificate.lines() if ": broken: " in line]


@pytest.mark.parametrize("thing", [3, torch.nn.Linear, "full", Exact(attnbench.Spec(8, 2, 16))])
def test_anything_but_a_mixer_class_is_a_type_error_in_one_line(thing):
    with pytest.raises(TypeError, match="expected a subclass of attnbench"):
        check_variant(thing)


def test_unknown_roles_and_dtypes_are_named():
    with pytest.raises(ValueError, match="'sideways'"):
        certify(Exact, roles=["causal", "sideways"])
    with pytest.raises(ValueError, match="'float8'"):
        certify(Exact, dtype="float8")


def test_a_certificate_is_plain_data_and_one_line_per_result():
    certificate = certify(mutants.AddsBlockMean, options={"d_v": 3}, roles=["causal", "cross"])
    data = json.loads(json.dumps(dataclasses.asdict(certificate)))
    assert data["variant"] == "adds_block_mean"
    assert data["options"] == {"d_v": 3}
    assert len(data["results"]) == len(certificate.lines())
    assert all("\n" not in line for line in certificate.lines())


def test_the_callers_random_numbers_and_gradient_mode_are_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with torch.no_grad():
        assert certify(mutants.DropsOutInEval, roles=["bidirectional"]).broken
        assert certify(Exact, roles=["bidirectional"]).ok  # although the caller has gradients switched off
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.rand(3), expected)


def test_a_certificate_is_the_same_every_time():
    assert certify(mutants.DropsOutInEval, roles=["causal"]) == certify(mutants.DropsOutInEval, roles=["causal"])


def test_a_stranger_can_check_a_class_from_a_script():
    script = """
from attnbench import Mixer, check_variant
try:
    check_variant(Mixer)
except AssertionError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "mixer [causal] shape: error" in done.stdout
    assert "NotImplementedError: Mixer must define forward" in done.stdout
