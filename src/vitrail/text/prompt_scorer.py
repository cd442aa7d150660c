"""The value of a target of a language model while tokens of its prompt are removed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from inspect import signature
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.capture.frozen import frozen
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.model_call import run_model
from vitrail.errors import OptionError, TargetError
from vitrail.targets.contrasts import Contrast
from vitrail.targets.language_targets import TargetTerm, read_positions, target_terms
from vitrail.targets.named_target import NamedTarget
from vitrail.targets.output_reader import CallContext, OutputReader
from vitrail.targets.token_context import TokenContext, tokenizer_of
from vitrail.targets.token_target import TokenTarget
from vitrail.text.language_model import padded_inputs
from vitrail.text.prompt_tokens import EncodedPrompt

#: How tokens can be removed: hidden from all others by the attention mask, or replaced by a token without content.
TOKEN_REMOVALS = ("mask", "replace")


class PromptScorer:
    """Evaluates a pinned target on a prompt with some of its tokens removed; all others keep their positions.

    A single token is evaluated by its log-probability, since a logit has no fixed zero.

    Attributes:
        removal: How tokens are removed.
    """

    def __init__(
        self, model: nn.Module, prompt: EncodedPrompt, target: NamedTarget, tokenizer: Any, removal: str | None = None
    ) -> None:
        masked = "attention_mask" in signature(model.forward).parameters
        if removal not in (None, *TOKEN_REMOVALS):
            raise OptionError(
                f"removal={removal!r} is not one of {', '.join(map(repr, TOKEN_REMOVALS))}, the ways to remove tokens"
            )
        if removal == "mask" and not masked:
            raise OptionError(f"{type(model).__name__} takes no attention mask: use removal='replace'")
        self.removal = removal or ("mask" if masked else "replace")
        self.model, self.prompt, self.tokenizer = model, prompt, tokenizer_of(tokenizer)
        self.target = replace(target, score="logprob") if isinstance(target, TokenTarget) else target
        self.terms = target_terms(self.target, len(prompt.ids))
        if removal is None and masked and not self._mask_works():
            self.removal = "replace"

    def __call__(self, kept: Tensor) -> Tensor:
        """Values with some tokens kept, shape (n,), double precision on the CPU."""
        values = [self._value(term, kept) for term in self.terms]
        if len(values) == 1:
            return values[0]
        return values[0] - (values[1] if len(values) == 2 else torch.stack(values[1:]).logsumexp(0))

    def other(self) -> NamedTarget | None:
        """The model's next candidate beside the target, or None if it has none."""
        if isinstance(self.target, Contrast) or len(self.terms) > 1:
            return None
        everything = torch.ones(1, len(self.prompt.ids), dtype=torch.bool)
        reader = self._run(self.terms[0], everything)
        try:
            return next(iter(self._pinned(self.terms[0], reader).others(reader, 0, 1)), None)
        except TargetError:
            return None

    def _mask_works(self) -> bool:
        """Whether hiding all words changes the target, and it stays finite.

        Some models take a mask and do not use it. In others, a token whose window is hidden as a whole has no number.
        """
        kept = torch.ones(2, len(self.prompt.ids), dtype=torch.bool)
        kept[1] = ~torch.tensor(self.prompt.encoded.content)
        whole, hidden = self(kept).tolist()
        return isfinite(hidden) and whole != hidden

    def _value(self, term: TargetTerm, kept: Tensor) -> Tensor:
        reader = self._run(term, kept)
        with torch.no_grad():
            return self._pinned(term, reader).values(reader).double().cpu()

    def _pinned(self, term: TargetTerm, reader: OutputReader) -> NamedTarget:
        return term.target.pin(reader, 0)  # its tokens are known: only their columns are found again

    def _run(self, term: TargetTerm, kept: Tensor) -> OutputReader:
        row = (*self.prompt.ids, *term.forced)
        positions: Sequence[int] = read_positions(term.target, len(row))
        inputs = padded_inputs(self.model, [row], 0, [positions])
        ids = inputs["input_ids"].expand(len(kept), -1)
        whole = torch.cat([kept, kept.new_ones(len(kept), len(term.forced))], 1)
        if self.removal == "replace":
            inputs["input_ids"] = torch.where(whole, ids, self._empty_token())
        else:
            inputs |= {"input_ids": ids, "attention_mask": whole.long()}
        if self.removal == "replace" and "attention_mask" in inputs:
            inputs["attention_mask"] = torch.ones_like(ids)
        call = ModelInputs((), inputs).onto(self.model)
        with frozen(self.model), torch.no_grad():
            output = run_model(self.model, call)
        # The rows of all copies have the tokens of the prompt, also where some of them are masked.
        context = TokenContext.of(ModelInputs((), {**inputs, "input_ids": ids, "attention_mask": torch.ones_like(ids)}))
        assert context is not None
        return OutputReader(output, CallContext(self.model, tokens=replace(context, tokenizer=self.tokenizer)))

    def _empty_token(self) -> int:
        """A token without content: padding, the end of a text or the unknown word."""
        names = ("pad_token_id", "eos_token_id", "unk_token_id", "bos_token_id")
        found = (getattr(self.tokenizer, name, None) for name in names)
        return next((int(one) for one in found if one is not None), 0)
