"""Operations of a cell: against torch's counter where it counts, against hand-made sums where it does not."""

import pytest
import torch
from run_rows import tiny_cell as cell
from torch.utils.flop_counter import FlopCounterMode

from attnbench.execute.build import MODEL_VOCAB, build_module, build_workload
from attnbench.execute.cell import _in_force
from attnbench.execute.phases import phase_call
from attnbench.measure.cost import cost
from attnbench.mixer import Attention, Flops, Mixer, visible_pairs


class Dense(Attention):
    """Scores by matrix products that torch's counter sees."""

    def attend(self, q, k, v, *extra, key_mask=None):
        scores = q @ k.transpose(-1, -2)
        if self.spec.role == "causal":
            scores = scores.masked_fill(
                scores.new_ones(scores.shape[-2:]).triu(1 + scores.shape[-1] - scores.shape[-2]).bool(), -1e9
            )
        return scores.softmax(-1) @ v

    def flops(self, T, S):
        visible = self.pair_flops(visible_pairs(T, S, self.spec.role))
        return Flops(visible, self.projection_flops(T, S), core_executed=self.pair_flops(T * S))


class Untold(Mixer):
    def forward(self, x, *, context=None, key_mask=None):
        return x


LEVELS = {
    "core": {"level": "core"},
    "layer": {"level": "layer"},
    "block": {"level": "block", "d_ff": 32},
    "no feed-forward": {"level": "block", "d_ff": 0},
    "model": {"level": "model", "d_ff": 32, "n_layers": 3, "positions": "learned", "embedding_std": 0.02},
    "cross": {"level": "layer", "role": "cross", "S": 7},
}


def sizes(asked):
    return {
        "level": asked.level,
        "phase": asked.phase,
        "T": asked.T,
        "S": asked.S,
        "B": asked.B,
        "d_ff": asked.d_ff or 0,
        "vocab_size": MODEL_VOCAB,
    }


@pytest.mark.parametrize("phase", ["forward", "forward_backward"])
@pytest.mark.parametrize("level", LEVELS)
def test_executed_operations_equal_torchs_count(level, phase):
    asked = cell(phase=phase, **LEVELS[level])
    workload = build_workload(asked, build_module(asked, Dense))
    with FlopCounterMode(display=False) as counter:  # it follows modules, which autograd.grad does not let it
        y = workload.forward()
        if phase == "forward_backward":
            y.backward(torch.ones_like(y))
    known = cost(workload.mixers, **sizes(asked))
    assert known is not None
    assert known.executed == counter.get_total_flops()


@pytest.mark.parametrize("level", ["layer", "block", "no feed-forward", "model", "cross"])
def test_a_step_of_decoding_executes_what_torch_counts(level):
    asked = cell(phase="decode", **LEVELS[level] | {"max_T": 13})
    workload = build_workload(asked, build_module(asked, Dense))
    with torch.no_grad():
        call = phase_call(workload, "decode")
        with FlopCounterMode(display=False) as counter:
            call()
    assert cost(workload.mixers, **sizes(asked)).executed == counter.get_total_flops()


def test_prefill_costs_a_forward_pass():
    mixers = build_workload(cell(), build_module(cell(), Dense)).mixers
    assert cost(mixers, **sizes(cell(phase="prefill"))) == cost(mixers, **sizes(cell()))


@pytest.mark.parametrize("phase", ["forward", "backward", "forward_backward", "train_step", "decode"])
def test_core_and_projection_are_parts_of_the_visible_operations(phase):
    T, d, B, times = 64, 8, 3, {"backward": 2, "forward_backward": 3, "train_step": 3}.get(phase, 1)
    block = {"T": T, "S": T, "max_T": T + 1, "B": B, "level": "block", "d_ff": 32}
    asked, bare = cell(phase=phase, **block), cell(phase=phase, **block | {"level": "core"})
    mixers = build_workload(cell(**block), build_module(cell(**block), Dense)).mixers
    known, core = cost(mixers, **sizes(asked)), cost(mixers, **sizes(bare))
    n = 1 if phase == "decode" else T
    assert known.projection == times * B * 8 * n * d**2
    assert known.flops - known.core - known.projection == times * B * 4 * n * d * 32
    assert known.core == times * B * (4 * (T + 1) * d if phase == "decode" else 2 * T * (T + 1) * d)
    assert (core.flops, core.core, core.projection) == (known.core, known.core, 0)


