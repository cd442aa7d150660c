"""Attributions of decoders by inseq, as stored values for tests.

    python -m studies.inseq_references tests/battery/data/inseq_references.json

It needs inseq (``pip install inseq``), which is no dependency of the project, and does not import vitrail.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from studies.decoder_references import reference_model

from tests.text.language import word_tokens

FAMILIES = ("GPT2", "Llama")
PROMPT, NEXT = "the capital of France is", "Paris"
#: Methods of inseq and their options.
METHODS: dict[str, dict[str, Any]] = {"input_x_gradient": {}, "integrated_gradients": {"n_steps": 64}}


def main(path: Path) -> None:
    """Write the attribution of each word of the prompt to the logit of the next word."""
    import inseq

    found: dict[str, Any] = {}
    with TemporaryDirectory() as folder:
        for family in FAMILIES:
            reference_model(family).save_pretrained(folder)
            word_tokens(bos=False).save_pretrained(folder)
            found[family] = {}
            for method, options in METHODS.items():
                attributed = inseq.load_model(folder, method).attribute(
                    PROMPT, f"{PROMPT} {NEXT}", attributed_fn="logit", show_progress=False, **options
                )
                values = attributed.sequence_attributions[0].target_attributions
                found[family][method] = values[:-1, 0].double().sum(-1).tolist()
    packages = ("inseq", "captum", "transformers", "torch")
    content = {"versions": {name: version(name) for name in packages}, "values": found}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
