"""Plugins that miss the interface, each in a way that is met in another file's lines."""

from torch import nn

from attnbench import Attention, Mixer


class Pair(Attention):
    def attend(self, q, k, v, *, key_mask=None):
        return v, q


class Unpacks(Pair):
    """Its own forward takes the pair apart; a core meets it whole."""

    normalised = False

    def forward(self, x, *, context=None, key_mask=None):
        y, _ = self.attend(*self.project(x, x), key_mask=key_mask)
        return self.merge(y)


class Longer(Attention):
    def attend(self, q, k, v, *, key_mask=None):
        return v.repeat(1, 1, 2, 1)


class Narrow(Attention):
    def attend(self, q, k, v, *, key_mask=None):
        return v[..., :1]


class Nothing(Attention):
    """Forgets to attend."""


class Silent(Mixer):
    def forward(self, x, *, context=None, key_mask=None):
        x + 1


class Absent(Mixer):
    """Forgets to mix."""


class Maskless(Attention):
    def attend(self, q, k, v):
        return v


class Bare(Mixer):
    def __init__(self, spec):
        pass


class Unspecified(Mixer):
    def __init__(self, spec):
        nn.Module.__init__(self)


class Lonely(Mixer):
    def __init__(self):
        super().__init__(None)
