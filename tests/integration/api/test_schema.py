"""The API against its own OpenAPI schema, with requests that schemathesis makes up: valid ones and broken ones."""

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from services.contracts.jobs import Problem
from services.contracts.states import Scope

EXAMPLES = 8  # per operation and mode: bounded, since each goes through a served API and a real database
CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance]


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_no_made_up_request_meets_a_defect_and_every_refusal_is_a_problem(api, mode):
    schema = schemathesis.openapi.from_url(f"{api.url}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) > 15
    for operation in operations:
        if mode is GenerationMode.NEGATIVE and not (operation.body or any(operation.iter_parameters())):
            continue  # nothing to break
        bounded = settings(
            max_examples=EXAMPLES,
            database=None,
            deadline=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        bounded(given(case=operation.as_strategy(mode))(_expectation(api)))()


def _expectation(api):
    def holds(case) -> None:
        response = case.call(headers={"Authorization": f"Bearer {api.tokens[Scope.ADMIN]}"}, timeout=20)
        case.validate_response(response, checks=CHECKS)
        if response.status_code >= 400 and not case.path.startswith("/v1/health"):
            assert response.headers["content-type"][0] == "application/problem+json"
            Problem.model_validate(response.json())

    return holds
