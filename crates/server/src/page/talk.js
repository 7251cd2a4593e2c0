// The chat that is shown: its messages on the screen, the answer that is being made, and the branches beside what is shown.

import * as api from "./api.js";
import * as chats from "./chats.js";
import { Receipt } from "./receipt.js";
import { copyText, el, MessageView } from "./render.js";
import * as store from "./settings.js";

const $ = (id) => document.getElementById(id);

function button(label, act, title = "") {
  const made = el("button", { type: "button", title }, label);
  made.addEventListener("click", () => act(made));
  return made;
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

export class Talk {
  /** `kept` is called when the list of chats may have changed, `edit` with a message to change, `askKey` when the key is refused. */
  constructor(chat, settings, { kept, edit, askKey }) {
    Object.assign(this, { chat, settings, kept, edit, askKey });
    this.views = [];
    /** The answer being made, if any: aborting it is what "stop" means. */
    this.running = null;
    this.pinned = true;
    $("scroll").addEventListener("scroll", () => {
      this.pinned = this.atEnd();
      $("latest").hidden = this.pinned;
    });
    $("latest").addEventListener("click", () => this.follow(true));
    $("stop").addEventListener("click", () => this.stop());
    this.show();
  }

  // ---- showing

  open(chat) {
    this.stop();
    this.chat = chat;
    chats.noteOpened(chat);
    this.show();
  }

  show() {
    this.views = [];
    $("log").replaceChildren();
    this.chat.path().forEach((message) => this.addView(message));
    this.offerActions();
    $("welcome").hidden = this.views.length > 0;
    this.follow(true);
  }

  addView(message) {
    const view = new MessageView(message);
    view.update();
    if (message.receipt) view.showReceipt(message.receipt);
    if (message.stopped) view.showNotice("Stopped.");
    this.views.push(view);
    $("log").append(view.element);
    return view;
  }

  /** Buttons under messages. An answer that failed is not in the chat: its view has buttons of its own. */
  offerActions() {
    const busy = this.running !== null;
    const path = this.chat.path();
    this.views.forEach(({ message }, index) => {
      if (path[index] !== message) return;
      const { role, content } = message;
      const buttons = busy ? [] : this.branchButtons(message);
      if (content !== "" && role !== "tool") buttons.push(button("Copy", (self) => copyText(content, self), "Copy this message"));
      if (!busy && role === "user") buttons.push(button("Edit", () => this.edit(message), "Change this message and ask again"));
      if (!busy && role === "assistant") {
        if (index === path.length - 1 && message.calls?.length > 0) buttons.push(...this.resultFields(message.calls));
        buttons.push(button("Regenerate", () => this.regenerate(message), "Ask for another answer"));
      }
      this.views[index].showActions(...buttons);
    });
  }

  branchButtons(message) {
    const branches = this.chat.branches(message);
    if (branches.length < 2) return [];
    const at = branches.indexOf(message);
    const step = (to, label, title) => {
      const made = button(label, () => {
        this.chat.show(branches[to]);
        this.keep();
        this.show();
      }, title);
      made.setAttribute("aria-label", title);
      made.disabled = branches[to] === undefined;
      return made;
    };
    return [
      step(at - 1, "‹", "The branch before"),
      el("span", { className: "branch", ariaLabel: `Branch ${at + 1} of ${branches.length}` }, `${at + 1}/${branches.length}`),
      step(at + 1, "›", "The next branch"),
    ];
  }

  /** Fields for the results of tool calls: the reader plays the tool. */
  resultFields(calls) {
    const fields = calls.map((call) => el("input", { ariaLabel: `Result of ${call.name}`, placeholder: `Result of ${call.name}` }));
    const give = button("Give results", () => {
      calls.forEach((call, index) => this.addView(this.chat.addToolResult(call.id, fields[index].value)));
      this.answer();
    });
    fields.forEach((field) => field.addEventListener("keydown", (event) => {
      if (event.key === "Enter") give.click();
    }));
    return [...fields, give];
  }

  atEnd() {
    const { scrollTop, scrollHeight, clientHeight } = $("scroll");
    return scrollHeight - scrollTop - clientHeight < 80;
  }

  /** Keeps the newest text in sight unless the reader scrolled away from it. */
  follow(always = false) {
    if (always || this.pinned) $("scroll").scrollTop = $("scroll").scrollHeight;
    $("latest").hidden = this.atEnd();
  }

  /** Keeps the chat in this browser; what hinders that is told, once, under the newest message. */
  keep() {
    try {
      chats.keep(this.chat);
      chats.noteOpened(this.chat);
    } catch (error) {
      this.views.at(-1)?.showNotice(error.message);
    }
    this.kept();
  }

  // ---- asking

  /** Sends a message, in place of `editing` if that is given. Answers whether it could. */
  ask(text, files, editing) {
    if (this.running) return false;
    this.clearFailed();
    if (editing) {
      this.chat.addUser(text, files, editing.parent);
      this.show();
    } else {
      $("welcome").hidden = true;
      this.addView(this.chat.addUser(text, files));
    }
    this.keep();
    this.answer();
    return true;
  }

  regenerate(message) {
    if (this.running) return;
    this.chat.leaf = message.parent;
    this.show();
    this.answer();
  }

  stop() {
    this.running?.abort();
    return this.running !== null;
  }

  async answer() {
    const { chat } = this;
    const message = chat.addAnswer();
    const view = this.addView(message);
    const receipt = new Receipt();
    const abort = new AbortController();
    this.setRunning(abort);
    const paint = painter(() => {
      view.update(this.running === abort);
      view.showReceipt(receipt.lines());
      this.follow();
    });
    view.update(true);
    this.follow(true);
    let error = null;
    try {
      await this.stream(chat, message, receipt, abort.signal, paint);
      this.say("The answer is complete.");
    } catch (caught) {
      error = caught;
    }
    paint.cancel();
    message.receipt = receipt.lines();
    view.update();
    view.showReceipt(message.receipt);
    if (error) this.settle(chat, message, view, error, abort.signal.aborted);
    this.setRunning(null);
    // The reader may have opened another chat meanwhile, which ended this answer.
    if (chat === this.chat) this.keep();
    else this.keepOther(chat);
    this.follow();
  }

  keepOther(chat) {
    try {
      if (chats.load(chat.id)) chats.keep(chat);
    } catch {
      // No space is left; what was kept before stays.
    }
    this.kept();
  }

  async stream(chat, message, receipt, signal, paint) {
    const { settings } = this;
    const body = {
      model: settings.model || undefined,
      messages: chat.wire(settings.system),
      stream: true,
      stream_options: { include_usage: true },
      ...store.requestFields(settings),
    };
    for await (const chunk of api.chat(body, settings.api_key, signal)) {
      const delta = chunk.choices?.[0]?.delta ?? {};
      receipt.note(chunk, chat.take(message, delta));
      paint();
    }
  }

  /** Ends an answer that did not end by itself. What came so far stays. */
  settle(chat, message, view, error, stopped) {
    const empty = message.content === "" && !message.reasoning && message.calls.length === 0;
    message.stopped = stopped;
    if (stopped) {
      view.showNotice("Stopped.");
      this.say("Stopped.");
      return;
    }
    // An answer that never began is not part of the chat; its place only shows the reason.
    if (empty) chat.drop(message);
    view.element.classList.add("failed");
    const again = button("Try again", () => {
      if (!empty) chat.drop(message);
      this.clearFailed();
      this.answer();
    });
    view.showNotice(error.message, again);
    this.say(error.message);
    if (error.kind === "key") this.askKey(this.settings.api_key !== "", () => again.click());
  }

  /** A reason shown in place of an answer goes when the reader goes on. */
  clearFailed() {
    const length = this.chat.path().length;
    while (this.views.length > length) this.views.pop().element.remove();
  }

  setRunning(abort) {
    this.running = abort;
    $("send").hidden = abort !== null;
    $("stop").hidden = abort === null;
    this.offerActions();
  }

  say(text) {
    $("status").textContent = text;
  }
}
