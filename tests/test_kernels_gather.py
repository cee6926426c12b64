"""Gathered blocks are those that plain indexing gives, and their gradients add up."""

from __future__ import annotations

import pytest
import torch
from cores import assert_equal, noise, values_and_gradients

from attnbench.kernels import gather_blocks


def indexed(x, table, block):
    B, H, S, D = x.shape
    blocks = x.view(B, H, S // block, block, D)
    heads = [torch.stack([blocks[:, h, row].flatten(1, 2) for row in table[h]], dim=1) for h in range(H)]
    return torch.stack(heads, dim=1)


@pytest.mark.parametrize(
    ("B", "H", "block", "n_blocks", "n", "r"), [(2, 3, 4, 5, 6, 3), (1, 1, 1, 7, 2, 9), (2, 2, 16, 1, 1, 1)]
)
def test_blocks_are_those_of_the_table_and_gradients_add_up(B, H, block, n_blocks, n, r):
    table = torch.randint(n_blocks, (H, n, r), generator=torch.Generator().manual_seed(0))
    whole = noise(B, H, n_blocks * block, 5)
    for x in (whole, whole.mT.contiguous().mT):
        fast, slow = (
            values_and_gradients(lambda f=f, x=x: f(x, table, block), [whole]) for f in (gather_blocks, indexed)
        )
        assert fast[0].shape == (B, H, n, r * block, 5)
        assert_equal(fast, slow, 1e-12)


def test_gradients_are_those_of_finite_differences():
    table = torch.tensor([[[0, 1], [1, 1]], [[2, 0], [0, 0]]])
    assert torch.autograd.gradcheck(lambda x: gather_blocks(x, table, 2), [noise(1, 2, 6, 3)])


def test_half_a_block_is_refused():
    with pytest.raises(ValueError, match="whole blocks of 4 positions, got S = 6"):
        gather_blocks(noise(1, 1, 6, 2), torch.zeros(1, 1, 1).long(), 4)
