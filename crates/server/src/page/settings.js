// What the reader chose, kept in this browser, and what it means in a request.

const KEPT_AS = "forerun.settings";

export const DEFAULTS = Object.freeze({
  system: "", temperature: "", top_p: "", top_k: "", min_p: "", repetition_penalty: "", presence_penalty: "", frequency_penalty: "",
  max_tokens: "", seed: "", stop: "", thinking: "", thinking_budget: "", speculation: "", theme: "", api_key: "", tools: "", model: "",
});

export function load() {
  const settings = { ...DEFAULTS };
  try {
    const kept = JSON.parse(localStorage.getItem(KEPT_AS) ?? "{}");
    for (const name of Object.keys(DEFAULTS)) {
      if (typeof kept?.[name] === "string") settings[name] = kept[name];
    }
  } catch {
    // What another version kept and this one cannot read is as good as nothing kept.
  }
  return settings;
}

export function save(settings) {
  try {
    localStorage.setItem(KEPT_AS, JSON.stringify(settings));
  } catch {
    // Private windows may refuse to keep anything; the settings then last as long as the page.
  }
}

const NUMBERS = [
  "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "max_tokens", "seed", "thinking_budget",
];

/** The fields of a chat request. Empty settings send nothing, so the model's own defaults hold. */
export function requestFields(settings) {
  const fields = {};
  for (const name of NUMBERS) {
    if (settings[name] !== "" && Number.isFinite(Number(settings[name]))) fields[name] = Number(settings[name]);
  }
  const stop = settings.stop.split("\n").filter((line) => line !== "");
  if (stop.length > 0) fields.stop = stop;
  if (settings.thinking !== "") fields.enable_thinking = settings.thinking === "on";
  if (settings.speculation !== "") {
    const drafts = Number(settings.speculation);
    fields.speculation = Number.isInteger(drafts) ? drafts : settings.speculation;
  }
  const tools = parseTools(settings.tools);
  if (tools.length > 0) fields.tools = tools;
  return fields;
}

/** The list of tools written in the settings; throws what is wrong with it. */
export function parseTools(text) {
  if (text.trim() === "") return [];
  let tools;
  try {
    tools = JSON.parse(text);
  } catch (error) {
    throw new Error(`The tools are not JSON: ${error.message}`);
  }
  if (!Array.isArray(tools)) throw new Error("The tools must be a JSON list.");
  return tools;
}
