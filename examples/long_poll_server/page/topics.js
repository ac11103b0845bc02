// Publishing, and any number of topics that are watched. Texts of others are put in as text, never as markup.

import { Refused, address, ask, findEnd, follow, persist } from "./polling.js";
import { count, make, say } from "./text.js";

const WAIT = 5; // seconds of a poll: polls that share a connection alternate
const SHOWN = 50; // messages of a topic
const LONG = 2000; // characters of a message

export class Topics {
  constructor() {
    this.watched = new Map();
    this.list = document.getElementById("watched");
    const publish = document.getElementById("publish");
    publish.addEventListener("submit", (event) => {
      event.preventDefault();
      this.publish(publish);
    });
    document.getElementById("publish-value").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) publish.requestSubmit();
    });
    document.getElementById("watch").addEventListener("submit", (event) => {
      event.preventDefault();
      this.watch(document.getElementById("watch-topic").value);
      this.remember();
    });
    addEventListener("hashchange", () => this.recall());
    this.recall();
  }

  async publish(form) {
    const answer = document.getElementById("publish-answer");
    const { value: text } = document.getElementById("publish-value");
    const topic = document.getElementById("publish-topic").value;
    const report = (message, failed) => {
      answer.classList.toggle("error", failed);
      answer.textContent = message;
    };
    try {
      if (form.elements.kind.value === "json") JSON.parse(text);
    } catch (error) {
      report(`This is not JSON: ${error.message}`, true);
      return;
    }
    const value = form.elements.kind.value === "json" ? text : JSON.stringify(text);
    try {
      const headers = { "content-type": "application/json" };
      const stored = await ask(address(topic), { method: "POST", headers, body: `{"value": ${value}}` });
      report(`Stored in ${stored.topic}, offset ${count(stored.offset)}.`, false);
      document.getElementById("publish-value").value = "";
    } catch (error) {
      report(error instanceof Refused ? `Refused: ${error.message}` : "The server cannot be reached.", true);
    }
  }

  /** Watch `topic`, unless it is watched. */
  watch(topic) {
    say(document.getElementById("watch-answer"), this.watched.has(topic) ? "You watch it already." : "");
    if (this.watched.has(topic)) return;
    const watched = new Watched(topic, () => {
      this.watched.delete(topic);
      this.remember();
      document.getElementById("watch-topic").focus();
    });
    this.watched.set(topic, watched);
    this.list.append(watched.card);
    watched.run();
  }

  remember() {
    const names = [...this.watched.keys()].map(encodeURIComponent);
    history.replaceState(null, "", names.length ? `#watch=${names.join(",")}` : location.pathname);
  }

  recall() {
    const found = /^#watch=(.+)$/.exec(location.hash);
    for (const name of found ? found[1].split(",") : []) {
      try {
        this.watch(decodeURIComponent(name));
      } catch {
        // Not an address that this page has made.
      }
    }
  }
}

class Watched {
  constructor(topic, onEnd) {
    this.topic = topic;
    this.control = new AbortController();
    this.state = make("span", { class: "note muted" }, "…");
    this.messages = make("ol", {
      role: "log",
      "aria-live": "off",
      "aria-label": `Messages of ${topic}`,
      tabindex: "0",
    });
    const stop = make("button", { type: "button", class: "quiet", "aria-label": `Stop watching ${topic}` }, "Stop");
    stop.addEventListener("click", () => {
      this.control.abort();
      this.card.remove();
      onEnd();
    });
    const title = make("h3", {}, make("bdi", {}, topic));
    this.card = make(
      "article",
      { class: "topic", "data-topic": topic },
      make("div", { class: "bar" }, title, stop),
      this.state,
      this.messages,
    );
  }

  async run() {
    const { signal } = this.control;
    const tell = (text, failed = false) => {
      say(this.state, text);
      this.state.classList.toggle("error", failed);
    };
    const onAway = () => tell("reconnecting…");
    const onAnswer = (messages, fresh = true) => {
      this.show(messages, fresh);
      tell(this.messages.childElementCount ? "" : "no messages yet");
    };
    try {
      const begun = await persist(() => findEnd(this.topic, SHOWN, signal), { signal, onAway });
      if (begun === undefined) return;
      onAnswer(begun.messages, false);
      // From now on, what comes is read out.
      requestAnimationFrame(() => this.messages.setAttribute("aria-live", "polite"));
      await follow(this.topic, begun.next_offset, { signal, wait: WAIT, shared: true, onAnswer, onAway });
    } catch (error) {
      if (signal.aborted) return;
      if (!(error instanceof Refused)) throw error;
      tell(`Refused: ${error.message}`, true);
    }
  }

  show(messages, fresh) {
    const items = messages.slice(-SHOWN).map((message) => item(message, fresh));
    this.messages.prepend(...items.reverse());
    while (this.messages.childElementCount > SHOWN) this.messages.lastChild.remove();
  }
}

function item({ offset, value }, fresh) {
  const text = typeof value === "string" ? value : JSON.stringify(value);
  const body = make("bdi", { dir: "auto" }, text.length > LONG ? `${text.slice(0, LONG)}…` : text);
  const line = make("li", fresh ? { class: "fresh" } : {}, make("span", {}, count(offset)), body);
  if (text.length > LONG)
    line.append(make("span", { class: "note" }, `the first ${count(LONG)} of ${count(text.length)} characters`));
  return line;
}
