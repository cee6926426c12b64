"""What surrounds a command: signals that end it in good order, and terminals that know no more than ASCII."""

from __future__ import annotations

import codecs
import signal
import sys
from types import FrameType
from typing import NoReturn

_ENDING = ("SIGINT", "SIGTERM", "SIGHUP")
_PLAIN = {"≈": "~", "–": "-", "−": "-", "…": "...", "×": "x", "·": "*", "µ": "u", "²": "^2", "√": "sqrt ", "±": "+-"}


class StoppedError(BaseException):
    """Somebody ended the command by a signal. A BaseException, so that nobody takes it for a fault on its way."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(number)

    @property
    def status(self) -> int:
        """The exit status that shells know such an end by: 130 after Ctrl-C."""
        return 128 + self.number

    def __str__(self) -> str:
        return "interrupted" if self.number == signal.SIGINT else f"ended by {signal.Signals(self.number).name}"


def stop_in_good_order() -> None:
    """Make each ending signal a StoppedError, which cleans up on its way. One that is ignored (nohup) stays ignored."""
    for name in _ENDING:
        number = getattr(signal, name, None)  # not every system has a SIGHUP
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)


def speak_plainly() -> None:
    """Let no character that a terminal's encoding lacks stop a command: it is written in ASCII."""
    codecs.register_error("attnbench.plain", _plain)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)  # a stream that a test or a notebook put there has none
        if reconfigure is not None:
            reconfigure(errors="attnbench.plain")


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    for name in _ENDING:  # what cleans up is not to be stopped in its turn
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    raise StoppedError(number)


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lost = error.object[error.start : error.end]
    return "".join(_PLAIN.get(character, "?") for character in lost), error.end
