"""What the tasks over images share: a square image read row by row, one label at the last position, rejected draws."""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt
from typing import Any, ClassVar

import torch
from torch import Tensor

from attnbench.tasks import IGNORE, Batch, Task

_PATIENCE = 64  # draws in a row without one good image


class Pixels(Task):
    """An image of side · side pixels, side = isqrt(T), row by row, then padding; scored at the last position alone.

    smallest: the side of the smallest image. padding: the token behind the image where T is no square.
    Raises ValueError when T < smallest².
    """

    slice_unit: ClassVar[str] = "slice"
    usual_T: ClassVar[int] = 256
    smallest: ClassVar[int] = 4
    padding: ClassVar[int]

    def __init__(self, T: int, **options: int | float | str) -> None:
        super().__init__(T, **options)
        if self.min_T() > T:
            raise ValueError(f"{type(self).__name__} needs T of at least {self.min_T()}, got {T}")
        self.side = isqrt(T)
        self.vocab_size = 4
        self.slice_names = ("all",)

    @classmethod
    def min_T(cls, **options: Any) -> int:
        """The smallest image."""
        return cls.smallest**2

    def batch_of(self, images: Tensor, answers: Tensor) -> Batch:
        """Sequences of images (n, side, side) int64 with their answers (n,)."""
        n = len(images)
        tokens = torch.full((n, self.T), self.padding)
        tokens[:, : self.side**2] = images.flatten(1)
        labels, slices = torch.full_like(tokens, IGNORE), torch.full_like(tokens, -1)
        labels[:, -1], slices[:, -1] = answers, 0
        return Batch(tokens, labels, slices)

    def images_of(self, batch: Batch) -> Tensor:
        """(N, side, side) int64."""
        return batch.tokens[:, : self.side**2].reshape(-1, self.side, self.side)

    def answered(self, batch: Batch, answers: Tensor) -> Tensor:
        """(N, T) int64: answers (N,) at the last position."""
        everywhere = torch.zeros_like(batch.tokens)
        everywhere[:, -1] = answers
        return everywhere


def moved(images: Tensor, down: int, right: int) -> Tensor:
    """(N, side, side) bool with each pixel moved by so much; what leaves the image is gone, what enters is False."""
    side = images.shape[1]
    out = torch.zeros_like(images)
    to, at = (slice(max(d, 0), side + min(d, 0)) for d in (down, right))
    fro, from_at = (slice(max(-d, 0), side + min(-d, 0)) for d in (down, right))
    out[:, to, at] = images[:, fro, from_at]
    return out


def until(n: int, draw: Callable[[int], tuple[Tensor, Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The first n good ones of as many draws as that takes; draw(m): m images, m answers and (m,) bool, which are good.

    Raises ValueError when none comes for a long time.
    """
    images: list[Tensor] = []
    answers: list[Tensor] = []
    missing, barren = n, 0
    while missing > 0 or not images:
        image, answer, good = draw(missing + missing // 4 + 16)
        images.append(image[good][:missing])
        answers.append(answer[good][:missing])
        missing -= len(images[-1])
        barren = 0 if good.any() else barren + 1
        if barren == _PATIENCE:
            raise ValueError("no such image is found: take a larger T or other options")
    return torch.cat(images), torch.cat(answers)
