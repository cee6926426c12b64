"""An error that a plugin causes names the plugin, wherever it was raised."""

import pytest
import torch
from runs import PLUGINS, write_sweep

import attnbench
from attnbench import Attention, Spec, blame
from attnbench.conformance import certify
from attnbench.errors import RequestError
from attnbench.registry import PluginError, load_file

FILE = PLUGINS / "misfits.py"
TOLD = {  # class, what is said of it after "misfits.py: " in its check, T = 16
    "Pair": "Pair.attend returned a tuple, expected a tensor (B, H, T, d_v) = (3, 2, 16, 4)",
    "Longer": "Longer.attend returned shape (3, 2, 32, 4), expected a tensor (B, H, T, d_v) = (3, 2, 16, 4)",
    "Narrow": "Narrow.attend returned shape (3, 2, 16, 1), expected a tensor (B, H, T, d_v) = (3, 2, 16, 4)",
    "Nothing": "Nothing defines no attend(q, k, v, *, key_mask=None)",
    "Silent": "Silent.forward returned None, expected a tensor (B, T, d_model) = (3, 16, 8)",
    "Absent": "Absent defines no forward(x, *, context=None, key_mask=None)",
    "Maskless": "Maskless.attend() got an unexpected keyword argument 'key_mask'",
    "Bare": "Bare.__init__ does not call super().__init__(spec)",
    "Unspecified": "Unspecified.__init__ does not call super().__init__(spec)",
    "Lonely": "Lonely cannot be built: Lonely.__init__() takes 1 positional argument but 2 were given",
}


def misfit(name):
    return getattr(load_file(FILE), name)


@pytest.mark.parametrize("name", TOLD)
def test_a_check_names_the_file_the_class_and_what_was_expected(name):
    (result,) = certify(misfit(name), roles=["causal"]).broken
    assert result.name == "shape"
    assert result.detail.endswith(f": misfits.py: {TOLD[name]}"), result


@pytest.mark.parametrize("level", ["core", "layer", "model"])
def test_a_visit_names_them_too(tmp_path, level):
    names = ["pair", "nothing", "maskless"] if level == "core" else ["pair", "nothing", "silent", "bare", "lonely"]
    variants = ", ".join(f'"{name}"' for name in names)
    grid = f'[[grid]]\nvariant = [{variants}]\nT = 4\nlevel = "{level}"\nphase = "forward_backward"\n'
    made = attnbench.run(write_sweep(tmp_path, grid, f'plugins = "{FILE}"'), out=tmp_path / "run")
    assert set(made.frame["status"]) <= {"failed", "nonconformant"}
    for name, reason in zip(made.frame["variant"], made.frame["reason"], strict=True):
        assert "misfits.py: " + TOLD[name.title()].split(" = ")[0] in reason


@pytest.mark.parametrize("role", ["causal", "bidirectional"])
def test_a_core_that_is_no_tensor_is_told_though_its_own_forward_takes_it_apart(tmp_path, role):
    told = "misfits.py: Unpacks.attend returned a tuple, expected a tensor (B, H, T, d_v) = (3, 2, 16, 4)"
    (result,) = certify(misfit("Unpacks"), roles=[role]).broken
    assert (result.name, result.status) == ("shape", "broken")
    assert result.detail.endswith(f": {told}")
    grid = f'[[grid]]\nvariant = "unpacks"\nrole = "{role}"\nT = 4\nlevel = "core"\nphase = "forward_backward"\n'
    made = attnbench.run(write_sweep(tmp_path, grid, f'plugins = "{FILE}"'), out=tmp_path / "run")
    assert made.frame["status"].tolist() == ["nonconformant"]
    assert made.frame["reason"][0].startswith("shape: ")
    assert told in made.frame["reason"][0]


def test_an_error_of_a_plugins_own_lines_and_a_failed_allocation_pass_as_they_are():
    class Raises(Attention):
        def attend(self, q, k, v, *, key_mask=None):
            raise KeyError("mine")

    spec = Spec(8, 2, 16)
    for error in (RuntimeError("can't allocate memory"), PluginError(["known"]), KeyError("x")):
        with pytest.raises(type(error)) as caught, blame.naming(misfit("Pair"), lambda: misfit("Pair")(spec), 4, 4):
            raise error
        assert caught.value is error
    with pytest.raises(KeyError), blame.naming(Raises, lambda: Raises(spec), 4, 4):
        Raises(spec)(torch.ones(1, 4, 8))


def test_an_error_of_ours_is_not_blamed_on_a_sound_mixer():
    cosine = load_file(PLUGINS / "good.py").Cosine
    with pytest.raises(TypeError, match="ours"), blame.naming(cosine, lambda: cosine(Spec(8, 2, 16)), 4, 4):
        raise TypeError("ours")


def test_what_a_request_error_says_is_all_that_is_told():
    from attnbench.registry import describe_error

    assert describe_error(RequestError(["a", "b"])) == "a; b"
