// The conversation: what was said, how it grows by a stream, how it is sent, how it is kept in this browser.

const KEPT_AS = "forerun.chat";

export class Conversation {
  constructor(messages = []) {
    this.messages = messages;
  }

  static kept() {
    try {
      const messages = JSON.parse(localStorage.getItem(KEPT_AS) ?? "[]");
      const sound = Array.isArray(messages) && messages.every((message) => typeof message?.role === "string" && typeof message.content === "string");
      return new Conversation(sound ? messages : []);
    } catch {
      return new Conversation();
    }
  }

  keep() {
    try {
      localStorage.setItem(KEPT_AS, JSON.stringify(this.messages));
    } catch {
      // Full or refused: the conversation then lasts as long as the page.
    }
  }

  add(message) {
    this.messages.push(message);
    this.keep();
    return message;
  }

  addUser(content) {
    return this.add({ role: "user", content });
  }

  addToolResult(id, content) {
    return this.add({ role: "tool", content, id });
  }

  /** An answer to fill; it is kept when it is complete, so a page closed meanwhile shows no half answer as whole. */
  addAnswer() {
    const message = { role: "assistant", content: "", reasoning: "", calls: [] };
    this.messages.push(message);
    return message;
  }

  dropAnswer() {
    if (this.messages.at(-1)?.role === "assistant") this.messages.pop();
    this.keep();
  }

  cut(length) {
    this.messages.length = Math.min(this.messages.length, length);
    this.keep();
  }

  clear() {
    this.cut(0);
  }

  lastUser() {
    return this.messages.findLastIndex(({ role }) => role === "user");
  }

  /** Adds what a chunk brought to an answer; whether that was any text. */
  take(message, delta) {
    const reasoning = delta.reasoning_content ?? delta.reasoning ?? "";
    message.reasoning += reasoning;
    message.content += delta.content ?? "";
    for (const part of delta.tool_calls ?? []) {
      const call = (message.calls[part.index] ??= { id: "", name: "", arguments: "" });
      call.id = part.id ?? call.id;
      call.name += part.function?.name ?? "";
      call.arguments += part.function?.arguments ?? "";
    }
    return Boolean(reasoning || delta.content || delta.tool_calls?.length);
  }

  /** The messages of a request. An answer that is still empty is the one being asked for. */
  wire(system) {
    const said = this.messages.filter(({ role, content, calls }) => role !== "assistant" || content !== "" || calls?.length > 0).map(wireMessage);
    return system.trim() === "" ? said : [{ role: "system", content: system }, ...said];
  }
}

function wireMessage({ role, content, reasoning, calls, id }) {
  if (role === "tool") return { role, content, tool_call_id: id };
  if (role !== "assistant") return { role, content };
  const message = { role, content };
  if (reasoning) message.reasoning_content = reasoning;
  if (calls?.length > 0) {
    message.tool_calls = calls.map((call) => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }));
  }
  return message;
}
