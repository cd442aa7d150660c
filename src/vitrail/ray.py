"""Relevance maps in a Ray Data pipeline.

::

    import ray
    from vitrail.ray import Explainer, read_maps

    images = ray.data.read_binary_files("s3://bucket/photos", include_paths=True)
    maps = images.map_batches(
        Explainer, fn_constructor_args=("vit-b16", ["gradtoken", "vtranm"]),
        fn_constructor_kwargs={"column": "bytes"}, batch_size=64, concurrency=8, num_gpus=1,
    )
    maps.write_parquet("s3://bucket/maps")

``num_gpus=0.5`` puts two models on one GPU, each with half of its memory. An actor that dies loses only the blocks it
was working on; Ray gives them to another one.
"""

from vitrail.pipeline.column_explainer import Explainer, read_maps

__all__ = ["Explainer", "read_maps"]
