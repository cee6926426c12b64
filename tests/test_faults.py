"""The faults of tests/faults.py can still be planted. Whether tests notice them that script shows, in minutes."""

from pathlib import Path

import pytest
from faults import FAULTS, ROOT


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_changes_one_place_of_the_source_and_names_a_test_that_stands(fault, tmp_path):
    copy = tmp_path / fault.file
    copy.parent.mkdir(parents=True)
    copy.write_text((ROOT / fault.file).read_text())
    fault.plant(tmp_path)
    assert fault.wrong in copy.read_text()
    file, _, test = fault.test.partition("::")
    assert f"def {test.partition('[')[0]}(" in Path(ROOT / file).read_text()


def test_ten_kinds_of_faults_are_planted():
    assert len({fault.name for fault in FAULTS}) >= 10
