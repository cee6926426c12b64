"""What holds for every built-in variant, whatever its mechanism. A new one takes part by being registered."""

from __future__ import annotations

import re
import typing

import pytest
import torch
from cores import BUILT_IN, NO_STEPS, assert_equal, build, noise, ragged_mask, values_and_gradients
from run_rows import tiny_cell

from attnbench import options, registry
from attnbench.execute.abilities import SIZE, abilities
from attnbench.execute.describe import judge
from attnbench.mixer import Attention, Mixer, Role, Spec, Use
from attnbench.sweep import VariantUse

ROLES: tuple[Role, ...] = typing.get_args(Role)
SOURCES = registry.installed(registry.VARIANTS)
SERVED = [
    (name, role)
    for name, cls in BUILT_IN.items()
    for role in ROLES
    if cls.unsupported(Spec(12, 3, 300, role), Use(300, 300)) is None
]
TRAINED = [
    (name, role)
    for name, role in SERVED
    if BUILT_IN[name].unsupported(Spec(12, 3, 300, role), Use(300, 300, phase="forward_backward")) is None
]
CAUSAL = [name for name, role in SERVED if role == "causal"]
COUNTS = [
    (name, option)
    for name, cls in BUILT_IN.items()
    for option, field in options.model_of(cls).model_fields.items()
    if "Ge(ge=1)" in f"{field.metadata}{field.annotation}"
]


def taken(mixer: Mixer, x: torch.Tensor, S: int = 11, dtype: torch.dtype = torch.float64) -> dict[str, torch.Tensor]:
    """The context of a mixer in the cross role."""
    if mixer.spec.role != "cross":
        return {}
    return {"context": noise(len(x), S, mixer.spec.d_model, seed=1, dtype=dtype)}


# No state of its own


@pytest.mark.parametrize(("name", "role"), TRAINED)
def test_a_short_sequence_leaves_no_trace_on_a_long_one(name, role):
    x, mixers = noise(1, 300, 12), [build(name, role), build(name, role)]
    for length in (1, 32):
        short = noise(2, length, 12, seed=2)
        values_and_gradients(lambda short=short: mixers[0](short, **taken(mixers[0], short)), [short])
        if BUILT_IN[name].unsupported(mixers[0].spec, Use(length, length, phase="decode")) is None:
            mixers[0].step(short[:, 0], mixers[0].prefill(short, **taken(mixers[0], short))[1])
    used, fresh = (values_and_gradients(lambda m=m: m(x, **taken(m, x)), [x, *m.parameters()]) for m in mixers)
    assert all(torch.equal(one, other) for one, other in zip(used, fresh, strict=True))
    assert mixers[0].extra_record() == mixers[1].extra_record()
    assert mixers[0].flops(300, 300) == mixers[1].flops(300, 300)
    assert all(torch.equal(a, b) for a, b in zip(*(m.state_dict().values() for m in mixers), strict=True))


# Time runs one way


@pytest.mark.parametrize("T", [1, 7, 8, 64])
@pytest.mark.parametrize("name", CAUSAL)
def test_an_impulse_at_the_end_does_not_wrap_around_to_the_start(name, T):
    mixer, impulse = build(name), torch.zeros(1, T, 12).double()
    impulse[:, -1] = 10.0  # gates multiply: of a small one, little would come out
    y = mixer(impulse)
    if name in ("mingru", "minlstm"):  # their g(0) is 1/2, so that silence is not 0
        y = y - mixer(torch.zeros_like(impulse))
    assert y[:, -1].abs().max() > 1e-3
    assert_equal([y[:, :-1]], [torch.zeros(1, T - 1, 12).double()], 1e-12)


@torch.no_grad()
@pytest.mark.parametrize(
    "name", [name for name in CAUSAL if name not in NO_STEPS and "T^2" not in BUILT_IN[name].claim.time]
)
def test_decoding_equals_the_whole_pass_past_65536_positions(name):
    torch.manual_seed(0)
    mixer, x = BUILT_IN[name](Spec(8, 1, 65537)), noise(1, 65537, 8, dtype=torch.float32)
    _, state = mixer.prefill(x[:, :-1])
    assert_equal([mixer.step(x[:, -1], state)[0]], [mixer(x)[:, -1]], 1e-4)


# What is passed is used or refused


@pytest.mark.parametrize(("name", "role"), SERVED)
def test_a_mask_that_is_not_of_the_keys_is_refused_and_never_ignored(name, role):
    mixer, x = build(name, role), noise(2, 9, 12)
    given = taken(mixer, x, S=9)
    wrong = [torch.ones(shape).bool() for shape in ((9, 9), (2, 9, 9), (2, 1, 1, 9), (1, 9), (2, 8), (9,))]
    for key_mask in (*wrong, torch.ones(2, 9), torch.ones(2, 9).long()):
        for call in (mixer, mixer.prefill):
            with pytest.raises(ValueError, match=r"key_mask must be bool \(2, 9\), True where a key is real, got"):
                call(x, **given, key_mask=key_mask)


