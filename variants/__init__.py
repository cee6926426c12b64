"""The built-in variants. They enter by the door that strangers use: the entry points of attnbench.variants."""
