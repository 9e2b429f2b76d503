"""Celery's settings of the test app; the tests set the rest by environment variables."""
import os

broker_url = os.environ.get("CHRONO_TEST_BROKER", "redis://127.0.0.1:1/1")
result_backend = broker_url
broker_connection_retry_on_startup = True
broker_connection_retry = True
worker_hijack_root_logger = False
worker_cancel_long_running_tasks_on_connection_loss = False
task_send_sent_event = True
result_expires = 600
accept_content = os.environ.get("CHRONO_TEST_ACCEPT_CONTENT", "json").split()
