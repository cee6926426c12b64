"""What the instrument itself is worth: each module makes rows of the table that `attnbench.calibration` prints."""
