"""Settings of the example project with receivers of alerts, which the test has made and names in the environment."""
import json
import os

from example.settings import *  # noqa: F403
from example.settings import CHRONO_BEAT as _EXAMPLE

_GIVEN = json.loads(os.environ["ALERTS_TEST"])

EMAIL_HOST, EMAIL_PORT = "127.0.0.1", _GIVEN["smtp"]
CHRONO_BEAT = {
    **_EXAMPLE, "HTTP_ALLOWED_ADDRESSES": ["127.0.0.0/8"], "ALERT_EMAILS": _GIVEN["emails"], "ALERT_URL": _GIVEN["url"],
    "ALERT_SECRETS": [_GIVEN["secret"]],
}
