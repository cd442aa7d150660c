"""Explain a model's output with one or several methods in one shared pass."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, overload

from torch import Tensor, nn

from vitrail import fast
from vitrail.capture.frozen import gradients_enabled
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.layout import Layout
from vitrail.capture.output_tensors import OutputChoice, OutputReading
from vitrail.errors import GuessWarning, MapWarning, NotApplicableError
from vitrail.inputs.map_source import MapSource, PromptSource, TextSource
from vitrail.inputs.targets import Target
from vitrail.inputs.user_inputs import Inputs, to_model_inputs
from vitrail.models import LoadedModel
from vitrail.models.loaded import Transform
from vitrail.pipeline.explanation import Explanation, Explanations
from vitrail.pipeline.memory import run_in_memory
from vitrail.pipeline.method_runs import run_methods
from vitrail.pipeline.original_image import original_images
from vitrail.pipeline.prepared_model import PreparedModel, embedded_target, prepare, unwrapped_model
from vitrail.pipeline.progress import Progress
from vitrail.pipeline.prompt_words import PromptWords, has_prompts
from vitrail.pipeline.request import DEFAULT, LANGUAGE_DEFAULT, LANGUAGE_FALLBACK, Request, requested_methods
from vitrail.pipeline.results import Results, complete
from vitrail.pipeline.shared_pass import ResultFlags
from vitrail.pipeline.smoothing import SAMPLES, SIGMA, Smoothing, images_to_smooth
from vitrail.targets.binding import bind_targets, with_processor
from vitrail.targets.bound_targets import has_named_target

__all__ = ["DEFAULT", "explain"]


@overload
def explain(
    model: nn.Module | LoadedModel, inputs: Inputs, method: str | None = ..., *, methods: None = ...,
    target: Target = ...,
    preprocess: Transform | None = ..., layout: Layout | None = ..., batch_size: int | None = ..., keep: bool = ...,
    stitch: bool = ..., smooth: str | None = ..., smooth_samples: int = ..., smooth_noise: float = ...,
    smooth_seed: int = ..., check: bool | str = ..., progress: Progress = ..., advance: Callable[[int], None] = ...,
    tokenizer: Any = ..., roles: Mapping[str, str] | None = ..., of: str | None = ..., output: OutputChoice = ...,
    scores: str | None = ..., units: Any = ..., processor: Any = ..., recompute: bool | None = ...,
    **options: Any,
) -> Explanation: ...  # fmt: skip


@overload
def explain(
    model: nn.Module | LoadedModel, inputs: Inputs, method: str | None = ..., *,
    methods: Sequence[str] | Mapping[str, Mapping[str, Any]], target: Target = ...,
    preprocess: Transform | None = ..., layout: Layout | None = ..., batch_size: int | None = ..., keep: bool = ...,
    stitch: bool = ..., smooth: str | None = ..., smooth_samples: int = ..., smooth_noise: float = ...,
    smooth_seed: int = ..., check: bool | str = ..., progress: Progress = ..., advance: Callable[[int], None] = ...,
    tokenizer: Any = ..., roles: Mapping[str, str] | None = ..., of: str | None = ..., output: OutputChoice = ...,
    scores: str | None = ..., units: Any = ..., processor: Any = ..., recompute: bool | None = ...,
) -> Explanations: ...  # fmt: skip


@fast.cached_per_call
def explain(
    model: nn.Module | LoadedModel,
    inputs: Inputs,
    method: str | None = None,
    *,
    methods: Sequence[str] | Mapping[str, Mapping[str, Any]] | None = None,
    target: Target = None,
    preprocess: Transform | None = None,
    layout: Layout | None = None,
    batch_size: int | None = None,
    keep: bool = False,
    stitch: bool = False,
    smooth: str | None = None,
    smooth_samples: int = SAMPLES,
    smooth_noise: float = SIGMA,
    smooth_seed: int = 0,
    check: bool | str = False,
    progress: Progress = None,
    advance: Callable[[int], None] = lambda _: None,
    tokenizer: Any = None,
    roles: Mapping[str, str] | None = None,
    of: str | None = None,
    output: OutputChoice = None,
    scores: str | None = None,
    units: Any = None,
    processor: Any = None,
    recompute: bool | None = None,
    **options: Any,
) -> Explanation | Explanations:
    """Compute relevance maps for a model's output.

    The model is used as it is, on its own device and in its own precision. It is held in evaluation mode during the
    call and restored afterwards. Maps are the same where the caller has switched gradients off.

    Args:
        model: Your model object (timm, Hugging Face, torchvision, open_clip or your own), or what ``load`` returned.
        inputs: A batch of images, videos, waveforms or rows of features as a tensor, one or several PIL images or paths
            (images, videos, sound), or the arguments of the model: a dict of tensors by name, a tuple of tensors by
            position, or the dict or dataclass that it takes as its only argument; with a tokenizer, a text or several.
            For language models also a chat, as a list of messages, and a dict with ``input_ids``.
        method: A method's name; ``name:variant`` and ``name:option=value,…`` work as well. "auto" is the method that
            `vitrail.compare` recommended for this model. By default `leadlight`, and `attnlrp:released` for
            language models.
        methods: Several methods, which share one pass: names, or a dict from names to options.
        target: What to explain: None for the predicted class, "top3" for the three likeliest, a class index or name,
            a group of classes as one target (`ClassGroup`, or "tabby|tiger cat"), one of these per image, a row of K
            per image (``[[a, b]]`` for the same of every image), or a function from the model's output to one or K
            numbers per image. `vitrail.targets` has targets with names for other models than classifiers: ``prompt``,
            ``box``, ``region``, ``similar_to``, ``token``, ``answer`` and ``contrast``. For a CLIP model that was
            loaded by name: a text or ``[[text, text]]``. For a language model None is the predicted next token, and a
            text or an id names a token.
        preprocess: From a PIL image, or a frame of a video, to a tensor, where the model's own way is unknown or not
            wanted; for sound files the feature extractor of the model.
        layout: Prefix, grid and readout, where they cannot be found out.
        batch_size: Process the inputs in batches of this size, to bound memory; methods that evaluate perturbed images
            evaluate at most this many at a time (by default 32; 64 on a GPU for at most 256 tokens).
        stitch: Join attention inside windows (Swin) into attention between all patches, for the methods that take it
            (`rollout`, `transformer_mm` and others that multiply attention through the blocks).
        smooth: Average the relevance over copies of each image, for any method: "flips", the image and its mirror
            image, each times 0.9, 1 and 1.1 (6 copies), or "noise", noisy copies. All copies explain the classes of the
            unchanged image.
        smooth_samples: Number of noisy copies.
        smooth_noise: Standard deviation of their noise, as a share of the image's range of values.
        smooth_seed: Seed of the noise.
        check: Also check each map on this model and image, see `Explanation.check`; "quick" (as True) or "full". The
            results are in ``checks`` of the result, and maps that fail are marked in overlays and figures.
        keep: Also keep intermediate results of the methods, in ``intermediates`` of the result.
        progress: True shows a bar on standard error while methods evaluate images beyond the shared pass; a function is
            called with the number of images evaluated so far and the number expected.
        advance: Called with the number of images a method has just evaluated.
        tokenizer: For texts: the model's fast Hugging Face tokenizer, or `vitrail.text.TokenizerSettings`, which
            also say how token scores become word scores and how long texts are split. The result's ``text`` has a
            score for each word.
        roles: What tensors of the inputs are, by name, where that was not found out: "image", "video", "patches",
            "spectrogram", "series", "features", "tokens", "positions", "mask", "shared" (by all examples) or "other".
            ``vitrail doctor`` shows what was found.
        of: Name of the tensor that is explained, where the inputs have several images or texts. By default the first
            image in the order of forward's parameters; without images the first video, and so on in the order of
            ``roles``.
        output: Which part of the model's output holds the class scores, where there are several: a name, an index, or a
            function of the output. A target that is a function gets this part.
        scores: What turns the scores into probabilities: "softmax", "sigmoid" (several labels an image) or "identity"
            (a regression). By default what the `LoadedModel` or the model states, see ``scores`` of the result.
        units: For texts: what is scored and, by methods that remove parts of the input, removed as a whole: "tokens",
            "words", "sentences", "paragraphs", or passages, as pairs of start and end in characters or as their texts;
            for several texts, one list of passages for each. By default words are scored and tokens removed.
        processor: For questions about images: the Hugging Face processor, whose tokenizer reads the words; the same as
            ``tokenizer``. The inputs are then the dict that it returns. The result has maps on the images, and the
            words of each question in ``text``.
        recompute: Whether backward passes compute the activations of each block again instead of keeping them, which
            bounds memory for large models and long inputs and takes at least one more forward pass. The maps are
            the same. None does so where a single input does not fit in the memory of a GPU.
        **options: Options of ``method``.

    Returns:
        An `Explanation`, or with ``methods`` a mapping of them by name.

    Example:
        >>> import torch
        >>> from vitrail.testing import tiny_vit
        >>> e = explain(tiny_vit(), torch.zeros(2, 3, 32, 32), "rollout")
        >>> e.maps.shape, e.grid.shape
        (torch.Size([2, 1, 32, 32]), torch.Size([2, 1, 4, 4]))
    """
    smoothing = None if smooth is None else Smoothing(smooth, smooth_samples, smooth_noise, smooth_seed)
    loaded = unwrapped_model(model, preprocess)
    reading = OutputReading(output, loaded.scores if scores is None else scores)
    tokenizer = processor if tokenizer is None else tokenizer
    if tokenizer is None and of is None and output is None:
        _refuse_without_tokenizer(loaded, inputs, target)
    question = _is_image_question(inputs, tokenizer, target)
    chosen, question = question and of is not None, question and of is None
    language = tokenizer is not None and _is_language_call(loaded, target)
    written = not question and not chosen and _is_written(loaded, tokenizer, target)
    default = LANGUAGE_DEFAULT if language or written else DEFAULT
    request = Request(
        requested_methods(method, methods, options, default), target, layout, batch_size, keep, stitch, smoothing,
        check, progress, advance, tokenizer, roles, of, reading, units, recompute,
    )  # fmt: skip

    def results_of(request: Request) -> Results:
        with fast.one_call(), gradients_enabled():
            if isinstance(inputs, ModelInputs):  # a call of an earlier explanation, with its targets
                return _explain_images(loaded, inputs, request)
            if question:
                return _explain_questions(loaded, inputs, request, language)
            if chosen:
                return _explain_chosen(loaded, inputs, request, language)
            if written:
                return _explain_written(loaded, inputs, request)
            if tokenizer is None:
                return _explain_images(loaded, inputs, request)
            return (_explain_prompts if language else _explain_texts)(loaded, inputs, request)

    try:
        results = results_of(request)
    except NotApplicableError as error:
        if method is not None or dict(request.methods) != {LANGUAGE_DEFAULT: {}} or methods is not None:
            raise
        warnings.warn(f"{LANGUAGE_FALLBACK} is used in place of the default: {error}", GuessWarning, stacklevel=2)
        results = results_of(replace(request, methods={LANGUAGE_FALLBACK: {}}))
    return Explanations(results) if methods is not None else next(iter(results.values()))


def _explain_images(loaded: LoadedModel, inputs: Inputs, request: Request) -> Results:
    """Prepare the model, run all methods in one shared pass, and complete their results."""
    if has_named_target(request.target):
        loaded = with_processor(loaded, request.target)
    jobs = request.jobs(loaded.module)
    model_inputs = to_model_inputs(inputs, loaded, request.roles, request.of, request.reading)
    called, target, own_call = loaded, request.target, model_inputs
    if has_named_target(target):
        geometries = [one.geometry for one in original_images(inputs, loaded.preprocess) or ()]
        called, model_inputs, target = bind_targets(target, loaded, model_inputs, geometries, request.tokenizer)
    else:
        target = embedded_target(loaded, target)
    request = replace(request, target=target)

    def run() -> tuple[PreparedModel, tuple[dict[str, Explanation], list[ResultFlags]]]:
        prepared = prepare(called, model_inputs, request, jobs)
        return prepared, run_methods(prepared, jobs, replace(request, stitch=prepared.window_positions is not None))

    prepared, (results, flags) = run_in_memory(run, called.module, request.recompute, model_inputs.batch)
    request = replace(request, stitch=prepared.window_positions is not None)
    function = request.target if callable(request.target) else None
    again = partial(_explain_again, loaded, request, own_call)
    source = MapSource(called, prepared.inputs, prepared.structure, function, again)
    completed = complete(results, inputs, source, request, flags)
    return {label: _with_words(e, source) for label, e in completed.items()}


def _with_words(explanation: Explanation, source: MapSource) -> Explanation:
    """The explanation with the text side of its prompts, which is computed at first access."""
    records = explanation.named_targets
    if records is None or not has_prompts(records):
        return explanation
    methods = {explanation.method: explanation.options}
    return replace(explanation, text=PromptWords(source.loaded, source.model_inputs, records, methods, explain))


def _explain_texts(loaded: LoadedModel, inputs: Inputs, request: Request) -> Results:
    """Explain the windows of each text and merge their results."""
    from vitrail.pipeline.text_windows import explain_texts
    from vitrail.text.prediction import predict_texts
    from vitrail.text.tokens import TokenizerSettings

    if request.smoothing is not None:
        images_to_smooth(ModelInputs())  # raises: texts cannot be smoothed
    tokenizer = request.tokenizer
    settings = tokenizer if isinstance(tokenizer, TokenizerSettings) else TokenizerSettings(tokenizer)

    def explain_windows(windows: Mapping[str, Tensor], target: Target) -> Explanations:
        reading = {"output": request.reading.output, "scores": request.reading.scores}
        given = {"layout": request.layout, "keep": request.keep, "progress": request.progress, **reading}
        given["recompute"] = request.recompute
        return explain(loaded, windows, methods=request.methods, target=target, advance=request.advance, **given)  # type: ignore[no-any-return,call-overload]

    request = replace(request, tokenizer=settings)
    target = embedded_target(loaded, request.target)
    results = explain_texts(
        inputs, settings, loaded, target, explain_windows, request.batch_size, request.keep, request.units
    )
    texts = (inputs,) if isinstance(inputs, str) else tuple(inputs)
    predict = partial(predict_texts, settings=settings, model=loaded.module)
    source = TextSource(loaded, texts, settings, predict, partial(_explain_again, loaded, request, None))
    return complete(results, inputs, source, request)


def _refuse_without_tokenizer(loaded: LoadedModel, inputs: Inputs, target: Target) -> None:
    from vitrail.text.language_model import refuse_without_tokenizer

    refuse_without_tokenizer(loaded.module, inputs, target)


def _is_language_call(loaded: LoadedModel, target: Target) -> bool:
    """Whether a call with a tokenizer is one of a language model: by the model, or by a target of such models."""
    from vitrail.targets.language_targets import has_language_target
    from vitrail.text.language_model import is_language_model

    return has_language_target(target) or is_language_model(loaded.module)


def _explain_prompts(loaded: LoadedModel, inputs: Inputs, request: Request) -> Results:
    """Explain the prompts of a language model."""
    from vitrail.pipeline.language_prompts import PromptSettings, encoded_prompts, explain_prompts

    if request.smoothing is not None:
        images_to_smooth(ModelInputs())  # raises: texts cannot be smoothed
    prompts, tokenizer = encoded_prompts(loaded.module, inputs, request.tokenizer)
    request = replace(request, tokenizer=tokenizer)
    settings = PromptSettings(loaded.module, tokenizer, request.units, request.batch_size, request.keep)
    inner = replace(request, check=False, batch_size=None)

    def explain_rows(rows: dict[str, Any], target: Target) -> Results:
        return _explain_images(loaded, rows, replace(inner, target=target))

    results = explain_prompts(prompts, settings, request.target, explain_rows)
    inner_source = next(iter(results.values())).source
    assert isinstance(inner_source, MapSource)
    again = partial(_explain_again, loaded, request, None)
    source = PromptSource(loaded, tuple(prompts), tokenizer, inner_source.structure, again)
    return complete(results, [prompt.encoded.text for prompt in prompts], source, request)


def _is_image_question(inputs: Inputs, tokenizer: Any, target: Target) -> bool:
    """Whether a call asks a vision-language model: words and images, with a tokenizer or a token as target."""
    from vitrail.pipeline.image_questions import is_image_question
    from vitrail.targets.language_targets import has_language_target

    if not isinstance(inputs, Mapping) or (tokenizer is None and not has_language_target(target)):
        return False
    return is_image_question(inputs)


def _explain_chosen(loaded: LoadedModel, inputs: Any, request: Request, language: bool) -> Results:
    """Explain one tensor of a question about an image, through the whole model."""
    from vitrail.targets.language_targets import language_rows
    from vitrail.targets.token_context import tokenizer_of

    target = request.target
    if language and (not callable(target) or has_named_target(target)):
        count = to_model_inputs(inputs, loaded, request.roles, request.of, request.reading).batch
        request = replace(
            request, target=[list(row) for row in language_rows(target, count, tokenizer_of(request.tokenizer))]
        )
    return _explain_images(loaded, inputs, request)


def _explain_questions(loaded: LoadedModel, inputs: Any, request: Request, language: bool) -> Results:
    """Explain questions about images."""
    from vitrail.pipeline.image_questions import explain_image_questions

    def again(call: ModelInputs, methods: Mapping[str, Mapping[str, Any]], target: Target) -> Explanations:
        given = {name: value for name, value in call.kwargs.items() if value is not None}
        return _explain_again(loaded, request, None, given, methods, target)

    return explain_image_questions(loaded, inputs, request, language, _explain_images, again)


def _is_written(loaded: LoadedModel, tokenizer: Any, target: Target) -> bool:
    """Whether words that the decoder of an encoder–decoder writes are explained."""
    from vitrail.pipeline.encoder_decoders import is_encoder_decoder
    from vitrail.targets.language_targets import has_language_target

    asked = tokenizer is not None or target is None or has_language_target(target)
    return asked and is_encoder_decoder(loaded.module)


def _explain_written(loaded: LoadedModel, inputs: Inputs, request: Request) -> Results:
    """Explain what the encoder of an encoder–decoder reads."""
    from vitrail.pipeline.encoder_decoders import explain_encoder_decoder

    return explain_encoder_decoder(loaded, inputs, request, _explain_images)


def _explain_again(
    loaded: LoadedModel,
    request: Request,
    own_call: ModelInputs | None,
    inputs: Inputs,
    methods: Mapping[str, Mapping[str, Any]],
    target: Target,
) -> Explanations:
    """Explain other inputs of the same model, for checks; texts that the target adds to the call are left out.

    What is guessed of the model was said in the call itself; of random weights or noisy inputs it is not said.
    """
    if isinstance(inputs, ModelInputs) and own_call is not None and len(inputs.named) > len(own_call.named):
        kept = {name: value for name, value in inputs.kwargs.items() if name in own_call.kwargs}
        inputs = kept or inputs.image
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MapWarning)
        warnings.simplefilter("ignore", GuessWarning)
        return explain(loaded, inputs, methods=methods, target=target, **request.settings())
