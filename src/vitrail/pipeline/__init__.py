"""One call of `vitrail.explain`, from its arguments to its result."""
