"""What the user passed, described: inputs, outputs and targets."""
