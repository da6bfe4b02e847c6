// The server's own interface: what any other page could use. The key lives in this object and nowhere else.

export class ApiError extends Error {
  constructor(status, body) {
    const told = body && body.error;
    super(told ? told.message : `the server answered ${status}`);
    this.status = status;
    this.param = told ? told.param : null;
  }
}

export class Api {
  constructor(askKey) {
    this.key = "";
    this.askKey = askKey;
  }

  headers(more = {}) {
    return this.key ? { ...more, Authorization: `Bearer ${this.key}` } : more;
  }

  async call(path, body, signal) {
    const how = body === undefined
      ? { headers: this.headers(), signal }
      : { method: "POST", headers: this.headers({ "Content-Type": "application/json" }), body: JSON.stringify(body), signal };
    let found = await fetch(path, how);
    if (found.status === 401 && await this.askKey()) {
      how.headers = this.headers(body === undefined ? {} : { "Content-Type": "application/json" });
      found = await fetch(path, how);
    }
    if (!found.ok) throw new ApiError(found.status, await found.json().catch(() => null));
    return found;
  }

  async json(path, body, signal) {
    return (await this.call(path, body, signal)).json();
  }

  // The events of a streamed request, as they come.
  async *stream(path, body, signal) {
    const found = await this.call(path, { ...body, stream: true, stream_options: { include_usage: true } }, signal);
    const reader = found.body.pipeThrough(new TextDecoderStream()).getReader();
    let held = "";
    try {
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        held += value;
        const parts = held.split("\n\n");
        held = parts.pop();
        for (const part of parts) {
          const line = part.split("\n").find((one) => one.startsWith("data: "));
          if (line === undefined) continue;
          const data = line.slice(6);
          if (data === "[DONE]") return;
          const event = JSON.parse(data);
          if (event.error) throw new ApiError(200, event);
          yield event;
        }
      }
      throw new Error("the server closed the connection before the text had ended");
    } finally {
      reader.cancel().catch(() => {});
    }
  }
}
