import copy
import tomllib
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from catalogues import TORN, catalogue
from hypothesis import assume, given
from hypothesis import strategies as st

from attnbench.cells import expand
from attnbench.errors import RequestError
from attnbench.settings import TimingSettings, TrainSettings
from attnbench.sweep import Grid, Sweep, VariantUse, validate, wanted_tasks, wanted_variants
from attnbench.sweep_file import read_toml

REQUIRED = 'variant = "full"\nT = 64\nd_model = 64\n'
GRID = f"[[grid]]\n{REQUIRED}"
ACCURACY = f'{GRID}measure = "accuracy"\ntask = "distance"\n'


def checked(tables, **more) -> Sweep:
    return validate(tables, "s.toml", catalogue(tables, **more))


def mistakes_in(tables, **more) -> list[str]:
    """The lines that a file gives, without the file's name; none when it is all right."""
    try:
        checked(tables, **more)
    except RequestError as error:
        return [line.removeprefix("s.toml: ") for line in error.mistakes]
    return []


def mistakes(text: str) -> list[str]:
    return mistakes_in(tomllib.loads(text))


def with_variant(value: str) -> str:
    return GRID.replace('"full"', value)


def with_T(value: str) -> str:
    return GRID.replace("T = 64", f"T = {value}")


# What is right


def test_the_least_that_a_sweep_needs_is_a_variant_a_length_and_a_width():
    sweep = checked(tomllib.loads(GRID))
    assert sweep.grid[0].T == [64]
    assert sweep.baseline is None


def test_the_example_of_the_manual_is_valid():
    text = """
    question = "At which T?"
    baseline = "fused"
    plugins = []
    memory_limit = "8GiB"
    timeout = "60s"
    [defaults]
    phase = "forward_backward"
    level = "layer"
    measure = ["time", "memory"]
    [[grid]]
    variant = ["full", "window", { name = "window", window = 16 }]
    T = [64, 128]
    d_model = [64, 128]
    d_ff = 0
    [[grid]]
    measure = ["accuracy"]
    variant = ["fused", "linear"]
    task = ["distance"]
    T = [64]
    d_model = [32]
    seed = [0, 1, 2]
    [options.window]
    window = 32
    [tasks.distance]
    n_slots = 8
    [timing]
    visits = 3
    [train]
    steps = 300
    lr = [1e-3, 3e-3]
    """
    sweep = checked(tomllib.loads(text))
    assert sweep.memory_limit == 8 * 2**30
    assert sweep.timeout == 60.0
    assert sweep.train.lr == [1e-3, 3e-3]


def test_one_value_stands_for_a_list_of_one():
    assert checked(tomllib.loads(GRID)) == checked(tomllib.loads(with_T("[64]")))


def test_an_inner_list_is_a_stack_and_the_outer_one_an_axis():
    tables = {"variant": [["window", {"name": "linear", "eps": 1e-3}], "full"], "T": 8, "d_model": 8, "level": "model"}
    stack, plain = checked({"grid": [tables]}).grid[0].variant
    assert stack == (VariantUse("window"), VariantUse("linear", {"eps": 1e-3}))
    assert plain == (VariantUse("full"),)


@pytest.mark.parametrize(
    ("variant", "more", "line"),
    [
        ('[["window", "lineer"]]', 'level = "model"', 'grid[0].variant[0][1]: unknown variant "lineer"'),
        ('[["window", { name = "linear", epz = 1 }]]', 'level = "model"', "grid[0].variant[0][1].epz: unknown option"),
        ("[[]]", 'level = "model"', "grid[0].variant[0]: expected a stack of one or more variants"),
        ('[["window", ["full"]]]', 'level = "model"', "grid[0].variant[0]: expected a name or a table"),
        ('[["window", "linear"]]', "", "needs level model and n_layers a multiple of 2, got level layer"),
        ('[["window", "linear"]]', 'level = "model"\nn_layers = 3', "a multiple of 2, got n_layers = 3"),
    ],
)
def test_a_wrong_stack_is_told_with_its_layer(variant, more, line):
    told = mistakes(f"[[grid]]\nvariant = {variant}\nT = [8, 16]\nd_model = 8\n{more}\n")
    assert len(told) == 1
    assert line in told[0]


@pytest.mark.parametrize("text", ["64.0", "6.4e1", "[0.64e2]"])
def test_a_whole_number_may_be_written_as_a_float(text):
    assert checked(tomllib.loads(with_T(text))).grid[0].T == [64]


