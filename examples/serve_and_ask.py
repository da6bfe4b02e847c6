"""Serve a model and query it with OpenAI's client. `spectr serve` starts the same server from a shell."""

import sys

from openai import OpenAI

import spectr
from spectr.serve.run import background
from spectr.serve.settings import ServerSettings

lm = spectr.load(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m")
with background(lm, ServerSettings(port=0)) as (address, _):
    client = OpenAI(base_url=f"{address}/v1", api_key="none")
    model = client.models.list().data[0].id
    answer = client.completions.create(model=model, prompt="Once upon a time", max_tokens=24, seed=1)
    print(answer.choices[0].text)
    print(answer.usage)
