"""Do two dots lie on one curve? After Pathfinder of Long Range Arena, Tay et al. 2020, arXiv 2011.04006, and Linsley et
al. 2018, arXiv 1805.08315. The generator is attnbench's own and needs no data set.

An image holds two curves, which never stand side by side, and a dot at two of their four ends: the two of one curve, or
one of each. The dots of one curve would stand nearer to each other than two others, and their distance alone would
answer most images. So an image is kept only where the ends of the first curve are as far apart as some end of it is
from some end of the other, and a coin says which pair gets the dots: the distance tells nothing.

Departures: self-avoiding walks on the grid of pixels, not smooth dashed contours; no distractors beside the second
curve; pixels of three kinds.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Generator, Tensor

from attnbench.tasks import Batch
from attnbench.tasks.draw import randint
from attnbench.tasks.pixels import Pixels, moved, until

_CURVE, _DOT = 1, 2


class Pathfinder(Pixels):
    """Tell whether the two dots are the ends of one curve, 1, or of two, 0.

    A curve is a self-avoiding walk of side / 2 to 3 side / 4 pixels, 8 to 12 of 16. Two pixels of one curve hang
    together by an edge; no pixel of one curve shares an edge with one of the other.
    Tokens: 0 background, 1 curve, 2 dot, 3 padding. chance and floor are 1/2.
    Distances are rows and columns added. Raises ValueError when T < 16.
    """

    title: ClassVar[str] = "tell whether two dots lie on one curve"
    padding: ClassVar[int] = 3

    def __init__(self, T: int) -> None:
        super().__init__(T)
        self.chance = self.floor = 0.5

    def sample(self, n: int, generator: Generator) -> Batch:
        """Draw n sequences; the same generator state gives the same tensors."""
        return self.batch_of(*until(n, lambda m: draw(m, self.side, generator)))

    def solve(self, batch: Batch) -> Tensor:
        """(N, T) int64: whether a flood that starts at the first dot reaches the other."""
        images = self.images_of(batch)
        on, dots = images > 0, images == _DOT
        first = torch.zeros_like(on).flatten(1)
        first.scatter_(1, dots.flatten(1).long().argmax(1, keepdim=True), True)
        flood, before = first.view_as(on), torch.zeros_like(on)
        while not torch.equal(flood, before):
            before, flood = flood, flood | (_beside(flood) & on)
        return self.answered(batch, ((flood & dots).flatten(1).sum(1) == 2).long())


def draw(m: int, side: int, generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """m images (m, side, side), (m,) answers, and (m,) bool: which are as they should be."""
    none = torch.zeros(m, (side + 2) ** 2, dtype=torch.bool)
    one, ends, done = _walk(none, side, generator)
    near = one.view(m, side + 2, side + 2)
    other, other_ends, other_done = _walk((near | _beside(near)).flatten(1), side, generator)
    across, alike = _across(ends, other_ends, side + 2, generator)
    answer = randint(2, (m,), generator)
    framed = (one | other).long() * _CURVE
    framed.scatter_(1, torch.where((answer == 1)[:, None], ends, across), _DOT)
    return framed.view(m, side + 2, side + 2)[:, 1:-1, 1:-1], answer, done & other_done & alike


def _across(ends: Tensor, other_ends: Tensor, wide: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """(m, 2) an end of each curve, as far apart as the ends of the first, and (m,) bool: whether there are any."""
    pairs = torch.stack((ends[:, [0, 0, 1, 1]], other_ends[:, [0, 1, 0, 1]]), dim=2)  # (m, 4, 2)
    alike = _distance(pairs, wide) == _distance(ends[:, None], wide)
    score = torch.rand(len(ends), 4, generator=generator).masked_fill(~alike, -1)
    chosen = score.argmax(1)[:, None, None].expand(-1, 1, 2)
    return pairs.gather(1, chosen)[:, 0], alike.any(1)


def _distance(pairs: Tensor, wide: int) -> Tensor:
    """Rows and columns between the two pixels of (…, 2), added."""
    rows, columns = pairs // wide, pairs % wide
    return (rows[..., 0] - rows[..., 1]).abs() + (columns[..., 0] - columns[..., 1]).abs()


def _walk(closed: Tensor, side: int, generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """A walk per row over pixels that are not closed, (m, (side + 2)²) bool with a frame of one pixel.

    Returns its pixels as closed is, (m, 2) its ends, and (m,) bool: it got as long as it was to be.
    """
    m, wide = len(closed), side + 2
    length = side // 2 + randint(3 * side // 4 - side // 2 + 1, (m,), generator)
    shut = _framed(closed, wide)
    start = (torch.rand(m, wide * wide, generator=generator).masked_fill(shut, -1)).argmax(1, keepdim=True)
    done, at = ~shut.gather(1, start)[:, 0], start
    path = torch.zeros_like(closed).scatter_(1, start, True)
    for step in range(1, 3 * side // 4):
        beside = at + torch.tensor([-wide, -1, 1, wide])
        blocked = (shut | path).gather(1, beside)
        score = torch.rand(m, 4, generator=generator).masked_fill(blocked, -1)
        going = done & (step < length)
        stuck = going & blocked.all(1)
        done &= ~stuck
        at = torch.where((going & ~stuck)[:, None], beside.gather(1, score.argmax(1, keepdim=True)), at)
        path.scatter_(1, at, True)
    return path, torch.cat((start, at), dim=1), done


def _framed(closed: Tensor, wide: int) -> Tensor:
    """The same with the frame closed too."""
    shut = closed.clone().view(-1, wide, wide)
    shut[:, [0, -1]] = True
    shut[:, :, [0, -1]] = True
    return shut.flatten(1)


def _beside(images: Tensor) -> Tensor:
    """(m, side, side) bool: pixels that share an edge with one that is set."""
    return moved(images, 1, 0) | moved(images, -1, 0) | moved(images, 0, 1) | moved(images, 0, -1)