@pytest.mark.parametrize(
    ("text", "seconds"), [('"250ms"', 0.25), ('"90s"', 90), ('"1.5m"', 90), ('"2 min"', 120), ('"1h"', 3600), ("5", 5)]
)
def test_durations(text, seconds):
    assert checked(tomllib.loads(f"timeout = {text}\n{GRID}")).timeout == seconds


@pytest.mark.parametrize(
    ("text", "n_bytes"), [('"8GiB"', 2**33), ('"8 GB"', 8 * 10**9), ('"1.5KiB"', 1536), ('"7B"', 7), ("8e9", 8 * 10**9)]
)
def test_sizes_of_memory(text, n_bytes):
    assert checked(tomllib.loads(f"memory_limit = {text}\n{GRID}")).memory_limit == n_bytes


@pytest.mark.parametrize("role", ["role = 'cross'", "level = 'core'"])
def test_keys_have_a_length_of_their_own_where_that_means_something(role):
    assert mistakes(f"{GRID}S = 32\n{role}\n") == []


def test_the_smallest_length_of_a_task_is_long_enough():
    assert mistakes(ACCURACY.replace("T = 64", "T = 8")) == []
    assert mistakes(f"{ACCURACY}[tasks.distance]\nn_slots = 32\n") == []


def test_a_grid_may_turn_over_how_the_defaults_count_heads():
    assert mistakes(f"[defaults]\nd_head = 24\n{GRID}n_heads = 4\n") == []
    assert mistakes(f"[defaults]\nn_heads = 3\n{GRID}d_head = 16\n") == []


def test_options_of_a_variant_that_no_grid_uses_are_no_mistake():
    assert mistakes(f"{GRID}[options.window]\nwindow = 8\n") == []


def test_a_table_of_options_may_leave_what_each_use_gives():
    assert mistakes(with_variant('{ name = "demanding", n = 3 }') + "[options.demanding]\nstrict = true\n") == []


# What is wrong, and how it is told

