"""The code in docs/kernels runs, and every kernel that is public has a page."""

import re
from pathlib import Path

import pytest
import torch

from attnbench import kernels

PAGES = sorted((Path(__file__).parent.parent / "docs" / "kernels").glob("*.md"))
EXAMPLES = {
    page.stem: re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL) for page in PAGES
}
HELPERS = {  # told where they are used
    *("both_ways", "reversal", "reverse", "recurrence_reason", "halves_reason"),
    *(
        "fast_size",
        "fft_convolution_flops",
        "fft_convolution_moved",
        "short_convolution_moved",
        "pieces",
        "rotated",
        "visible_keys",
        "plain_attention",
    ),
    *("Backend", "FlaKernel"),
}


@pytest.mark.parametrize("page", EXAMPLES)
def test_the_code_of_a_page_runs(page):
    torch.manual_seed(0)
    for code in EXAMPLES[page]:
        exec(compile(code, page, "exec"), {"__name__": page})


def test_every_public_kernel_has_a_page():
    told = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert {name for name in kernels.__all__ if f"`{name}" not in told} <= HELPERS


def test_every_page_is_in_the_table_and_points_to_what_is_there():
    table = (PAGES[0].parent / "README.md").read_text(encoding="utf-8")
    assert {page.name for page in PAGES} - {"README.md"} == set(re.findall(r"\]\((\w+\.md)\)", table))
    for page in PAGES:
        for target in re.findall(r"`(tests/\w+\.py)`", page.read_text(encoding="utf-8")):
            assert (page.parents[2] / target).exists(), (page.name, target)
