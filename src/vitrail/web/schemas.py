"""What clients send and get, for checking and for the API's description."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

SCENE: dict[str, Any] = {"model": "scenes", "picture": "5f0c6f1b2a9d4e8c7b3a1d2e"}

Name = Annotated[str, Field(min_length=1, max_length=100)]
Spec = Annotated[str, Field(min_length=1, max_length=200)]
Index = Annotated[int, Field(ge=0, le=10_000_000)]
Seed = Annotated[int, Field(ge=0, le=2**31 - 1)]


class BaseSchema(BaseModel):
    """Base of requests: nothing unknown, nothing of another type."""

    model_config = ConfigDict(extra="forbid", strict=True)


class SampleBody(BaseSchema):
    """An embedded scene as a picture."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"model": "scenes", "sample": "pair-1"}]})
    model: Name
    sample: Name


class InputSource(BaseSchema):
    """A picture that was sent before, by its id, or a text, for a model."""

    model_config = ConfigDict(json_schema_extra={"examples": [SCENE]})
    model: Name
    picture: Name | None = None
    text: str | None = Field(None, max_length=100_000)


class ExplainBody(InputSource):
    """Methods as the command line takes them, and classes by index; null for the predicted one."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{**SCENE, "methods": ["vtranm", "rise:masks=500"], "targets": [2, 5]}]}
    )
    methods: list[Spec] = Field(min_length=1, max_length=100)
    targets: list[Index] | None = Field(None, max_length=100)
    seed: Seed = 0


class CurvesBody(BaseSchema):
    """Methods whose maps are tested by deletion and insertion; the random control is always added."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{**SCENE, "methods": ["vtranm"], "target": None, "steps": 20}]}
    )
    model: Name
    picture: Name
    methods: list[Spec] = Field(min_length=1, max_length=100)
    target: Index | None = None
    steps: int = Field(20, ge=2, le=50)
    seed: Seed = 0


class AttentionBody(InputSource):
    """A patch, counted row by row, or a token of a text, by its index."""

    model_config = ConfigDict(json_schema_extra={"examples": [{**SCENE, "token": 120}]})
    token: Index


class ProblemSchema(BaseModel):
    """What is wrong and what to do."""

    what: str
    fix: str


class ProblemBody(BaseModel):
    """Every answer that refuses."""

    error: ProblemSchema


class MapBody(BaseModel):
    """A map: little-endian 16-bit integers in base64, row by row; a value is data × scale."""

    shape: list[int]
    scale: float
    data: str
    signed: bool
    low: float
    high: float


class WordBody(BaseModel):
    """A word of a text: its characters, its score scaled for colours, and as it is."""

    text: str
    start: int
    end: int
    score: float
    raw: float
    seen: bool


class ItemBody(BaseModel):
    """One method's map for one class, or one method's curves."""

    key: str
    method: str
    target: int | None
    target_name: str | None
    state: str
    progress: float
    seconds: float | None
    error: ProblemSchema | None
    flat: bool | None = None
    map: MapBody | None = None
    words: list[WordBody] | None = None
    fractions: list[float] | None = None
    deletion: list[float | None] | None = None
    insertion: list[float | None] | None = None
    deletion_auc: float | None = None
    insertion_auc: float | None = None


class JobBody(BaseModel):
    """A job: queued, running, done, cancelled or failed."""

    id: str
    kind: str
    model: str
    picture: str | None
    text: str | None
    targets: list[int]
    target_names: list[str]
    state: str
    ahead: int
    seed: int
    items: list[ItemBody]
    url: str


class PictureBody(BaseModel):
    """A picture that is kept, by its id; size and notes are of what was sent."""

    picture: str
    width: int
    height: int
    notes: list[str]


class MethodCard(BaseModel):
    """A method, and whether and why not it applies to the model."""

    name: str
    title: str
    family: str
    class_specific: bool
    signed: bool
    cheap: bool
    works: bool
    reason: str | None
    forwards: int | None


class ModelCard(BaseModel):
    """A model that can be asked for."""

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
    methods: list[MethodCard]


class SampleCard(BaseModel):
    """Something to try."""

    id: str
    title: str
    url: str | None
    classes: list[str] | None
    text: str | None


class Guess(BaseModel):
    """A class and its probability."""

    index: int
    name: str
    probability: float | None


class PredictionBody(BaseModel):
    """The likeliest classes."""

    top: list[Guess]
    classes: int


class LayerBody(BaseModel):
    """A layer's heads, a map each."""

    heads: list[MapBody]


class AttentionAnswer(BaseModel):
    """What one token attends to, by layer and head."""

    grid: list[int] | None
    tokens: list[str] | None
    layers: list[LayerBody]
    prefix: int