def test_causal_mask_halves_the_visible_core_and_nothing_else():
    T, d_model = 64, 8
    asked = cell(T=T, S=T, B=1, max_T=T)
    mixers = build_workload(asked, build_module(asked, Dense)).mixers
    known = cost(mixers, **sizes(asked))
    assert known is not None
    assert known.flops == 8 * T * d_model**2 + 2 * T * (T + 1) * d_model
    assert known.executed == 8 * T * d_model**2 + 4 * T**2 * d_model


def test_recomputation_in_the_backward_pass_is_executed_and_not_visible():
    class Recomputing(Dense):
        def flops(self, T, S):
            return Flops(100.0, 10.0, core_executed=200.0, backward=2.5)

    asked = cell(phase="forward_backward", B=1)
    known = cost(build_workload(asked, build_module(asked, Recomputing)).mixers, **sizes(asked))
    assert known is not None
    assert (known.flops, known.executed) == (330.0, 200 * 3.5 + 30)


def test_without_a_formula_the_cost_is_not_available():
    asked = cell()
    assert cost(build_workload(asked, build_module(asked, Untold)).mixers, **sizes(asked)) is None


def test_gradients_of_a_call_are_returned_and_never_pile_up():
    asked = cell(phase="forward_backward")
    workload = build_workload(asked, build_module(asked, Dense))
    call = phase_call(workload, "forward_backward")
    first, second = call(), call()
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b)
    assert all(parameter.grad is None for parameter in workload.module.parameters())


def test_core_has_ready_inputs_and_no_parameters():
    workload = build_workload(cell(level="core"), build_module(cell(level="core"), Dense))
    assert workload.n_params == workload.n_params_body == 0
    assert [tuple(x.shape) for x in workload.inputs] == [(3, 2, 12, 4)] * 3


@pytest.mark.parametrize("level", ["layer", "block"])
def test_below_a_model_all_parameters_are_body(level):
    workload = build_workload(cell(level=level), build_module(cell(level=level), Dense))
    assert workload.n_params_body == workload.n_params > 0


def test_parameters_that_the_core_uses_get_a_gradient():
    class Scaled(Dense):
        def __init__(self, spec):
            super().__init__(spec)
            self.scale = torch.nn.Parameter(torch.ones(()))

        def attend(self, q, k, v, *extra, key_mask=None):
            return super().attend(q * self.scale, k, v)

    asked = cell(level="core", phase="forward_backward")
    gradients = phase_call(build_workload(asked, build_module(asked, Scaled)), "forward_backward")()
    assert sum(gradient is not None for gradient in gradients) == 4


@pytest.mark.parametrize(("phase", "training"), [("forward", False), ("forward_backward", True)])
def test_forward_is_timed_as_in_use_and_backward_as_in_training(phase, training):
    assert build_module(cell(phase=phase), Dense).training is training


def test_a_mixer_inside_a_mixer_is_one_layer():
    class Wrapped(Dense):
        def __init__(self, spec):
            super().__init__(spec)
            self.inner = Dense(spec)

    asked = cell(level="block", d_ff=32)
    plain, wrapped = (_in_force(asked, build_workload(asked, build_module(asked, cls))) for cls in (Dense, Wrapped))
    assert wrapped["flops"] == plain["flops"]


def test_core_of_a_mixer_without_keys_is_refused():
    with pytest.raises(TypeError, match="no queries and keys"):
        build_workload(cell(level="core"), build_module(cell(level="core"), Untold))
