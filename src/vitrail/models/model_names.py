"""Names of models that are not complete: which name was probably meant."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from vitrail.errors import MissingExtraError, ModelError
from vitrail.models.catalogue import CATALOGUE
from vitrail.models.sources import SOURCES, matching_names

#: What users write for a source, in lower case without "-" and "_".
_ALIASES = {"huggingface": "hf", "transformers": "hf", "hub": "hf", "tv": "torchvision", "openclip": "open_clip"}
_WEIGHTS_SUFFIXES = (".safetensors", ".pt", ".pth", ".ckpt", ".bin")


def unknown_name_error(spec: str, embedded: tuple[str, ...]) -> ModelError:
    """The error of a name that has no source or an unknown one; it says which name to write where that is known.

    Args:
        spec: The name.
        embedded: Names of the embedded models.

    Example:
        >>> str(unknown_name_error("vit_tiny_patch16_224", ()))
        "'vit_tiny_patch16_224' does not name its source: did you mean timm:vit_tiny_patch16_224?"
        >>> str(unknown_name_error("google/vit-base-patch16-224", ()))
        "'google/vit-base-patch16-224' does not name its source: did you mean hf:google/vit-base-patch16-224?"
        >>> str(unknown_name_error("huggingface:gpt2", ()))
        "unknown source 'huggingface' in 'huggingface:gpt2': did you mean hf:gpt2?"
    """
    source, colon, name = spec.partition(":")
    short = (*embedded, *CATALOGUE)
    if colon:
        given = f"unknown source {source!r} in {spec!r}"
        alias = _ALIASES.get(source.lower().replace("-", "").replace("_", ""))
        near = [alias] if alias else get_close_matches(source.lower(), SOURCES, n=1)
        meant = [f"{one}:{name}" for one in near]
    else:
        meant = _with_source(spec)
        given = f"{spec!r} does not name its source" if meant else f"unknown model {spec!r}"
        meant = meant or get_close_matches(spec.lower(), short, n=3, cutoff=0.75)
    if Path(spec).suffix in _WEIGHTS_SUFFIXES and not colon:
        return ModelError(
            f"{spec!r} is a file of weights: name the architecture, as in --model timm:NAME, and the file as weights "
            "(--weights FILE, or the second argument of vitrail.load)"
        )
    if meant:
        return ModelError(f"{given}: did you mean {' or '.join(meant)}?")
    return ModelError(f"{given}: use {', '.join([*(f'{one}:NAME' for one in SOURCES), *short])}")


def _with_source(name: str) -> list[str]:
    """The names with a source that a name without one may stand for."""
    organisation, slash, model = name.partition("/")
    if (Path(name) / "config.json").is_file():
        return [f"hf:{name}"]
    if slash and organisation == "timm":
        return [f"timm:{model}"]
    found = [f"{source}:{name}" for source in ("timm", "torchvision", "open_clip") if _is_listed(source, name)]
    if found or name.count("/") != 1 or name.startswith((".", "/")):
        return found
    return [f"hf:{name}"]


def _is_listed(source: str, name: str) -> bool:
    """Whether a source has a model of exactly this name, apart from the tag of its weights."""
    base = {"timm": name.partition(".")[0], "open_clip": name.partition("/")[0]}.get(source, name)
    try:
        return base in matching_names(source, base)
    except MissingExtraError:
        return False
