"""Every broken copy of a real mechanism is caught, by the promise that its fault is about; `-s` prints the table."""

import pytest
from broken_copies import COPIES, SOUND, TurnsAroundBeyond600

from attnbench.conformance import certify
from attnbench.promises import THOROUGH

SLOW = {promise.__name__ for promise in THOROUGH}


@pytest.mark.parametrize(("cls", "role"), SOUND)
def test_what_they_are_copied_from_is_sound(cls, role):
    certificate = certify(cls, roles=[role], thorough=cls.__name__ != "Gated")  # its loop takes minutes at T = 16384
    assert certificate.ok, certificate.verdict()


@pytest.mark.parametrize(("cls", "role", "promise"), COPIES)
def test_a_broken_copy_is_caught_and_its_fault_named(cls, role, promise):
    broken = {result.name: result.detail for result in certify(cls, roles=[role], thorough=promise in SLOW).broken}
    print(f"\n{cls.__name__:28} {promise:24} {'caught' if promise in broken else 'missed'}: {broken.get(promise, '')}")
    assert promise in broken
    assert ": " in broken[promise]  # the input stands before the error


@pytest.mark.parametrize("role", ["causal", "bidirectional", "cross"])
def test_a_form_that_changes_beyond_a_length_is_caught_by_a_thorough_look(role):
    broken = {result.name for result in certify(TurnsAroundBeyond600, roles=[role], thorough=True).broken}
    assert "equals_slow_form" in broken


def test_there_are_at_least_fifteen_and_each_is_of_another_kind():
    assert len({cls for cls, *_ in COPIES}) >= 15
    assert len({promise for *_, promise in COPIES}) >= 15
