"""A small Celery app whose workers the tests start; ``wiring.py`` is its composition root."""
import json
import os
import signal
import time

import redis
from celery import Celery
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from chrono_beat.celery import ChronoBeat
from chrono_beat.celery.context import current

app = Celery("proj")
ChronoBeat(app, wiring="tests.celery.proj.wiring")
app.config_from_object("tests.celery.proj.celeryconfig")

# A body's own connection may be among those that a test kills: what it notes is not what is tested.
STORE = redis.Redis.from_url(
    os.environ.get("CHRONO_TEST_URL", "redis://127.0.0.1:1/0"), decode_responses=True,
    retry=Retry(ConstantBackoff(0.1), 20), retry_on_error=[redis.ConnectionError, redis.TimeoutError])
JOURNAL = os.environ.get("CHRONO_TEST_PREFIX", "test") + "-journal"


def note(event, **facts):
    """Write what a body did where the test reads it."""
    STORE.rpush(JOURNAL, json.dumps({"event": event, "pid": os.getpid(), **facts}))


@app.task
def add(x, y):
    note("add", x=x)
    return x + y


@app.task
def fail(message):
    raise ValueError(message)


@app.task(bind=True)
def show(self, **kwargs):
    mine = current()
    note("show", job=mine.job_id, name=mine.job_name, tenant=mine.tenant, scheduled=mine.scheduled_at.isoformat(),
         due=mine.due_at.isoformat(), attempt=mine.attempt, eid=mine.execution_id, key=mine.idempotency_key,
         token=mine.token, held=mine.still_held(), cancelled=mine.cancelled, id=self.request.id,
         retries=self.request.retries, header=self.request.chrono["eid"],
         routed=self.request.delivery_info["routing_key"])


@app.task
def show_unbound():
    show_nested()


@app.task
def show_nested():
    note("nested", eid=current().execution_id if current() else None)


@app.task(bind=True, max_retries=3)
def again(self, x=0, *, countdown=7):
    note("again", x=x, retries=self.request.retries)
    raise self.retry(countdown=countdown, args=(x + 1,), kwargs={"countdown": countdown}, exc=KeyError("once more"))


@app.task(bind=True, max_retries=5)
def third_time_lucky(self, way):
    """Fail twice: by asking for a retry, by an exception that asks by itself, or plainly."""
    note("try", way=way, retries=self.request.retries, attempt=current().attempt, key=current().idempotency_key)
    if self.request.retries < 2:
        if way == "own":
            raise self.retry(countdown=0)
        raise ValueError("not yet")


@app.task(autoretry_for=(OSError,), max_retries=5, retry_backoff=3, retry_jitter=False)
def auto():
    raise OSError("not now")


@app.task(bind=True, max_retries=5)
def retry_and_die(self):
    if self.request.retries == 0:
        self.retry(countdown=1, throw=False)
        os.kill(os.getpid(), 9)


@app.task
def slow(name, seconds, step=0.05):
    note("begin", name=name)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(step)
    note("end", name=name, held=current().still_held() if current() else None)


@app.task(acks_late=True, name="slow_late")
def slow_late(name, seconds):
    slow(name, seconds)


@app.task
def block(name, seconds):
    """Hold the thread without letting any other greenlet run."""
    note("begin", name=name)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(1000))
    note("end", name=name)


@app.task
def meet(name, count, seconds):
    """End when so many have begun, however long the machine takes to bring them all up; fail after *seconds*."""
    note("begin", name=name)
    until = time.monotonic() + seconds
    while sum(json.loads(text).get("name") == name for text in STORE.lrange(JOURNAL, 0, -1)) < count:
        if time.monotonic() > until:
            raise TimeoutError(f"{count} of {name} were never there together")
        time.sleep(0.05)


@app.task(time_limit=1)
def too_long(seconds):
    note("begin", name="too_long")
    time.sleep(seconds)
    note("end", name="too_long")


