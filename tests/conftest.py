"""One thread for all tests: the suite shares its machine, and two threads that wait for a core are slower than one."""

import torch

torch.set_num_threads(1)
