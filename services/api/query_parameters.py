"""Query parameters that a route does not know are refused: a misspelt filter would list everything."""

from typing import Annotated

from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from services.api.auth import Caller, caller


def refuse_unknown(request: Request, _: Annotated[Caller, Depends(caller)]) -> None:
    """Raise RequestValidationError that names the unknown ones; whoever has no token is told only that."""
    route = request.scope.get("route")
    assert isinstance(route, APIRoute)  # this is a dependency of such routes
    known = _known(route.dependant)
    unknown = [name for name in dict.fromkeys(request.query_params.keys()) if name not in known]
    if unknown:
        raise RequestValidationError(
            [
                {
                    "type": "extra_forbidden",
                    "loc": ("query", name),
                    "msg": "unknown",
                    "ctx": {"known": known, "hint": "" if known else "This route takes no query parameters."},
                }
                for name in unknown
            ]
        )


def _known(dependant: Dependant) -> list[str]:
    """The route's own parameters and those of what it depends on."""
    names = [field.alias for field in dependant.query_params]
    return names + [name for each in dependant.dependencies for name in _known(each)]
