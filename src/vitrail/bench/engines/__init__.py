"""Engines that run the chunks of a benchmark: local processes, Ray actors, shards of a cluster."""
