"""Schemas of requests and responses, for validation and for the OpenAPI description."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

EXAMPLE: dict[str, Any] = {"model": "scenes", "picture": "5f0c6f1b2a9d4e8c7b3a1d2e"}

Name = Annotated[str, Field(min_length=1, max_length=100)]
Spec = Annotated[str, Field(min_length=1, max_length=200)]
Index = Annotated[int, Field(ge=0, le=10_000_000)]
Seed = Annotated[int, Field(ge=0, le=2**31 - 1)]


Point = Annotated[list[Annotated[float, Field(ge=0, le=100_000)]], Field(min_length=2, max_length=2)]


class NamedTargetRequest(BaseModel):
    """A prompt, a box of a detector, a region of the image, or a token that a model writes.

    A region is a pixel of the model's input or some of its patches. Without a label it is the likeliest one. A token
    follows those in ``written``; for a vision-language model, ``text`` is the question.
    """

    model_config = ConfigDict(
        extra="forbid", strict=True, json_schema_extra={"examples": [{"kind": "prompt", "text": "a red star"}]}
    )
    kind: Literal["prompt", "box", "region", "token"]
    text: str | None = Field(None, max_length=500)
    query: Index | None = None
    label: Index | None = None
    point: Point | None = None
    patches: list[Index] | None = Field(None, max_length=20_000)
    token: Index | None = None
    written: list[Index] | None = Field(None, max_length=64)


#: A class index, or a target with a name.
TargetRequest = Annotated[
    Annotated[Index, Tag("class")] | Annotated[NamedTargetRequest, Tag("named")],
    Discriminator(lambda value: "named" if isinstance(value, dict | NamedTargetRequest) else "class"),
]


class RequestSchema(BaseModel):
    """Base class of requests: unknown fields and other types are rejected."""

    model_config = ConfigDict(extra="forbid", strict=True)


class SampleRequest(RequestSchema):
    """Use a sample as the image."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"model": "scenes", "sample": "pair-1"}]})
    model: Name
    sample: Name


class InputRequest(RequestSchema):
    """A model and its input: the id of an uploaded image, or a text."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})
    model: Name
    picture: Name | None = None
    text: str | None = Field(None, max_length=100_000)


class PredictRequest(InputRequest):
    """A model and its input, and classes whose probabilities are wanted beside those of the most probable ones."""

    classes: list[Index] = Field(default_factory=list, max_length=100)
    targets: list[NamedTargetRequest] = Field(
        default_factory=list, max_length=100, description="Prompts, boxes or regions, for models without classes"
    )


class ExplainRequest(InputRequest):
    """Methods with their options as on the command line, and class indices; null for the predicted class.

    Models without classes take prompts, boxes or regions as targets.
    """

    model_config = ConfigDict(
        json_schema_extra={"examples": [{**EXAMPLE, "methods": ["vtranm", "rise:masks=500"], "targets": [2, 5]}]}
    )
    methods: list[Spec] = Field(min_length=1, max_length=100)
    targets: list[TargetRequest] | None = Field(None, max_length=100)
    contrast: TargetRequest | None = Field(
        None, description="What to compare with: maps explain the one target minus this one"
    )
    seed: Seed = 0


class CheckRequest(ExplainRequest):
    """Methods and classes whose maps are checked on the model and its input, with the budget "quick"."""

    model_config = ConfigDict(json_schema_extra={"examples": [{**EXAMPLE, "methods": ["vtranm"], "targets": [2]}]})


class RemoveRequest(RequestSchema):
    """Patches to remove from an image, video or sound, and the targets whose probabilities are returned."""

    model_config = ConfigDict(json_schema_extra={"examples": [{**EXAMPLE, "removed": [34, 35], "classes": [2, 5]}]})
    model: Name
    picture: Name
    removed: list[Index] = Field(
        min_length=1, max_length=20_000, description="Indices of patches, row by row; of a video, frame by frame"
    )
    classes: list[TargetRequest] = Field(min_length=1, max_length=20)


class RemoveResponse(BaseModel):
    """Probabilities without the patches, and without as many others, the mean over shifted regions."""

    without: list[float | None]
    elsewhere: list[float | None]
    example: list[int]
    by: str


class CurvesRequest(RequestSchema):
    """Methods to evaluate by deletion and insertion; the random control is always added."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{**EXAMPLE, "methods": ["vtranm"], "target": None, "steps": 20}]}
    )
    model: Name
    picture: Name
    methods: list[Spec] = Field(min_length=1, max_length=100)
    target: TargetRequest | None = None
    among: list[TargetRequest] = Field(
        default_factory=list, max_length=20, description="Other prompts: a prompt has its share in a softmax over all"
    )
    steps: int = Field(20, ge=2, le=50)
    seed: Seed = 0


class AttentionRequest(InputRequest):
    """The index of a patch, row by row, or of a token of a text."""

    model_config = ConfigDict(json_schema_extra={"examples": [{**EXAMPLE, "token": 120}]})
    token: Index


class ErrorMessage(BaseModel):
    """What is wrong and how to fix it."""

    what: str
    fix: str


