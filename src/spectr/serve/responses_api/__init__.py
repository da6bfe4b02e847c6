"""`/v1/responses`, OpenAI's newer interface. A request is answered as one to `/v1/chat/completions`, and the chunks of
that answer are turned into events or into one response. Read in this order.

`fields`      the fields of request bodies
`conversion`  from a body to the body of a conversation
`objects`     the fields of responses and events
`assembly`    from the chunks of a conversation to events and a response
`answering`   runs a request through these

Nothing is stored: a response cannot be retrieved, and every request has its whole conversation.
"""

from spectr.serve.responses_api.answering import answer_response
from spectr.serve.responses_api.fields import ResponsesRequest
from spectr.serve.responses_api.objects import ResponseEvent, ResponseObject

__all__ = ["ResponseEvent", "ResponseObject", "ResponsesRequest", "answer_response"]
