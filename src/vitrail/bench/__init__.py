"""The benchmark: a plan in TOML becomes chunks of work, chunks become parts on disk, parts become one table.

Fault tolerance is in the folder, not in the scheduler: a part appears whole or not at all, what is there is done, and
every engine (processes, Ray, shards) runs the same `vitrail.bench.chunk.run_chunk`. See
`vitrail.bench.results_store` for what is written where.
"""
