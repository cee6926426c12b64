"""What is measured of a callable and of a machine: time, memory, operations. A variant never reports its own."""
