"""Everything that exists for speed: recorded passes, split products, kernels, compiled models and their switches."""
