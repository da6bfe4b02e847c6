"""`spectr serve`: the engine behind the HTTP interface that OpenAI's clients speak. Read in this order.

`settings`   what an operator chooses: addresses, keys, limits
`protocol`   what a client may send, field by field; `problems` is what it is told when something is wrong
`gate`       who may come in: keys, hosts, body sizes, request ids
`admission`  who comes next: queue, fair shares, rates
`service`    the model, and the variants of it that requests ask for
`asking`     from a body to requests of the engine
`replies`    from texts to bodies; `events` sends them as they come; `receipt` says how to get them again
`resuming`   streams that break off and go on
`trace`      what a step did, for those who want to see it; `pages` and `playground/` show it in a browser
`observe`    counters for Prometheus
`desk`       where requests for text are taken, run and answered
`app`        the endpoints
`workers`    threads for what would hold up the event loop; `wire` bounds what a connection can hold
`run`        start, signals, drain, end
"""

from spectr.serve.settings import Limits, ServerSettings

__all__ = ["Limits", "ServerSettings"]
