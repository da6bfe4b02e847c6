"""`spectr serve`: the engine behind the HTTP interface that OpenAI's clients speak. Read in this order.

`settings`   what an operator chooses: addresses, keys, limits
`protocol`   the fields of request bodies, and `chat_fields` those of conversations; `fields` refuses others, and
             `errors` has the errors that clients get
`responses`  the fields of responses; `text_responses` has those of texts, and `reports` those that are ours
`gate`       middleware: keys, hosts, body sizes, request ids
`admission`  the queue: fair shares of keys, rates
`service`    the model, and variants of it that requests name; `grammars` compiles their schemas and grammars
`messages`   conversations for chat templates; `tools` has the functions that the model may call
`parsing`    from a body to requests of the engine
`replies`    from generated texts to bodies; `events` sends them, `json_text` writes them
`receipt`    what is needed to generate a text again
`resuming`   event ids, and streams that continue after a lost connection
`pages`      the playground, whose files are in `playground/`
`metrics`    counters for Prometheus
`handler`    runs requests for text, from admission to their answers
`responses_api` OpenAI's newer interface, over conversations; a folder
`app`        the endpoints; `openapi` describes them
`workers`    threads for work that would block the event loop; `wire` bounds what a connection can hold
`run`        start, signals, drain, end
"""

from spectr.serve.settings import Limits, ServerSettings

__all__ = ["Limits", "ServerSettings"]
