// The page: a chat, the list of chats, settings, and what the server says of itself.

import * as api from "./api.js";
import { Chat } from "./chat.js";
import * as chats from "./chats.js";
import { Composer } from "./composer.js";
import { el } from "./render.js";
import { bindSettings } from "./settings_dialog.js";
import * as store from "./settings.js";
import { Sidebar } from "./sidebar.js";
import { Talk } from "./talk.js";

const $ = (id) => document.getElementById(id);
const HEALTH_EVERY_MS = 15_000;
const HEALTH_SAYS = { ready: "ready", waiting: "not ready yet", down: "not reachable", unknown: "asking" };

const settings = store.load();
chats.takeOver();

const talk = new Talk(chats.opened(), settings, {
  kept: () => sidebar.show(),
  edit: (message) => composer.edit(message),
  askKey,
});
const composer = new Composer({
  send: (text, files, editing) => talk.ask(text, files, editing),
  stop: () => talk.stop(),
});
const sidebar = new Sidebar({
  current: () => talk.chat,
  open,
  renamed: (id, title) => {
    const chat = talk.chat.id === id ? talk.chat : chats.load(id);
    Object.assign(chat, { title, named: true });
    if (chat === talk.chat) talk.keep();
    else chats.keep(chat);
  },
  removed: (id) => { if (talk.chat.id === id) open(new Chat()); },
});

function open(chat) {
  composer.clear();
  talk.open(chat);
  sidebar.show();
  composer.focus();
}

$("new").addEventListener("click", () => {
  sidebar.toggle(false);
  open(new Chat());
});
$("ideas").addEventListener("click", (event) => {
  if (event.target.closest("button")) talk.ask(event.target.textContent, [], null);
});

// ---- the server: its models, its health, its key

function askKey(refused, then) {
  const dialog = $("key");
  const field = dialog.querySelector("input");
  $("key-note").textContent = refused
    ? "The key was not accepted. Please check it."
    : "Whoever runs it can give you one. It is kept in this browser.";
  dialog.returnValue = "";
  dialog.onclose = () => {
    if (dialog.returnValue !== "save") return;
    settings.api_key = field.value.trim();
    store.save(settings);
    showModels();
    then();
  };
  if (!dialog.open) dialog.showModal();
}
$("key-later").addEventListener("click", () => $("key").close());

async function showModels() {
  let known = [];
  try {
    known = await api.models(settings.api_key);
  } catch (error) {
    if (error.kind === "key") askKey(settings.api_key !== "", () => {});
  }
  const names = known.map(({ id }) => id);
  if (!names.includes(settings.model)) settings.model = names[0] ?? "";
  $("model").replaceChildren(...names.map((name) => el("option", { value: name, selected: name === settings.model }, name)));
  if (names.length === 0) $("model").append(el("option", {}, "no model"));
  $("model").disabled = names.length < 2;
  document.title = settings.model ? `${settings.model} · forerun` : "forerun";
}

$("model").addEventListener("change", () => {
  settings.model = $("model").value;
  store.save(settings);
});

let healthWas = "unknown";
async function showHealth() {
  if (document.hidden) return;
  const state = await api.health();
  $("health").dataset.state = state;
  $("health").setAttribute("aria-label", `Server: ${HEALTH_SAYS[state]}`);
  $("health").title = `The server is ${HEALTH_SAYS[state]}`;
  // A server that came back may run another model.
  if (state === "ready" && healthWas === "down") showModels();
  healthWas = state;
}

function showTheme() {
  if (settings.theme === "") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = settings.theme;
}

bindSettings(settings, {
  changed: showTheme,
  closed: ({ keyChanged }) => { if (keyChanged) showModels(); },
});
showTheme();
showModels();
showHealth();
setInterval(showHealth, HEALTH_EVERY_MS);
document.addEventListener("visibilitychange", showHealth);
composer.focus();
