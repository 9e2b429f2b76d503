"""A Celery app that knows nothing of chrono_beat; its workers write what they got into a Redis list."""
import json
import os

import redis
from celery import Celery

app = Celery("stock", broker=os.environ.get("STOCK_BROKER", "memory://"))
app.conf.update(broker_connection_retry_on_startup=True, task_ignore_result=True)


@app.task(bind=True, name="stock.mail")
def mail(self, *args, **kwargs):
    store = redis.Redis.from_url(os.environ["STOCK_JOURNAL"])
    headers = self.request.headers or {}
    store.rpush("journal", json.dumps({
        "id": self.request.id, "args": args, "kwargs": kwargs, "limits": self.request.timelimit,
        "message": self.request.get("chrono_message") or headers.get("chrono_message"),
        "mine": self.request.get("x-shop") or headers.get("x-shop"), "chrono": self.request.get("chrono"),
    }))
