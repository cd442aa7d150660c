"""Tools on top of `vitrail.explain`: comparison of methods, diagnosis, speed, demo, figures, other libraries."""
