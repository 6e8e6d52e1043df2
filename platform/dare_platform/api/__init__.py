"""The HTTP API: every route is one method of `service.Service`, in the name of whoever asks.

It is mounted at /api, into the site's server or into one of its own (`dare api`).
"""

from __future__ import annotations

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Mount

from dare_platform.api import answers, changing, looking, submitting
from dare_platform.api.bodies import LimitedBodies
from dare_platform.api.who import Door
from dare_platform.host import software_version

__all__ = ["PREFIX", "Door", "alone", "mounted"]

PREFIX = "/api"
DESCRIPTION = """Submit algorithms, follow their runs, read boards.

Give a token as `Authorization: Bearer dare_…`; make one with `dare tokens new` or on the account page. Without one you
see what is public. Where only your own machine reaches the server and nobody signs in, you are the local account.

What goes wrong is `application/problem+json` with a stable `code` and one sentence in `detail`. A POST that queues
something wants an `Idempotency-Key` of your choice: sent twice with the same key, it is done once.
"""
TAGS = [
    {"name": "entries", "description": "What people have submitted."},
    {"name": "runs", "description": "Checks, trainings and evaluations of entries, and what they print."},
    {"name": "boards", "description": "Entries compared."},
    {"name": "account", "description": "Who you are here, and what you are told of."},
    {"name": "service", "description": "Whether it answers."},
]


def mounted(door: Door) -> Mount:
    """The API below /api, for a server of something else too."""
    return Mount(PREFIX, app=_application(door))


def alone(door: Door) -> Starlette:
    """A server of the API only."""
    return Starlette(routes=[mounted(door)], exception_handlers={HTTPException: answers.no_answer})


def _application(door: Door) -> FastAPI:
    app = FastAPI(
        title="DARE", version=software_version(), description=DESCRIPTION, openapi_tags=TAGS,
        openapi_url="/v1/openapi.json", docs_url=None, redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
    )  # fmt: skip
    app.state.door = door
    for routes in (looking.routes, submitting.routes, changing.routes):
        app.include_router(routes, prefix="/v1", responses=answers.FOR_ALL)
    answers.say_problems(app)
    app.add_middleware(answers.Marked)
    app.add_middleware(LimitedBodies)
    return app
