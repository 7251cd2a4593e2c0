// What an answer cost and how it came about, from the server's own numbers where it gave them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** Counts of an answer while it comes. */
export class Receipt {
  constructor(now = performance.now()) {
    this.began = now;
    this.firstAt = null;
    this.lastAt = now;
    this.pieces = 0;
    this.usage = null;
    this.timings = null;
    this.finish = null;
  }

  /** Takes note of a chunk of the stream; `said` is whether it carried text. */
  note(chunk, said, now = performance.now()) {
    if (said) {
      this.firstAt ??= now;
      this.lastAt = now;
      this.pieces += 1;
    }
    this.usage = chunk.usage ?? this.usage;
    this.timings = chunk.timings ?? this.timings;
    this.finish = chunk.choices?.[0]?.finish_reason ?? this.finish;
  }

  /** The receipt as a list of { label, value, title }. Before the server's numbers arrive, rates are counted here and marked with ~. */
  lines() {
    const lines = [];
    const add = (label, value, title = "") => lines.push({ label, value, title });
    const tokens = this.usage?.completion_tokens;
    if (tokens !== undefined) add("answer", `${whole.format(tokens)} tokens`);
    const rate = this.rate();
    if (rate) add("speed", rate);
    if (this.firstAt !== null) add("first token", duration(this.firstAt - this.began), "from sending to the first text");
    this.addDrafts(add);
    this.addCached(add);
    const thought = this.usage?.completion_tokens_details?.reasoning_tokens;
    if (thought) add("thinking", `${whole.format(thought)} tokens`);
    if (this.finish === "length") add("ended", "length limit", "the longest answer, or the end of the context");
    return lines;
  }

  rate() {
    const measured = this.timings?.predicted_per_second;
    if (Number.isFinite(measured) && measured > 0) return `${format(measured)} tok/s`;
    const seconds = (this.lastAt - (this.firstAt ?? this.lastAt)) / 1000;
    return this.pieces > 1 && seconds > 0 ? `~${format((this.pieces - 1) / seconds)} tok/s` : null;
  }

  addDrafts(add) {
    const { drafted, accepted, accepted_at: at } = this.timings?.speculation ?? {};
    if (!(drafted > 0)) return;
    const places = Array.isArray(at) && at.length > 0 ? `; by place: ${at.join(", ")}` : "";
    add("drafts accepted", `${Math.round((100 * accepted) / drafted)} %`, `${accepted} of ${drafted} drafts${places}`);
  }

  addCached(add) {
    const cached = this.usage?.prompt_tokens_details?.cached_tokens;
    const prompt = this.usage?.prompt_tokens;
    if (cached === undefined || prompt === undefined) return;
    const reason = this.timings?.cache?.reason ?? this.timings?.cache?.miss?.reason;
    add("cached", `${whole.format(cached)} of ${whole.format(prompt)}`, typeof reason === "string" ? `prompt tokens; ${reason}` : "prompt tokens");
  }
}

function format(value) {
  return value >= 100 ? whole.format(value) : value.toFixed(1);
}

function duration(ms) {
  return ms < 1000 ? `${whole.format(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}
