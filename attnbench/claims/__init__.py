"""Published claims, each as a pack: what is run, what is expected of it, and the verdict on what was measured."""
