"""Looking into a model nobody rewrote."""