WRONG_KEYS = {
    "windw = 3\n"
    + GRID: "windw: unknown key; known: baseline, defaults, grid, match_to, memory_limit, options, plugins, "
    "question, tasks, timeout, timing, train",
    GRID + "dtpe = 'float32'\n": 'grid[0].dtpe: unknown key; did you mean "dtype"?',
    GRID + "t = [64]\n": 'grid[0].t: unknown key; did you mean "T"?',
    "[defaults]\nlevels = 'core'\n" + GRID: 'defaults.levels: unknown key; did you mean "level"?',
    GRID + "[train]\nstep = 3\n": 'train.step: unknown key; did you mean "steps"?',
    GRID + "[timing]\nvisit = 3\n": 'timing.visit: unknown key; did you mean "visits"?',
    GRID + "[train]\ndropout = 0.1\n": "train.dropout: unknown key; known: amp, batch_size, clip, compile, eval_every, "
    "judged_at, lr, n_random, n_test, n_training, n_validation, quick, steps, stop_at, test_at, warmup, "
    "weight_decay",
    GRID + "lr = 1e-3\n": "grid[0].lr: unknown key here; it belongs in [train]",
    "T = 64\n" + GRID: "T: unknown key here; it belongs in [[grid]] or [defaults]",
    GRID + "[timing]\nplugins = []\n": "timing.plugins: unknown key here; it belongs at the top of the file, before "
    "the first table",
    GRID
    + '"größe" = 3\n': "grid[0].größe: unknown key; known: B, S, T, compile, d_ff, d_head, d_model, device, dtype, "
    "embedding_std, level, match, max_T, measure, n_heads, n_layers, n_training, phase, positions, pretrain, role, "
    "seed, task, threads, variant",
}
WRONG_NAMES = {
    with_variant('["full", "windw"]'): 'grid[0].variant[1]: unknown variant "windw"; did you mean "window"?',
    with_variant('"performr"'): 'grid[0].variant: unknown variant "performr"; known: demanding, full, fused, linear, '
    "torn, window",
    with_variant(
        '"fünf"'
    ): 'grid[0].variant: unknown variant "fünf"; known: demanding, full, fused, linear, torn, window',
    with_variant('{ name = "windo" }'): 'grid[0].variant: unknown variant "windo"; did you mean "window"?',
    with_variant('"torn"'): f'grid[0].variant: "torn" cannot be used: {TORN}',
    GRID + "[options.windw]\nwindow = 8\n": 'options.windw: unknown variant "windw"; did you mean "window"?',
    ACCURACY.replace("distance", "distanse"): 'grid[0].task: unknown task "distanse"; did you mean "distance"?',
    GRID + "[tasks.mqar]\nn_pairs = 8\n": 'tasks.mqar: unknown task "mqar"; known: distance',
    "[defaults]\nvariant = 'ful'\n[[grid]]\nT = 4\nd_model = 4\n": 'defaults.variant: unknown variant "ful"; '
    'did you mean "full"?',
}
WRONG_OPTIONS = {
    with_variant('{ name = "window", windw = 8 }'): 'grid[0].variant.windw: unknown option; did you mean "window"?',
    with_variant('["full", { name = "full", window = 8 }]'): "grid[0].variant[1].window: unknown option; it takes none",
    with_variant(
        '{ name = "linear", window = 8 }'
    ): "grid[0].variant.window: unknown option; known: eps, kind, n_features",
    with_variant('{ name = "window", window = 0 }'): "grid[0].variant.window: expected at least 1, got 0",
    with_variant('"window"') + "[options.window]\nwindow = -1\n": "options.window.window: expected at least 1, got -1",
    with_variant('{ name = "window", window = "8" }'): 'grid[0].variant.window: expected a whole number, got "8"',
    with_variant('{ name = "window", window = true }'): "grid[0].variant.window: expected a whole number, got true",
    with_variant('{ name = "linear", n_features = 513 }'): "grid[0].variant.n_features: expected at most 512, got 513",
    with_variant('{ name = "linear", kind = "elo" }'): 'grid[0].variant.kind: expected "elu" or "relu", got "elo"; '
    'did you mean "elu"?',
    with_variant(
        '{ name = "linear", kind = "softmax" }'
    ): 'grid[0].variant.kind: expected "elu" or "relu", got "softmax"',
    with_variant('"demanding"'): "grid[0].variant.n: missing; this option has no default",
    with_variant('"window"') + "[options.linear]\neps = 'x'\n": 'options.linear.eps: expected a number, got "x"',
    ACCURACY + "[tasks.distance]\nnslots = 3\n": 'tasks.distance.nslots: unknown option; did you mean "n_slots"?',
    ACCURACY + "[tasks.distance]\nn_slots = 0\n": "tasks.distance.n_slots: expected at least 1, got 0",
}
WRONG_VALUES = {
    with_T('"64"'): 'grid[0].T: expected a whole number, got "64"',
    with_T("[true]"): "grid[0].T[0]: expected a whole number, got true",
    with_T("[64, 64.5]"): "grid[0].T[1]: expected a whole number, got 64.5",
    with_variant("false"): 'grid[0].variant: expected a name or a table { name = "...", option = ... }, got false',
    GRID + "seed = [true]\n": "grid[0].seed[0]: expected a whole number, got true",
    GRID + "embedding_std = '0.1'\n": 'grid[0].embedding_std: expected a number, got "0.1"',
    GRID + "[train]\nlr = [1e-4, '3e-4']\n": 'train.lr[1]: expected a number, got "3e-4"',
    with_T("nan"): "grid[0].T: expected a whole number, got nan",
    with_T("0"): "grid[0].T: expected at least 1, got 0",
    with_T("-3"): "grid[0].T: expected at least 1, got -3",
    with_T("[]"): "grid[0].T: expected a list of 1 or more, got []",
    with_T("[[64]]"): "grid[0].T[0]: expected a whole number, got [64]",
    with_T("9223372036854775808"): "grid[0].T: expected less than 9223372036854775808, got 9223372036854775808",
    GRID + "seed = -1\n": "grid[0].seed: expected at least 0, got -1",
    GRID + "seed = 2020-01-01\n": "grid[0].seed: expected a whole number, got 2020-01-01",
    GRID + "embedding_std = inf\n": "grid[0].embedding_std: expected a finite number, got inf",
    GRID + "embedding_std = 0.0\n": "grid[0].embedding_std: expected more than 0, got 0.0",
    GRID + "dtype = 'fp16'\n": 'grid[0].dtype: expected "float64", "float32", "bfloat16" or "float16", got "fp16"',
    GRID + "role = 'casual'\n": 'grid[0].role: expected "causal", "bidirectional" or "cross", got "casual"; '
    'did you mean "causal"?',
    GRID + "[train]\nlr = '1e-3'\n": 'train.lr: expected a number, got "1e-3"',
    GRID + "[train]\nlr = [1e-3, 0]\n": "train.lr[1]: expected more than 0, got 0",
    GRID + "[train]\nlr = []\n": "train.lr: expected a list of 1 or more, got []",
    GRID + "[train]\nwarmup = 1.5\n": "train.warmup: expected at most 1, got 1.5",
    GRID + "[train]\nsteps = '600'\n": 'train.steps: expected a whole number, got "600"',
    GRID + "[timing]\nmax_s = nan\n": "timing.max_s: expected a finite number, got nan",
    "plugins = 3\n" + GRID: "plugins: expected a string, got 3",
    "question = 3\n" + GRID: "question: expected a string, got 3",
    "baseline = true\n" + GRID: "baseline: expected a variant, or its label in tables, such as "
    '"window" or "window[window=16]", got true',
    "memory_limit = '8gb'\n" + GRID: 'memory_limit: expected a size such as "8GiB", got "8gb"',
    "memory_limit = 0\n" + GRID: "memory_limit: expected more than 0, got 0",
    "timeout = '1 day'\n" + GRID: 'timeout: expected a duration such as "60s" or "5m", got "1 day"',
    "timeout = inf\n" + GRID: "timeout: expected a finite number, got inf",
    f"timeout = {10**70}\n{GRID}[timing]\nmax_s = -1\n": "timing.max_s: expected at least 0, got -1",
    f"timeout = {10**400}\n{GRID}": f"timeout: expected a number, got 1{'0' * 59}...",
    "timeout = true\n" + GRID: "timeout: expected a number, got true",
}
WRONG_SHAPES = {
    "question = 'x'\n": "grid: expected one or more [[grid]] tables, got none",
    "grid = []\n": "grid: expected one or more [[grid]] tables, got []",
    "grid = [3]\n": "grid[0]: expected a table, got 3",
    f"[grid]\n{REQUIRED}": 'grid: expected one or more [[grid]] tables, got { variant = "full", T = 64, d_model = 64 }',
    "options = 3\n" + GRID: "options: expected a table, got 3",
    "[options]\nwindow = 5\n" + GRID: "options.window: expected a table, got 5",
    "[[defaults]]\nT = 3\n" + GRID: "defaults: expected a table, got [{ T = 3 }]",
    "train = 3\n" + GRID: "train: expected a table, got 3",
    "tasks = [1]\n" + GRID: "tasks: expected a table, got [1]",
    with_variant("{ window = 8 }"): 'grid[0].variant: expected a name or a table { name = "...", option = ... }, '
    "got { window = 8 }",
    with_variant("[{ name = 3 }]"): 'grid[0].variant[0]: expected a name or a table { name = "...", option = ... }, '
    "got { name = 3 }",
    with_variant("3"): 'grid[0].variant: expected a name or a table { name = "...", option = ... }, got 3',
}
WRONG_COMBINATIONS = {
    '[defaults]\nvariant = ["full", { name = "window", window = 8 }]\n' + GRID: (
        'defaults.variant: expected one value, got ["full", { name = "window", window = 8 }]; lists belong in [[grid]]'
    ),
    'baseline = { name = "window", window = 8 }\n'
    + GRID: "baseline: expected a variant, or its label in tables, such as "
    '"window" or "window[window=16]", got { name = "window", window = 8 }',
    "[defaults]\nT = [64, 128]\n" + GRID: "defaults.T: expected one value, got [64, 128]; lists belong in [[grid]]",
    GRID + "n_heads = 5\n": "grid[0].d_model: 64 is not divisible by n_heads = 5",
    GRID.replace("d_model = 64", "d_model = 66"): "grid[0].d_model: 66 is not divisible by n_heads = 4",
    GRID + "d_head = 24\n": "grid[0].d_model: 64 is not divisible by d_head = 24",
    with_variant('[{ name = "fused", n_kv_heads = 2 }, { name = "fused", n_kv_heads = 3 }]'): (
        "grid[0].variant: fused has n_kv_heads = 3, which must divide n_heads = 4"
    ),
    with_variant('"fused"') + "d_head = 16\n[options.fused]\nn_kv_heads = 8\n": (
        "grid[0].variant: fused has n_kv_heads = 8, which must divide n_heads = 4"
    ),
    GRID + "d_head = 16\nn_heads = 4\n": "grid[0].d_head: give n_heads or d_head, not both",
    "[defaults]\nd_head = 16\nn_heads = 4\n" + GRID: "defaults.d_head: give n_heads or d_head, not both",
    GRID + "max_T = 32\n": "grid[0].T: 64 is beyond max_T = 32",
    GRID + "S = 96\nmax_T = 64\nrole = 'cross'\n": "grid[0].T: 96 is beyond max_T = 64",
    GRID
    + "S = 32\n": "grid[0].S: 32 differs from T = 64; only the role cross and the level core have an S of their own",
    GRID
    + "S = 32\nlevel = ['core', 'layer']\n": "grid[0].S: 32 differs from T = 64; only the role cross and the level "
    "core have an S of their own",
    GRID + "device = 'cuda'\n": "grid[0].device: torch sees no cuda here; available: cpu",
    GRID + "task = 'distance'\n": 'grid[0].task: only measure = ["accuracy"] trains on a task',
    GRID + "measure = 'accuracy'\n": "grid[0].task: missing; an accuracy grid names the task it trains on",
    ACCURACY.replace('"accuracy"', '["accuracy", "time"]'): 'grid[0].measure: "accuracy" has cells of its own; put '
    "time and memory in another [[grid]]",
    ACCURACY + "phase = 'forward'\n": "grid[0].phase: an accuracy cell has no phase",
    ACCURACY + "level = 'layer'\n": "grid[0].level: an accuracy cell is always at level model",
    ACCURACY + "B = 4\n": "grid[0].B: an accuracy cell is trained in batches of train.batch_size",
    ACCURACY.replace("T = 64", "T = 7"): "grid[0].T: 7 is too short for the task distance; its smallest T is 8",
    ACCURACY
    + "[tasks.distance]\nn_slots = 33\n": "grid[0].T: 64 is too short for the task distance; its smallest T is 66",
}
WRONG = WRONG_KEYS | WRONG_NAMES | WRONG_OPTIONS | WRONG_VALUES | WRONG_SHAPES | WRONG_COMBINATIONS


