"""Which way a bar lies in a noisy image that is read pixel by pixel. No data set is needed.

It stands for the small image sequences of Long Range Arena (Tay et al. 2020, arXiv 2011.04006), which ask whether a
mixer finds two-dimensional structure in a sequence: neighbours in a column stand side positions apart.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Le
from torch import Generator, Tensor

from attnbench.tasks import Batch
from attnbench.tasks.draw import randint
from attnbench.tasks.pixels import Pixels, moved, until

_STEPS = ((0, 1), (1, 0), (1, 1), (1, -1))  # (down, right): row, column, falling and rising diagonal


class ImageBars(Pixels):
    """Tell a bar's orientation: 0 in a row, 1 in a column, 2 on a falling diagonal, 3 on a rising one.

    The bar has half a side of bright pixels, 3 at least, at a random place.
    noise: probability of a bright pixel elsewhere. An image in which as many bright pixels lie in line in another
    direction is drawn again, so noise never makes an answer ambiguous.
    Tokens: 0 dark, 1 bright, 2 padding, and one that is a label alone. chance and floor are 1/4.
    Raises ValueError when T < 16.
    """

    title: ClassVar[str] = "tell which way a bar lies in a noisy image"
    padding: ClassVar[int] = 2

    def __init__(self, T: int, *, noise: Annotated[float, Ge(0), Le(0.3)] = 0.15) -> None:
        super().__init__(T, noise=noise)
        self.noise, self.bar_length = noise, max(3, self.side // 2)
        self.chance = self.floor = 1 / len(_STEPS)

    def sample(self, n: int, generator: Generator) -> Batch:
        """Draw n sequences; the same generator state gives the same tensors."""
        way = randint(len(_STEPS), (n,), generator)
        images = torch.zeros(n, self.side, self.side, dtype=torch.int64)
        for answer in range(len(_STEPS)):  # per class: redrawing must not make one of them rarer
            mine = way == answer
            images[mine] = until(int(mine.sum()), lambda m, answer=answer: self._draw(m, answer, generator))[0]  # type: ignore[misc]
        return self.batch_of(images, way)

    def solve(self, batch: Batch) -> Tensor:
        """(N, T) int64: the direction in which bright pixels survive most steps of erosion."""
        bright = self.images_of(batch) == 1
        longest = []
        for down, right in _STEPS:
            left, run = bright, torch.zeros(len(batch), dtype=torch.int64)
            while left.any():
                run += left.flatten(1).any(1)
                left = bright & moved(left, down, right)
            longest.append(run)
        return self.answered(batch, torch.stack(longest).argmax(0))

    def _draw(self, m: int, answer: int, generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
        """m images of one class, (m,) its answer, and which images have no other bar."""
        images = torch.rand(m, self.side, self.side, generator=generator) < self.noise
        images.flatten(1).scatter_(1, self._bar(m, answer, generator), True)
        others = [self._has_bar(images, way) for way in range(len(_STEPS)) if way != answer]
        return images.long(), torch.full((m,), answer), ~torch.stack(others).any(0)

    def _bar(self, m: int, answer: int, generator: Generator) -> Tensor:
        """(m, bar_length) pixels of bars at random places."""
        (down, right), reach = _STEPS[answer], self.bar_length - 1
        row = randint(self.side - reach * down, (m, 1), generator)
        column = randint(self.side - reach * abs(right), (m, 1), generator) + (reach if right < 0 else 0)
        along = torch.arange(self.bar_length)
        return (row + along * down) * self.side + column + along * right

    def _has_bar(self, images: Tensor, way: int) -> Tensor:
        """(m,) bool: whether bar_length bright pixels lie in line."""
        (down, right), L, side = _STEPS[way], self.bar_length, self.side
        rows, columns = side - (L - 1) * down, side - (L - 1) * abs(right)
        first = (L - 1) if right < 0 else 0
        all_bright = torch.ones(len(images), rows, columns, dtype=torch.bool)
        for i in range(L):
            at = first + i * right
            all_bright &= images[:, i * down : i * down + rows, at : at + columns]
        return all_bright.flatten(1).any(1)
