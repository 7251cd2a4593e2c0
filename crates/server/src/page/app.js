// The page: a conversation, the field to go on with it, settings, and what the server says of itself.

import * as api from "./api.js";
import { Conversation } from "./conversation.js";
import { Receipt } from "./receipt.js";
import { copyText, el, MessageView } from "./render.js";
import { bindSettings } from "./settings_dialog.js";
import * as store from "./settings.js";

const $ = (id) => document.getElementById(id);
const HEALTH_EVERY_MS = 15_000;
const HEALTH_SAYS = { ready: "ready", waiting: "not ready yet", down: "not reachable", unknown: "asking" };

const settings = store.load();
const talk = Conversation.kept();
const views = [];
/** The answer being made, if any: aborting it is what "stop" means. */
let running = null;
let editing = null;

// ---- showing

function button(label, act, title = "") {
  const made = el("button", { type: "button", title }, label);
  made.addEventListener("click", () => act(made));
  return made;
}

function showAll() {
  views.length = 0;
  $("log").replaceChildren();
  talk.messages.forEach(addView);
  offerActions();
  $("welcome").hidden = talk.messages.length > 0;
  follow(true);
}

function addView(message) {
  const view = new MessageView(message);
  view.update();
  if (message.receipt) view.showReceipt(message.receipt);
  if (message.stopped) view.showNotice("Stopped.");
  views.push(view);
  $("log").append(view.element);
  return view;
}

/** Buttons under messages: each can be copied, only the last exchange can be changed. */
function offerActions() {
  const busy = running !== null;
  views.forEach((view, index) => {
    const { role, content } = view.message;
    const buttons = [];
    if (content !== "" && role !== "tool") buttons.push(button("Copy", (self) => copyText(content, self), "Copy this message"));
    if (!busy && role === "user" && index === talk.lastUser()) buttons.push(button("Edit", () => edit(index), "Change this message and ask again"));
    const last = index === talk.messages.length - 1;
    if (!busy && last && role === "assistant") {
      if (view.message.calls?.length > 0) buttons.push(...resultFields(view.message.calls));
      buttons.push(button("Regenerate", regenerate, "Ask for another answer"));
    }
    view.showActions(...buttons);
  });
}

/** Fields for the results of tool calls: the reader plays the tool. */
function resultFields(calls) {
  const fields = calls.map((call) => el("input", { ariaLabel: `Result of ${call.name}`, placeholder: `Result of ${call.name}` }));
  const give = button("Give results", () => {
    calls.forEach((call, index) => addView(talk.addToolResult(call.id, fields[index].value)));
    answer();
  });
  fields.forEach((field) => field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") give.click();
  }));
  return [...fields, give];
}

function say(text) {
  $("status").textContent = text;
}

function atEnd() {
  const { scrollTop, scrollHeight, clientHeight } = $("scroll");
  return scrollHeight - scrollTop - clientHeight < 80;
}

/** Keeps the newest text in sight unless the reader scrolled away from it. */
function follow(always = false) {
  if (always || pinned) $("scroll").scrollTop = $("scroll").scrollHeight;
  $("latest").hidden = atEnd();
}
let pinned = true;
$("scroll").addEventListener("scroll", () => {
  pinned = atEnd();
  $("latest").hidden = pinned;
});
$("latest").addEventListener("click", () => follow(true));

// ---- asking

async function answer() {
  const message = talk.addAnswer();
  const view = addView(message);
  const receipt = new Receipt();
  const abort = new AbortController();
  running = abort;
  setRunning(true);
  const paint = painter(() => {
    view.update(running === abort);
    view.showReceipt(receipt.lines());
    follow();
  });
  view.update(true);
  follow(true);
  try {
    await stream(message, receipt, abort.signal, paint);
    say("The answer is complete.");
  } catch (error) {
    settle(message, view, error, abort.signal.aborted);
  }
  paint.cancel();
  running = null;
  message.receipt = receipt.lines();
  view.update();
  view.showReceipt(message.receipt);
  talk.keep();
  setRunning(false);
  follow();
}

async function stream(message, receipt, signal, paint) {
  const body = {
    model: settings.model || undefined,
    messages: talk.wire(settings.system),
    stream: true,
    stream_options: { include_usage: true },
    ...store.requestFields(settings),
  };
  for await (const chunk of api.chat(body, settings.api_key, signal)) {
    const delta = chunk.choices?.[0]?.delta ?? {};
    receipt.note(chunk, talk.take(message, delta));
    paint();
  }
}

/** Ends an answer that did not end by itself. What came so far stays. */
function settle(message, view, error, stopped) {
  const empty = message.content === "" && !message.reasoning && message.calls.length === 0;
  message.stopped = stopped;
  if (stopped) {
    view.showNotice("Stopped.");
    say("Stopped.");
    return;
  }
  // An answer that never began is not part of the conversation; its place only shows the reason.
  if (empty) talk.dropAnswer();
  view.element.classList.add("failed");
  const again = button("Try again", () => {
    if (empty) views.pop()?.element.remove();
    else dropLastAnswer();
    answer();
  });
  view.showNotice(error.message, again);
  say(error.message);
  if (error.kind === "key") askKey(settings.api_key !== "", () => again.click());
}

/** Runs a drawing at most once per frame, however fast chunks come. */
function painter(draw) {
  let frame = 0;
  const ask = () => {
    frame ||= requestAnimationFrame(() => { frame = 0; draw(); });
  };
  ask.cancel = () => cancelAnimationFrame(frame);
  return ask;
}

function setRunning(on) {
  $("send").hidden = on;
  $("stop").hidden = !on;
  $("new").disabled = on;
  offerActions();
}

function ask(text) {
  if (running || text.trim() === "") return;
  if (editing !== null) {
    talk.cut(editing);
    showEditing(null);
    showAll();
  }
  clearFailed();
  $("welcome").hidden = true;
  addView(talk.addUser(text));
  $("message").value = "";
  grow();
  answer();
}

/** A reason shown in place of an answer goes when the reader goes on. */
function clearFailed() {
  while (views.length > talk.messages.length) views.pop().element.remove();
}

function dropLastAnswer() {
  talk.dropAnswer();
  views.pop().element.remove();
}

function regenerate() {
  if (running) return;
  dropLastAnswer();
  answer();
}

function edit(index) {
  showEditing(index);
  $("message").value = talk.messages[index].content;
  grow();
  $("message").focus();
}

function showEditing(index) {
  editing = index;
  $("editing").hidden = index === null;
}

function cancelEdit() {
  showEditing(null);
  $("message").value = "";
  grow();
}

function newChat() {
  if (running) return;
  cancelEdit();
  talk.clear();
  showAll();
  $("message").focus();
}

// ---- the field and the keys

function grow() {
  const field = $("message");
  field.style.height = "auto";
  field.style.height = `${Math.min(field.scrollHeight, window.innerHeight * 0.4)}px`;
}

$("message").addEventListener("input", grow);
$("message").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  ask($("message").value);
});
$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  ask($("message").value);
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
  if (running) running.abort();
  else if (editing !== null) cancelEdit();
});
$("stop").addEventListener("click", () => running?.abort());
$("new").addEventListener("click", newChat);
$("cancel-edit").addEventListener("click", cancelEdit);
$("ideas").addEventListener("click", (event) => {
  if (event.target.closest("button")) ask(event.target.textContent);
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
showAll();
showModels();
showHealth();
setInterval(showHealth, HEALTH_EVERY_MS);
document.addEventListener("visibilitychange", showHealth);
$("message").focus({ preventScroll: true });