@pytest.mark.parametrize(("name", "role"), SERVED)
def test_values_have_a_width_of_their_own_or_the_option_is_refused(name, role):
    if not issubclass(BUILT_IN[name], Attention):
        assert [option for option, _ in options.resolve(BUILT_IN[name], {"d_v": 6})[1]] == ["d_v"]
        return
    mixer, x = build(name, role, d_k=4, d_v=6), noise(2, 9, 12)
    q, k, v, *extra = mixer.project(x, taken(mixer, x).get("context", x))
    assert (q.shape[-1], k.shape[-1], v.shape[-1]) == (4, 4, 6)
    assert mixer.attend(q, k, v, *extra).shape == (2, 3, 9, 6)
    assert mixer(x, **taken(mixer, x)).shape == x.shape


@pytest.mark.parametrize(("name", "option"), COUNTS)
def test_no_size_below_1_and_no_half_one_gets_through(name, option):
    for value, told in ((0, "at least 1, got 0"), (-1, "at least 1, got -1"), (2.5, "a whole number, got 2.5")):
        assert options.resolve(BUILT_IN[name], {option: value})[1] == [(option, f"expected {told}")]
        with pytest.raises(ValueError, match=f"^{option} must be {told}"):
            build(name, **{option: value})


# What the listing says is so


def row(name: str) -> dict[str, typing.Any]:
    (found,), broken = abilities({name: SOURCES[name]})
    assert broken == []
    return found


def judged(name: str, role: Role, **changes: object) -> str | None:
    """Why a cell in this role is unsupported."""
    sizes = {"T": SIZE, "S": SIZE, "max_T": SIZE, "d_model": SIZE, "n_heads": 4, "role": role}
    (answer,) = judge(
        [tiny_cell(parts=(VariantUse(name),), **sizes | changes)], SOURCES, registry.installed(registry.TASKS)
    )
    return answer.reason


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_role_that_is_listed_runs_and_any_other_is_unsupported_with_the_reason_that_is_listed(name):
    told = row(name)
    served = [role for role in ROLES if told["roles"][role] is None]
    assert judged(name, (served or ROLES)[0]) == told["devices"]["cpu"]
    for role in ROLES if told["devices"]["cpu"] is None else ():
        reason = told["roles"][role]
        assert judged(name, role) == reason
        if reason is not None:
            with pytest.raises(ValueError, match=re.escape(reason)):
                build(name, role)
            continue
        mixer, x = build(name, role), noise(2, 9, 12)
        assert mixer(x, **taken(mixer, x)).shape == (2, 9, 12)
        assert judged(name, role, phase="decode") == told["decoding"][role]


@pytest.mark.parametrize(("name", "role"), SERVED)
def test_a_mask_that_is_listed_is_taken_and_any_other_refused(name, role):
    mixer, x, told = build(name, role), noise(4, 9, 12), row(name)["masks"][role]
    given = taken(mixer, x, S=9)
    for kind, key_mask in (("right", torch.arange(9) < torch.tensor([[9], [5], [1], [2]])), ("any", ragged_mask(4, 9))):
        if told[kind] is None:
            assert mixer(x, **given, key_mask=key_mask).isfinite().all()
        else:
            with pytest.raises(ValueError, match="key_mask"):
                mixer(x, **given, key_mask=key_mask)


@torch.no_grad()
@pytest.mark.parametrize("name", CAUSAL)
def test_decoding_that_is_listed_is_there(name):
    mixer, x = build(name), noise(2, 4, 12)
    if row(name)["decoding"]["causal"] is None:
        y, state = mixer.prefill(x[:, :3])
        assert_equal([y, mixer.step(x[:, 3], state)[0]], [mixer(x)[:, :3], mixer(x)[:, 3]], 1e-11)
    else:
        with pytest.raises(NotImplementedError):
            mixer.prefill(x)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("name", "role"), SERVED)
def test_half_precision_on_a_cpu_runs_or_has_a_reason(name, role, dtype):
    if BUILT_IN[name].unsupported(Spec(12, 3, 300, role), Use(70, 70, dtype=dtype)) is not None:
        assert judged(name, role, dtype=dtype) is not None
        return
    kind = getattr(torch, dtype)
    mixer, x = build(name, role).to(kind), noise(2, 70, 12, dtype=kind)
    found = values_and_gradients(lambda: mixer(x, **taken(mixer, x, dtype=kind)), [x, *mixer.parameters()])
    assert {part.dtype for part in found} == {kind}
    assert all(part.isfinite().all() for part in found)


@pytest.mark.parametrize("name", [name for name, role in TRAINED if role == "causal"])
def test_training_in_float16_is_refused_whatever_the_variant(name):
    told = "in float16 gradients and AdamW's epsilon underflow"
    for changes in ({"phase": "train_step"}, {"phase": None, "task": "copy", "task_options": {}}):
        sizes = {"level": "model", "n_layers": 1, "d_ff": 8, "positions": "none"} | changes
        assert judged(name, "causal", dtype="float16", **sizes).startswith(told)
        assert judged(name, "causal", dtype="bfloat16", **sizes) is None
