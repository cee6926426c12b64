"""How figures look, and one look per variant label.

A label has the same colour, marker and line in every figure, and no two are alike (up to 224).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

# Okabe and Ito's palette, which colour-blind readers can tell apart, without its yellow (too pale on white).
COLOURS = ("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
Line = Literal["-", "--", "-.", ":"]
LINES: tuple[Line, ...] = ("-", "--", "-.", ":")
SIZES = {"P": 1.2, "X": 1.2, "*": 1.6}  # of markers that look smaller than others do
BLACK_UNTIL = 8  # places
N_LOOKS = len(COLOURS) * len(MARKERS) * len(LINES)
# These have their look for good; all other variants follow in alphabetical order. New built-ins join at the end.
BUILT_IN = (
    "fused",
    "full",
    "linear",
    "window",
    "lstm",
    "gru",
    "rnn",
    "strided",
    "xformers",
    "mean",
    "none",
    "tcn",
    "retnet",
    "gla",
    "rwkv",
    "mamba2",
    "mingru",
    "minlstm",
    "lru",
    "mamba",
    "s4d",
    "fnet",
    "linformer",
    "nystrom",
    "hyena",
    "gqa",
    "topk",
    "bigbird",
    "fixed_sparse",
    "deltanet",
    "gated_deltanet",
    "performer",
    "cosformer",
    "hedgehog",
    "based",
    "flex",
)
# Where one panel cannot hold all series, each of these families has a panel of its own, in this order.
FAMILIES = {
    "exact attention": ("fused", "full", "xformers", "flex", "gqa"),
    "sparse attention": ("window", "strided", "topk", "fixed_sparse", "bigbird"),
    "kernels and low rank": ("linear", "performer", "cosformer", "based", "hedgehog", "linformer", "nystrom"),
    "decay and delta rule": ("retnet", "gla", "rwkv", "mamba2", "deltanet", "gated_deltanet"),
    "state spaces and convolutions": ("s4d", "mamba", "lru", "hyena", "fnet", "tcn"),
    "recurrent": ("lstm", "gru", "rnn", "mingru", "minlstm"),
    "controls": ("mean", "none"),
}
OTHERS = "others"
INK, PALE, FAINT, GRID, PAPER = "#333333", "#8a8a8a", "#d4d4d4", "#e6e6e6", "#f4f4f4"
# Terms of a cost: grey for what does not depend on T, blues for what grows like T, oranges for what grows like T².
TERM_COLOURS = {
    "1": "#c4c4c4",
    "T": "#c6dbef",
    "T d": "#6baed6",
    "T d²": "#2171b5",
    "d²": "#969696",
    "T²": "#f16913",
    "H T²": "#fdae6b",
    "T² d": "#a63603",
}
STYLE = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
    "axes.edgecolor": PALE,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.titlesize": 9.5,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "hatch.color": "#c4c4c4",
    "hatch.linewidth": 0.8,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "savefig.dpi": 150,
    "svg.hashsalt": "attnbench",
    "text.color": INK,
    "xtick.color": PALE,
    "ytick.color": PALE,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
}


class Look(NamedTuple):
    """How a series is drawn, in matplotlib's names."""

    colour: str
    marker: str
    line: Line


def looks(labels: Iterable[tuple[str, str]]) -> dict[str, Look]:
    """A look for each (label, variant). Labels of one variant share its colour while there are looks enough.

    Give all labels of a run at once, so that a variant missing from one figure changes nothing in it.
    """
    asked = sorted(set(labels), key=lambda pair: (pair[1] not in BUILT_IN, pair[0] != pair[1], pair))
    others = sorted({variant for _, variant in asked} - set(BUILT_IN))
    places = {variant: place for place, variant in enumerate((*BUILT_IN, *others))}
    given: dict[str, Look] = {}
    for label, variant in asked:
        free = (look for look in _candidates(places[variant]) if look not in given.values())
        given[label] = next(free, Look(COLOURS[0], MARKERS[0], LINES[0]))
    return given


def family(label: str) -> str:
    """The family of a label's variant, by its name before any options: "window[window=16]" is sparse attention."""
    variant = label.partition("[")[0]
    return next((name for name, variants in FAMILIES.items() if variant in variants), OTHERS)


def _candidates(place: int) -> Iterator[Look]:
    """The looks a variant may have, best first: its own colour with each marker and line, then any other colour.

    Black is for those in the first places, so that others do not look like `fused`, which most runs compare with.
    """
    late = max(place - BLACK_UNTIL, 0)
    own = place % len(COLOURS) if place < BLACK_UNTIL else 1 + late % (len(COLOURS) - 1)
    turn = place // len(COLOURS) + 2 * (late // 24)  # colours and markers come again after 24 places
    for shift in range(len(COLOURS)):
        colour = COLOURS[(own + shift) % len(COLOURS)]
        for i in range(len(MARKERS) * len(LINES)):
            marker = MARKERS[(place + i) % len(MARKERS)]
            yield Look(colour, marker, LINES[(turn + i + i // len(MARKERS)) % len(LINES)])