@pytest.mark.parametrize("text", WRONG)
def test_a_mistake_is_told_in_one_line_with_its_place_and_what_would_be_right(text):
    assert mistakes(text) == [WRONG[text]]


def test_what_each_grid_lacks_is_told():
    expected = [
        f"grid[0].{key}: missing; give at least one (here or in [defaults])" for key in ("variant", "T", "d_model")
    ]
    assert mistakes("[[grid]]\n") == expected
    assert mistakes("[defaults]\nT = 8\nd_model = 8\n[[grid]]\nvariant = 'full'\n") == []


def test_a_plugin_that_does_not_load_is_told_only_to_a_sweep_that_misses_a_name():
    broken = ("plugin bad.py: SyntaxError: invalid syntax (bad.py:2)",)
    assert mistakes_in(tomllib.loads(GRID), broken=broken) == []
    tables = tomllib.loads(with_variant('"mine"'))
    with pytest.raises(RequestError) as caught:
        checked(tables, broken=broken)
    assert caught.value.mistakes == [
        *broken,
        's.toml: grid[0].variant: unknown variant "mine"; known: demanding, full, fused, linear, torn, window',
    ]


def test_a_name_that_two_plugins_claim_stops_every_sweep():
    clash = 'two plugins are named "mine": a.py (A) and b.py (B)'
    with pytest.raises(RequestError, match="two plugins"):
        checked(tomllib.loads(GRID), clashes=(clash,))


