"""Random requests that fit the schema of the server."""

from __future__ import annotations

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

from tests.web.web_case import small_app, upload_id

pytestmark = pytest.mark.slow
pytest_plugins = ["schemathesis.pytest.plugin"]  # not loaded for other files, as its import takes seconds

_APP = small_app(upload_bytes=50_000, queue_per_client=1000, queue=1000)
_SCHEMA = schemathesis.openapi.from_asgi("/api/openapi.json", _APP)
_IMAGE_ID = upload_id(TestClient(_APP))
_FAST_METHODS = ("rollout", "gradtoken", "random", "raw_attention:layer=-1", "rise:masks=2", "edges", "nonsense", "lrp")


@_SCHEMA.parametrize()
@settings(
    max_examples=8, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck),
)  # fmt: skip
def test_random_valid_requests_cause_no_server_error(case):
    if isinstance(case.body, dict) and "model" in case.body:
        # Existing ids, so that requests pass validation, and fast methods.
        case.body["model"] = "tiny"
        if "picture" in case.body and len(str(case.body["picture"])) % 3:
            case.body["picture"] = _IMAGE_ID
        if isinstance(case.body.get("methods"), list):
            case.body["methods"] = [_FAST_METHODS[len(str(m)) % len(_FAST_METHODS)] for m in case.body["methods"]]
    if isinstance(case.query, dict) and "model" in case.query:
        case.query["model"] = "tiny"
    case.call_and_validate(checks=[not_a_server_error, response_schema_conformance, content_type_conformance])
