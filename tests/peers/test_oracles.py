"""The same weights and inputs through public packages: outputs and gradients are equal, to the tolerance stated there."""

import pytest
from matches import at, compare
from rivals import RIVALS

pytestmark = pytest.mark.filterwarnings("ignore")  # of packages that are not ours


@pytest.mark.parametrize("rival", [rival for rival in RIVALS if rival.equal], ids=lambda rival: rival.name)
def test_equals_the_public_implementation(rival):
    if rival.version() is None:
        pytest.skip(f"{rival.package} is not installed: make peers")
    with rival.mended():
        found = compare(rival.match(at(rival.small, dtype=rival.dtype)))
    worst = max(found, key=found.__getitem__)
    assert found[worst] <= rival.tolerance, f"{worst}: {found[worst]:.3g}"
