"""Slow float64 replicas of the explanation methods, written from their formulas, for the tests to compare with."""