class ErrorResponse(BaseModel):
    """The body of every error response."""

    error: ErrorMessage


class EncodedMap(BaseModel):
    """A map: little-endian 16-bit integers in base64, row by row; a value is its integer times the scale."""

    shape: list[int]
    scale: float
    data: str
    signed: bool
    low: float
    high: float


class WordScore(BaseModel):
    """A word of a text: its characters, its score scaled to [-1, 1], and its raw score."""

    text: str
    start: int
    end: int
    score: float
    raw: float
    seen: bool


class RemovalResult(BaseModel):
    """The output for the whole input, without the marked patches or words, and without as many others (mean)."""

    share: float
    whole: float
    marked: float
    elsewhere: float
    is_probability: bool
    unit: str


class CorrelationResult(BaseModel):
    """Rank correlation of a map with another one, and whether it lies in the good range."""

    model_config = ConfigDict(populate_by_name=True)

    test: str
    compared_with: str = Field(alias="with")
    value: float
    good: bool
    range: str


class CheckResult(BaseModel):
    """What the check of a map found: the verdict, what it means, and the result in three sentences."""

    verdict: str
    meaning: str
    passed: bool
    failures: list[str]
    p_value: float
    sentences: list[str]
    removal: RemovalResult
    correlations: list[CorrelationResult]


class ItemResponse(BaseModel):
    """The map of one method for one class, its check, or the curves of one method.

    ``seconds`` is the method's own time; for the methods of a shared pass, ``shared`` is their number and ``seconds``
    the time of the pass. Both are null for maps of a shared pass that were computed earlier.
    """

    key: str
    method: str
    target: int | dict[str, Any] | None
    contrast: int | dict[str, Any] | None = None
    target_name: str | None
    state: str
    progress: float
    seconds: float | None
    error: ErrorMessage | None
    shared: int | None = None
    seconds_left: float | None = None
    check: CheckResult | None = None
    flat: bool | None = None
    map: EncodedMap | None = None
    words: list[WordScore] | None = None
    fractions: list[float] | None = None
    deletion: list[float | None] | None = None
    insertion: list[float | None] | None = None
    deletion_auc: float | None = None
    insertion_auc: float | None = None


class JobResponse(BaseModel):
    """A job; its state is queued, running, done, cancelled or failed."""

    id: str
    kind: str
    model: str
    picture: str | None
    text: str | None
    targets: list[int | dict[str, Any]]
    target_names: list[str]
    contrast: int | dict[str, Any] | None = None
    state: str
    ahead: int
    seed: int
    items: list[ItemResponse]
    url: str


class GeometryInfo(BaseModel):
    """The part of an image that a model sees: left, top, right and bottom as fractions of its width and height."""

    box: list[float]
    cropped: bool
    squashed: bool
    text: str


class ImageResponse(BaseModel):
    """The id of a stored image, with the size of the uploaded file, notes on its conversion, and what a model sees."""

    picture: str
    width: int
    height: int
    notes: list[str]
    geometry: GeometryInfo | None = None
    frames: int | None = None


class PaperInfo(BaseModel):
    """The paper of a method."""

    authors: str
    year: str
    title: str
    url: str | None


class MethodInfo(BaseModel):
    """A method, and whether it applies to the model; if not, the reason."""

    name: str
    title: str
    summary: str
    paper: PaperInfo | None
    contrasts: bool
    family: str
    class_specific: bool
    signed: bool
    shared_pass: bool
    works: bool
    reason: str | None
    forwards: int | None


class ModelInfo(BaseModel):
    """A model and its methods."""

    id: str
    title: str
    kind: str
    input: list[int] | None
    grid: list[int] | None
    layers: int
    heads: list[int]
    classes: list[str] | None
    class_count: int
    default: str
    methods: list[MethodInfo]
    media: str = "image"
    targets: str = "class"
    frames: int | None = None
    times: int | None = None
    axes: dict[str, float] | None = None
    prompts: list[str] = []
    attention: bool = True


class SampleInfo(BaseModel):
    """A sample image or text."""

    id: str
    title: str
    url: str | None
    classes: list[str] | None
    text: str | None
    credit: str | None = None
    prompts: list[str] = []


class ClassProbability(BaseModel):
    """A class, prompt, box or region with its probability.

    That of a prompt is its share in a softmax over the prompts of the request. ``corners`` are left, top, right and
    bottom of a box or region, as fractions of the model's input.
    """

    index: int | None
    name: str
    probability: float | None
    target: dict[str, Any] | None = None
    corners: list[float] | None = None


class PredictionResponse(BaseModel):
    """The classes with the highest probability.

    For models that write texts: the likeliest next tokens after ``before``, and ``written``, what the model writes.
    """

    top: list[ClassProbability]
    asked: list[ClassProbability]
    classes: int
    before: str | None = None
    written: list[ClassProbability] | None = None


class LayerAttention(BaseModel):
    """The attention maps of a layer, one for each head."""

    heads: list[EncodedMap]


class AttentionResponse(BaseModel):
    """The attention from one token, for each layer and head."""

    grid: list[int] | None
    tokens: list[str] | None
    layers: list[LayerAttention]
    prefix: int
