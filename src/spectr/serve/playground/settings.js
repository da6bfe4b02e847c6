// The settings of a request, read from the form; an empty field is left to the server.

const whole = (text) => (/^-?\d+$/.test(text.trim()) ? Number(text.trim()) : undefined);

export function fillRules(select, rules) {
  select.replaceChildren(...rules.map(({ name, summary }) => {
    const option = document.createElement("option");
    option.value = name;
    option.textContent = summary ? `${name}: ${summary}` : name;
    return option;
  }));
}

export function readSettings(at) {
  const body = { temperature: Number(at("temperature").value), top_p: Number(at("top_p").value) };
  const seed = whole(at("seed").value), most = whole(at("max_tokens").value), nodes = whole(at("nodes").value);
  if (seed !== undefined) body.seed = seed;
  if (most !== undefined) body.max_tokens = most;
  const spectr = { trace: true };
  if (at("rule").value && at("rule").value !== "race") spectr.rule = at("rule").value;
  if (at("drafter").value) spectr.drafter = at("drafter").value;
  if (nodes !== undefined) spectr.nodes = nodes;
  const schema = at("schema").value.trim();
  if (schema) {
    let parsed;
    try { parsed = JSON.parse(schema); } catch (error) { throw new Error(`The JSON schema is not valid JSON: ${error.message}`); }
    body.response_format = { type: "json_schema", json_schema: { name: "answer", schema: parsed } };
  }
  return { ...body, spectr };
}
