"""Scores of maps: how well they find the object, and how far they agree; one file for each protocol.

A score is a pure function from a batch of maps to values for each image, by name, and a tally that collects them::

    tally.add(ids, function(maps, …))
    tally.summary()

Tallies of several workers are joined with ``+``, in any order, to the same result.
"""