@app.task
def defiant(seconds):
    """Do not end when told to."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note("begin", name="defiant")
    time.sleep(seconds)


@app.task(soft_time_limit=0.5)
def too_long_softly(seconds):
    time.sleep(seconds)


@app.task
def die_once(name):
    note("begin", name=name)
    if STORE.incr(f"{JOURNAL}-{name}") == 1:
        os.kill(os.getpid(), 9)
    note("end", name=name)


@app.task
def leave():
    raise SystemExit(3)


@app.task(rate_limit="5/s")
def limited(n):
    note("limited", n=n)


@app.task(rate_limit="1/s")
def limited_slowly(n):
    note("begin", name="limited", n=n, token=current().token)


@app.task
def ignore():
    raise Ignore()


@app.task
def reject():
    raise Reject("no good", requeue=False)


@app.task(bind=True)
def parent(self):
    """Send children, one with all headers of its parent."""
    plain.delay("child")
    plain.apply_async(("copied",), headers=dict(self.request.headers))


@app.task(bind=True)
def tell(self, *args, **kwargs):
    """Note what a plain task knows of itself."""
    mine, request = current(), self.request
    note("tell", args=args, kwargs=kwargs, id=request.id, root=request.root_id, parent=request.parent_id,
         retries=request.retries, eta=request.eta, priority=request.delivery_info["priority"],
         tenant=mine and mine.tenant, attempt=mine and mine.attempt, eid=mine and mine.execution_id,
         job=mine and mine.job_id, scheduled=mine and mine.scheduled_at and str(mine.scheduled_at),
         key=mine and mine.idempotency_key,
         held=mine and mine.still_held(), cancelled=mine and mine.cancelled, custom=(request.headers or {}).get("custom"))
    return args[0] if args else None


@app.task
def total(numbers):
    note("total", tenant=current().tenant)
    return sum(numbers)


@app.task(bind=True)
def send_children(self):
    tell.apply_async(("inherits",), queue="chrono")
    tell.apply_async(("another's",), queue="chrono.gold", headers={"chrono_tenant": "other"})
    tell.apply_async(("stock",), queue="celery")


@app.task(bind=True, max_retries=3)
def again_and_again(self, times, countdown):
    note("try", retries=self.request.retries, id=self.request.id, eid=current().execution_id, token=current().token)
    if self.request.retries < times:
        raise self.retry(countdown=countdown)
    return self.request.retries


@app.task(bind=True, autoretry_for=(ValueError,), max_retries=1, retry_backoff=False, default_retry_delay=0)
def never_good(self):
    note("never_good", retries=self.request.retries)
    raise ValueError("not good")


@app.task
def die(name):
    note("begin", name=name)
    os.kill(os.getpid(), 9)


@app.task
def reject_to_others(name):
    note("begin", name=name)
    raise Reject("not here", requeue=True)


@app.task
def failed(*args):
    note("errback", tenant=current() and current().tenant)


@app.task(bind=True)
def replaced_in_pool(self):
    raise self.replace(tell.s("substitute").set(queue="chrono"))


@app.task(bind=True)
def replaced(self):
    raise self.replace(plain.s("substitute"))


@app.task(bind=True)
def plain(self, name):
    header = (self.request.headers or {}).get("chrono")
    note("plain", name=name, header=header, current=current() is not None)


@app.task
def attentive(name, seconds):
    """Look whether to go on."""
    note("begin", name=name)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if current().cancelled:
            note("noticed", name=name, held=current().still_held())
            return
        time.sleep(0.02)
    note("end", name=name)


@app.task
def deaf_to_soft_limits(name, seconds):
    note("begin", name=name)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            time.sleep(0.1)
        except SoftTimeLimitExceeded:
            note("swallowed", name=name)


@app.task
def in_c(name, call_seconds, least_seconds):
    """Keep the interpreter's lock, in calls of so many seconds: sum() over a range never lets go of it."""
    begin = time.monotonic()
    sum(range(2_000_000))
    numbers = round(2_000_000 * call_seconds / (time.monotonic() - begin))
    note("begin", name=name)
    begin = time.monotonic()
    while time.monotonic() - begin < least_seconds:
        sum(range(numbers))
    note("end", name=name, took=time.monotonic() - begin)


if os.environ.get("CHRONO_TEST_RELEASE") == "new":
    @app.task
    def brand_new(name):
        note("new", name=name)
