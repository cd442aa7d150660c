"""Relevance propagation through an unmodified model: a backward pass with other rules."""