APART = {  # mistakes that do not hide each other: where, what is put there, the line's beginning
    ("wndow",): (1, "wndow: unknown key"),
    ("question",): (1, "question: expected a string"),
    ("timeout",): ("x", "timeout: expected a duration"),
    ("grid", 0, "dtpe"): ("float32", "grid[0].dtpe: unknown key"),
    ("grid", 0, "B"): ("1", "grid[0].B: expected a whole number"),
    ("grid", 1, "variant"): (["fulll"], "grid[1].variant[0]: unknown variant"),
    ("grid", 1, "n_heads"): ([3], "grid[1].d_model: 64 is not divisible"),
    ("grid", 2, "measure"): (["accuracy"], "grid[2].task: missing"),
    ("defaults", "threads"): ([1, 2], "defaults.threads: expected one value"),
    ("train", "lr"): ("1e-3", "train.lr: expected a number"),
    ("timing", "visit"): (3, "timing.visit: unknown key"),
    ("options", "window", "windw"): (3, "options.window.windw: unknown option"),
    ("options", "linear", "kind"): ("gelu", "options.linear.kind: expected"),
    ("tasks", "distance", "n_slots"): (0, "tasks.distance.n_slots: expected at least 1"),
}


@given(st.sets(st.sampled_from(sorted(APART, key=str)), min_size=1))
def test_all_mistakes_of_a_file_are_told_in_one_go(places):
    tables = {"grid": [{"variant": "full", "T": 64, "d_model": 64} for _ in range(3)]}
    for place in places:
        table = tables
        for part in place[:-1]:
            table = table[part] if isinstance(part, int) else table.setdefault(part, {})
        table[place[-1]] = APART[place][0]
    told = mistakes_in(tables)
    assert len(told) == len(places)
    for place in places:
        assert sum(line.startswith(APART[place][1]) for line in told) == 1


