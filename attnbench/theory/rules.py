"""Rules of passing: findings made from the number expected and the number measured."""

from __future__ import annotations

from attnbench.report import words
from attnbench.theory.statement import Finding

NOT_RUN = "not run (--quick)"  # as what was measured: neither a pass nor a miss


def near(what: str, expected: float, measured: float, *, share: float, reason: str = "") -> Finding:
    """Passes within a share of what is expected, above and below."""
    ok = abs(measured - expected) <= share * abs(expected)
    return _finding(what, f"{_number(expected, 4)} ± {100 * share:g} %", measured, ok, reason)


def within(what: str, expected: float, measured: float, *, off: float, reason: str = "") -> Finding:
    """Passes when it is off by so much at most."""
    return _finding(what, f"{expected:.4g} ± {off:g}", measured, abs(measured - expected) <= off, reason)


def below(what: str, limit: float, measured: float, reason: str = "") -> Finding:
    """Passes under the limit."""
    return _finding(what, f"< {limit:g}", measured, measured < limit, reason)


def above(what: str, limit: float, measured: float, reason: str = "") -> Finding:
    """Passes over the limit."""
    return _finding(what, f"> {limit:g}", measured, measured > limit, reason)


def exactly(what: str, expected: object, measured: object, reason: str = "") -> Finding:
    """Passes when both are the same."""
    ok = expected == measured
    return Finding(what, str(expected), str(measured), ok, "" if ok else reason)


def not_run(what: str, expected: str) -> Finding:
    """What a quick look leaves out."""
    return Finding(what, expected, NOT_RUN, True)


def verdict(finding: Finding) -> str:
    """`pass`, `differs` or `not run`."""
    if finding.measured == NOT_RUN:
        return "not run"
    return "pass" if finding.ok else "differs"


def _finding(what: str, expected: str, measured: float, ok: bool, reason: str) -> Finding:
    return Finding(what, expected, _number(measured, 3), bool(ok), "" if ok else reason)


def _number(value: float, digits: int) -> str:
    """As people write it: 0.00012, 4.35, 20.9 M."""
    return words.scaled(value, words.COUNT_UNITS) if abs(value) >= 1e4 else f"{value:.{digits}g}"
