"""The worker's side: a consumer bootstep that draws, delivers, renews and settles.

    step.py       where Celery starts, stops and shuts down
    io.py         the thread that speaks to Redis, and the one that waits for work
    renewer.py    the thread that renews leases, which no task body can hold up
    deliver.py    hands deliveries to the pool the way Celery does it with a broker's messages
    message.py    a broker's message in appearance
    request.py    Celery's Request with a lease
    held.py       a delivery in this worker's hands, from draw to settle
    endings.py    how a run ended, in the words of a settlement
    pools.py      what differs between prefork, threads, gevent and solo
"""