KEYS = [(key, f"[[grid]]\n{REQUIRED}", "grid[0].") for key in Grid.model_fields]
KEYS += [(key, f"{GRID}[train]\n", "train.") for key in TrainSettings.model_fields]
KEYS += [(key, f"{GRID}[timing]\n", "timing.") for key in TimingSettings.model_fields]


@pytest.mark.parametrize(("key", "home", "path"), [each for each in KEYS if len(each[0]) > 4])
def test_a_key_with_two_letters_swapped_is_recognised(key, home, path):
    wrong = f"{key[:2]}{key[3]}{key[2]}{key[4:]}"
    assert mistakes(f"{home}{wrong} = 1\n") == [f'{path}{wrong}: unknown key; did you mean "{key}"?']


NOT_COUNTS = st.one_of(
    st.integers(max_value=0),
    st.integers(min_value=2**63),
    st.booleans(),
    st.text(),
    st.floats().filter(lambda x: not x.is_integer() or not 0 < x < 2**63),
    st.dates(),
    st.dictionaries(st.text(), st.integers(), max_size=2),
)


@given(st.sampled_from(["T", "B", "d_model", "n_layers", "threads"]), NOT_COUNTS)
def test_only_positive_whole_numbers_are_counts(key, value):
    tables = {"grid": [{"variant": "full", "T": 64, "d_model": 64, key: value}]}
    told = mistakes_in(tables)
    assert len(told) == 1
    assert told[0].startswith(f"grid[0].{key}: expected ")


NAMES = ["grid", "defaults", "options", "tasks", "train", "timing", "variant", "name", "T", "S", "d_model", "n_heads"]
NAMES += ["window", "full", "distance", "measure", "task", "lr", "max_T", "level", "n_slots", "plugins"]
SCALARS = st.one_of(
    st.sampled_from(["full", "window", "distance", "accuracy", "time", "core", "torn"]),
    st.integers(-2, 70),
    st.floats(),
    st.booleans(),
    st.just(date(2020, 1, 1)),
    st.text(max_size=3),
)
TABLES = st.dictionaries(
    st.sampled_from(NAMES),
    st.recursive(
        SCALARS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
        max_leaves=12,
    ),
    max_size=6,
)
AXES = {
    "variant": st.sampled_from(["full", "window", {"name": "window", "window": 8}]),
    "T": st.sampled_from([4, 8, 64, 64.0]),
    "S": st.sampled_from([8, 64]),
    "d_model": st.sampled_from([32, 48]),
    "n_heads": st.sampled_from([1, 4]),
    "d_head": st.sampled_from([8, 32]),
    "max_T": st.sampled_from([32, 64]),
    "role": st.sampled_from(["causal", "cross"]),
    "level": st.sampled_from(["core", "layer", "model"]),
    "measure": st.sampled_from(["time", "memory", "accuracy"]),
    "task": st.just("distance"),
    "B": st.integers(1, 3),
    "device": st.sampled_from(["cpu", "auto"]),
}
SOUND_GRIDS = st.lists(
    st.fixed_dictionaries({}, optional={key: values | st.lists(values, max_size=2) for key, values in AXES.items()})
)


