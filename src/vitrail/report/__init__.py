"""From a run to a table that can be trusted: intervals, tests, curves, pictures, costs, beside a paper's numbers."""
