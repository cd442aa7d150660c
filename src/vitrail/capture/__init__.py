"""Read an unmodified model during its own forward and backward pass."""
