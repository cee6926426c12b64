"""What padding a state that reads one position after another can take: on the right, of whole sequences.

There it comes after every real position. A hidden position in between could not be skipped, and a padded prompt would
leave its padding in the state.
"""

from __future__ import annotations

from torch import Tensor

IN_PROMPT = "a padded prompt would leave its padding in the state"


def padding_reason(mask: str, decodes: bool, what: str = "a recurrence") -> str | None:
    """Why `what` cannot serve keys masked like this, for `Mixer.unsupported`; None where it can. mask: as in `Use`."""
    if mask == "any":
        return f"{what} cannot skip hidden positions, only padding on the right"
    return IN_PROMPT if mask == "right" and decodes else None


def check_right_padding(key_mask: Tensor, what: str = "a recurrence") -> None:
    """Raise ValueError where key_mask (B, S), True where real, hides more than padding on the right."""
    if (key_mask[:, 1:] & ~key_mask[:, :-1]).any():
        raise ValueError(f"{what} cannot skip hidden positions: key_mask may only hide padding on the right")


def check_no_padding(key_mask: Tensor | None) -> None:
    """Raise ValueError where a prompt comes with a key_mask."""
    if key_mask is not None:
        raise ValueError(f"{IN_PROMPT}: prefill takes no key_mask")
