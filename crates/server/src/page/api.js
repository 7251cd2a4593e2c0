// The server as the page sees it: requests, streams of events, and errors a person can read.

/** What went wrong, in words for the reader; `kind` tells the page what to offer. */
export class ApiError extends Error {
  constructor(kind, message, retryAfter = null) {
    super(message);
    this.kind = kind;
    this.retryAfter = retryAfter;
  }
}

function headers(key) {
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

async function call(path, options) {
  try {
    return await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("unreachable", "The server cannot be reached. It may be starting, or it may have stopped.");
  }
}

async function failure(response) {
  const text = await response.text().catch(() => "");
  let said = "";
  try {
    said = JSON.parse(text).error?.message ?? "";
  } catch {
    said = text.slice(0, 300);
  }
  const wait = Number.parseInt(response.headers.get("Retry-After") ?? "", 10);
  const retryAfter = Number.isFinite(wait) ? wait : null;
  if (response.status === 401 || response.status === 403) return new ApiError("key", said || "The key was not accepted.");
  if (response.status === 429 || response.status === 503) {
    const when = retryAfter === null ? "in a moment" : `in ${retryAfter} s`;
    return new ApiError("busy", `The server is busy. Try again ${when}.`, retryAfter);
  }
  if (response.status >= 500) return new ApiError("server", said || `The server had a problem (${response.status}).`);
  return new ApiError("request", said || `The server refused the request (${response.status}).`);
}

/** The models the server offers. */
export async function models(key) {
  const response = await call("v1/models", { headers: headers(key) });
  if (!response.ok) throw await failure(response);
  return (await response.json()).data ?? [];
}

/** "ready", "waiting" (up, but cannot answer now) or "down". */
export async function health() {
  try {
    const response = await fetch("health/ready", { cache: "no-store" });
    return response.ok ? "ready" : "waiting";
  } catch {
    return "down";
  }
}

/** Sends a chat request and yields the chunks of the answer as they come. */
export async function* chat(body, key, signal) {
  const response = await call("v1/chat/completions", { method: "POST", headers: headers(key), body: JSON.stringify(body), signal });
  if (!response.ok) throw await failure(response);
  let finished = false;
  for await (const data of serverEvents(pieces(response.body))) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError("server", chunk.error.message ?? "The answer broke off.");
    finished ||= Boolean(chunk.choices?.[0]?.finish_reason);
    yield chunk;
  }
  if (!finished) throw new ApiError("server", "The answer broke off before its end.");
}

async function* pieces(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("unreachable", "The connection was lost before the answer's end.");
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** The data of each server-sent event in pieces of text cut anywhere. Comments and other fields are skipped. */
export async function* serverEvents(source) {
  let rest = "";
  let data = [];
  for await (const piece of source) {
    const lines = (rest + piece).split("\n");
    rest = lines.pop();
    for (const raw of lines) {
      const line = raw.endsWith("\r") ? raw.slice(0, -1) : raw;
      if (line === "") {
        if (data.length > 0) yield data.join("\n");
        data = [];
      } else if (line.startsWith("data:")) {
        data.push(line.slice(line[5] === " " ? 6 : 5));
      }
    }
  }
}
