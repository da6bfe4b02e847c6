"""A load generator in a separate process: `python benchmarks/serving/client.py URL COUNT [SECONDS] < requests.json`.

It keeps COUNT requests in flight, in the given order, and starts no new ones after SECONDS. It prints JSON: for each
request its tokens, when it was sent, when its first and last token arrived, and the error if it failed.
"""

import asyncio
import json
import sys
import time
from typing import Any

Found = dict[str, Any]


async def _ask(host: str, port: int, body: Found) -> Found:
    """Send one streamed request on its own connection."""
    data = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
    lines = ["POST /v1/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json", "Connection: close"]
    sent, first, last, tokens, events = time.perf_counter(), None, None, 0, 0
    try:
        reader, writer = await asyncio.open_connection(host, port, limit=1 << 24)
        writer.write("\r\n".join([*lines, f"Content-Length: {len(data)}", "", ""]).encode() + data)
        status = await reader.readline()
        if b" 200 " not in status:
            return {"error": (status + await reader.read()).decode(errors="replace")[:500], "sent": sent}
        while line := await reader.readline():
            if line.startswith(b"data: {"):
                events += 1
                if b'"usage": {' in line:  # cannot be part of a text, whose quotes are escaped
                    tokens = json.loads(line[6:])["usage"]["completion_tokens"]
                elif line.startswith(b'data: {"error"'):  # only at the start, since a text may contain it
                    return {"error": line.decode(errors="replace")[:500], "sent": sent}
                else:
                    last = time.perf_counter()
                    first = first or last
        writer.close()
    except OSError as error:
        return {"error": repr(error), "sent": sent}
    if not tokens:
        return {"error": "the stream ended early", "sent": sent}
    return {"sent": sent, "first": first, "last": last, "tokens": tokens, "events": events}


async def _run(url: str, count: int, bodies: list[Found], seconds: float | None) -> list[Found]:
    host, port = url.removeprefix("http://").split(":")
    found, waiting, start = list[Found](), iter(bodies), time.perf_counter()

    async def work() -> None:
        for body in waiting:
            if seconds is not None and time.perf_counter() - start > seconds:
                return
            found.append(await _ask(host, int(port), body))

    await asyncio.gather(*(work() for _ in range(count)))
    return found


if __name__ == "__main__":
    _, address, number, *more = sys.argv
    print(json.dumps(asyncio.run(_run(address, int(number), json.load(sys.stdin), float(more[0]) if more else None))))