@given(TABLES, SOUND_GRIDS)
def test_any_file_is_either_expanded_or_refused_in_plain_lines(tables, grids):
    tables = {"grid": [{"variant": "full", "T": 64, "d_model": 64} | grid for grid in grids]} | tables
    before, told = copy.deepcopy(tables), mistakes_in(tables)
    assert repr(tables) == repr(before)
    assert all(line.isprintable() for line in told)
    assert told or expand(checked(tables), catalogue(tables), "torch")


@given(st.lists(st.fixed_dictionaries({}, optional=AXES), min_size=1, max_size=3))
def test_what_is_valid_expands_to_cells_that_can_be_meant(grids):
    tables = {"grid": [{"variant": "full", "T": 64, "d_model": 64} | grid for grid in grids]}
    assume(not mistakes_in(tables))
    for cell in expand(checked(tables), catalogue(tables), "torch"):
        assert cell.d_model % cell.n_heads == 0
        assert max(cell.T, cell.S) <= cell.max_T
        assert cell.S == cell.T or cell.role == "cross" or cell.level == "core"
        assert (cell.task is None) == ("accuracy" not in cell.measures)
        assert cell.task is None or cell.level == "model"


# Files


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"question = 'a'\nT = = 3\n", "not valid TOML: Invalid value (at line 2, column 5)"),
        (
            b"seed = 010\n",
            "not valid TOML: Expected newline or end of document after a statement (at line 1, column 9)",
        ),
        (b"T = 3\nT = 4\n", "not valid TOML: Cannot overwrite a value (at line 2, column 6)"),
        (b"question = '\xff'\n", "not UTF-8 text: byte 0xff at 12"),
        (b"T = " + b"9" * 5000, "not valid TOML: Exceeds the limit"),
    ],
)
def test_a_file_that_is_no_toml_is_refused_with_the_place(tmp_path, content, told):
    path = tmp_path / "s.toml"
    path.write_bytes(content)
    with pytest.raises(RequestError) as caught:
        read_toml(path)
    assert len(caught.value.mistakes) == 1
    assert str(caught.value).startswith(f"{path}: {told}")


def test_a_file_that_is_not_there_or_is_none_is_refused(tmp_path):
    with pytest.raises(RequestError, match=r"gone\.toml: No such file or directory$"):
        read_toml(tmp_path / "gone.toml")
    with pytest.raises(RequestError, match=r": Is a directory$"):
        read_toml(tmp_path)


# Overrides


def overridden(tmp_path: Path, text: str, *overrides: str):
    path = tmp_path / "s.toml"
    path.write_text(text)
    return read_toml(path, overrides)


def refusal(tmp_path: Path, text: str, *overrides: str) -> list[str]:
    with pytest.raises(RequestError) as caught:
        overridden(tmp_path, text, *overrides)
    return caught.value.mistakes


@pytest.mark.parametrize(
    ("override", "value"),
    [("T=[64,128]", [64, 128]), ("T = 32", 32), ("variant=linear", "linear"), ("T=[64,", "[64,"), ("seed=", "")],
)
def test_a_grid_key_goes_into_every_grid(tmp_path, override, value):
    tables = overridden(tmp_path, GRID + GRID, override)
    key = override.partition("=")[0].strip()
    assert [grid[key] for grid in tables["grid"]] == [value, value]


def test_a_variant_with_options_can_be_set(tmp_path):
    tables = overridden(tmp_path, GRID, 'variant={ name = "window", window = 8 }')
    assert checked(tables).grid[0].variant == [(VariantUse("window", {"window": 8}),)]


def test_a_dotted_key_goes_into_its_table_and_makes_it_when_it_is_missing(tmp_path):
    tables = overridden(tmp_path, GRID, "train.steps=5", "options.window.window=8", "options.window.n=1", "timeout=60s")
    assert tables["train"] == {"steps": 5}
    assert tables["options"] == {"window": {"window": 8, "n": 1}}
    assert tables["timeout"] == "60s"


def test_the_last_override_of_a_key_counts(tmp_path):
    assert overridden(tmp_path, GRID, "T=1", "T=2")["grid"][0]["T"] == 2


def test_an_override_wins_over_the_defaults(tmp_path):
    text = "[defaults]\nlevel = 'core'\nT = 8\n[[grid]]\nvariant = 'full'\nd_model = 64\n"
    sweep = checked(overridden(tmp_path, text, "level=block", "T=16"))
    assert (sweep.grid[0].level, sweep.grid[0].T) == (["block"], [16])


