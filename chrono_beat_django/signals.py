"""Django signals for programs that want to hear of alerts.

``alert_raised`` is sent when an alert is told, with ``alert`` (:class:`chrono_beat.core.alerts.OpenAlert`), in the process
that tells it, and in a thread of its own. A receiver that raises is called again later, and so are the others.
``alert_closed`` is sent with ``alert`` (:class:`chrono_beat_django.models.Alert`), once, by whoever closed it.
"""
from django.dispatch import Signal

alert_raised = Signal()
alert_closed = Signal()
"""What receivers of it raise is logged and let go."""
