"""How cells are worked on: one visit end to end, the fresh process it runs in, and the order of all visits."""