@pytest.mark.parametrize("override", ["phase=forward", "level=block", "B=4"])
def test_an_override_leaves_out_the_accuracy_grids_that_it_cannot_mean(tmp_path, override):
    first, second = overridden(tmp_path, GRID + ACCURACY, override)["grid"]
    key = override.partition("=")[0]
    assert key in first
    assert key not in second
    assert refusal(tmp_path, ACCURACY, override) == [f"--set {override}: no [[grid]] of this file has a use for {key}"]


def test_a_task_is_set_in_accuracy_grids_alone(tmp_path):
    first, second = overridden(tmp_path, GRID + ACCURACY, "task=other")["grid"]
    assert "task" not in first
    assert second["task"] == "other"
    assert refusal(tmp_path, GRID, "task=other") == ["--set task=other: no [[grid]] of this file has a use for task"]


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("nonsense", "expected KEY=VALUE, for example --set T=[64,128]"),
        ("=3", "expected KEY=VALUE, for example --set T=[64,128]"),
        ("", "expected KEY=VALUE, for example --set T=[64,128]"),
        ("t=64", 'unknown key; did you mean "T"?'),
        ("variants=full", 'unknown key; did you mean "variant"?'),
        ("varaint=full", 'unknown key; did you mean "variant"?'),
        ("trian=3", 'unknown key; did you mean "train"?'),
        ("trian.steps=3", 'unknown key; did you mean "train"?'),
        ("steps=3", "unknown key here; it belongs in [train]"),
        ("question.x=1", "question is not a table"),
        ("grid.T=3", "grid is not a table"),
    ],
)
def test_an_override_that_means_nothing_is_refused(tmp_path, override, told):
    assert refusal(tmp_path, "question = 'q'\n" + GRID, override) == [f"--set {override}: {told}"]


def test_all_wrong_overrides_are_told_in_one_go(tmp_path):
    assert len(refusal(tmp_path, GRID, "T=1", "bogus=1", "nonsense", "grid.x=1")) == 3


def test_what_an_override_put_in_is_checked_like_the_file(tmp_path):
    tables = overridden(tmp_path, GRID, "T=64,128", "train.stepz=3", "options.window=8")
    assert mistakes_in(tables) == [
        'grid[0].T: expected a whole number, got "64,128"',
        "options.window: expected a table, got 8",
        'train.stepz: unknown key; did you mean "steps"?',
    ]


# What a file names


def test_what_a_file_names_is_found_with_its_options_merged_even_in_an_invalid_file():
    tables = tomllib.loads("""
    [defaults]
    variant = "full"
    [[grid]]
    variant = ["window", { name = "window", window = 8 }, 3, { window = 3 }]
    task = ["distance", 3]
    T = "wrong"
    [options.window]
    window = 16
    [tasks.distance]
    n_slots = 2
    """)
    asked = [(use.name, dict(use.options)) for use in wanted_variants(tables)]
    assert asked == [("full", {}), ("window", {"window": 16}), ("window", {"window": 8}), ("window", {"window": 16})]
    assert {(use.name, use.options["n_slots"]) for use in wanted_tasks(tables)} == {("distance", 2)}


# The real catalogue


def test_the_sweeps_that_are_shipped_are_valid_for_what_is_installed():
    from attnbench.execute.describe import catalogue as real_catalogue

    files = sorted((Path(__file__).parent.parent / "experiments").glob("*.toml"))
    assert files
    for path in files:
        tables = read_toml(path)
        described = real_catalogue(wanted_variants(tables), wanted_tasks(tables), tables.get("plugins", []))
        described = replace(described, devices={"cpu": "a CPU", "cuda": "a GPU"})
        assert expand(validate(tables, str(path), described), described, "torch")


def test_a_real_variant_knows_its_options():
    from attnbench.execute.describe import catalogue as real_catalogue

    tables = tomllib.loads(with_variant('[{ name = "window", windw = 8 }, { name = "window", window = 0 }, "windo"]'))
    with pytest.raises(RequestError) as caught:
        validate(tables, "s.toml", real_catalogue(wanted_variants(tables), [], []))
    assert caught.value.mistakes == [
        's.toml: grid[0].variant[0].windw: unknown option; did you mean "window"?',
        "s.toml: grid[0].variant[1].window: expected at least 1, got 0",
        's.toml: grid[0].variant[2]: unknown variant "windo"; did you mean "window"?',
    ]
