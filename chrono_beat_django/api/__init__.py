"""The HTTP API, under ``api/v1``: a program of a tenant sees and touches that tenant's rows and nothing else."""
from chrono_beat_django.api import executions, jobs, problems
from chrono_beat_django.api.openapi import Api
from chrono_beat_django.api.schemas import Bodies

api = Api(
    parser=Bodies(), title="chrono_beat", version="1", urls_namespace="chrono_beat_api",
    description="Jobs, executions and dead letters of the tenant whose key is sent: Authorization: Bearer chrono_…",
)
api.add_router("/jobs", jobs.router)
api.add_router("", executions.router)
problems.install(api)
