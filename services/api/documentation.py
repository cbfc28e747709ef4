"""/docs: Swagger UI over /openapi.json, from files of the package fastapi-swagger: no browser needs the internet."""

from importlib import resources
from typing import Literal

from fastapi import APIRouter
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, Response

router = APIRouter(include_in_schema=False)

Asset = Literal["swagger-ui-bundle.js", "swagger-ui.css", "favicon-32x32.png"]
_MEDIA_TYPES: dict[Asset, str] = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon-32x32.png": "image/png",
}


@router.get("/docs")
def docs() -> HTMLResponse:
    return get_swagger_ui_html(
        openapi_url="openapi.json",
        title="Keyhole API",
        swagger_js_url="docs/swagger-ui-bundle.js",
        swagger_css_url="docs/swagger-ui.css",
        swagger_favicon_url="docs/favicon-32x32.png",
        swagger_ui_parameters={"validatorUrl": None, "docExpansion": "list"},
    )


@router.get("/docs/{name}")
def asset(name: Asset) -> Response:
    body = resources.files("fastapi_swagger.resources").joinpath(name).read_bytes()
    return Response(body, media_type=_MEDIA_TYPES[name], headers={"Cache-Control": "max-age=86400"})
