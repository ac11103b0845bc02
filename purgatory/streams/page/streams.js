// Creating streams and appending to them, the list of them, and any number of streams that are followed. Texts of others
// are put in as text, never as markup.

import { Refused, address, ask, askJson, inSlot, parse, persist, sleep } from "./polling.js";
import { count, make, say } from "./text.js";

const SHOWN = 50; // messages of a stream
const RECENT = 4096; // bytes before the end, from which on a stream is shown that has no messages
const LONG = 2000; // characters of a message
const BYTES = 200; // of a message that is no text
const LISTED = 20; // streams in the list
const MORE = 100; // so many further ones are shown on demand
const MOST = 1000; // that a server lists
const REFRESH = 3; // seconds after which the list is brought up to date

const $ = (id) => document.getElementById(id);

/** The number in an offset: this server counts messages of JSON, and bytes of all else. */
const unitsAt = (offset) => Number(offset.slice(-16));
const offsetAt = (offset, position) => offset.slice(0, -16) + String(position).padStart(16, "0");

const isJson = (type) => /^application\/json\s*(;|$)/i.test(type);
const amount = (number, type) => `${count(number)} ${isJson(type) ? "message" : "byte"}${number === 1 ? "" : "s"}`;

function explain(error) {
  return error instanceof Refused ? `Refused: ${error.message}` : "The server cannot be reached.";
}

/** The headers of a stream. */
async function head(path, signal) {
  try {
    return (await ask(address(path), { method: "HEAD", signal })).headers;
  } catch (error) {
    if (error.status === 404 || error.status === 410) throw new Refused(error.status, "no stream has this path");
    throw error;
  }
}

/** The forms, the list, and the streams that are followed. */
export class Streams {
  constructor() {
    this.followed = new Map();
    this.list = new List((path) => this.followAndRemember(path));
    $("create").addEventListener("submit", (event) => {
      event.preventDefault();
      this.create();
    });
    $("append").addEventListener("submit", (event) => {
      event.preventDefault();
      this.append();
    });
    $("append-value").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("append").requestSubmit();
    });
    $("follow").addEventListener("submit", (event) => {
      event.preventDefault();
      this.followAndRemember($("follow-path").value);
    });
    addEventListener("hashchange", () => this.recall());
    this.recall();
  }

  async create() {
    const path = $("create-path").value;
    await report($("create-answer"), async () => {
      const headers = { "content-type": $("create-type").value };
      const response = await ask(address(path), { method: "PUT", headers });
      return response.status === 201 ? `Created ${path}.` : `${path} already exists.`;
    });
    this.list.refresh();
  }

  async append() {
    const path = $("append-path").value;
    const value = $("append-value").value;
    const closing = $("append-close").checked;
    await report($("append-answer"), async () => {
      const type = (await head(path)).get("content-type");
      if (isJson(type) && !(closing && value === "")) check(value);
      const headers = { "content-type": type, ...(closing ? { "stream-closed": "true" } : {}) };
      const response = await ask(address(path), { method: "POST", headers, body: value });
      $("append-value").value = "";
      $("append-close").checked = false;
      const tail = amount(unitsAt(response.headers.get("stream-next-offset")), type);
      return `${closing ? "Closed" : "Appended to"} ${path}, which now has ${tail}.`;
    });
    this.list.refresh();
  }

  followAndRemember(path) {
    this.follow(path);
    this.remember();
  }

  /** Follow the stream at `path`, unless it is followed. */
  follow(path) {
    say($("follow-answer"), this.followed.has(path) ? "You already follow this stream." : "");
    if (this.followed.has(path)) return;
    const followed = new Followed(path, () => {
      this.followed.delete(path);
      this.remember();
      $("follow-path").focus();
    });
    this.followed.set(path, followed);
    $("followed").append(followed.card);
    followed.run();
  }

  /** Follow none any more. */
  stop() {
    for (const { control } of this.followed.values()) control.abort();
  }

  remember() {
    const paths = [];
    for (const path of this.followed.keys()) {
      try {
        paths.push(encodeURIComponent(path));
      } catch {
        // It has halves of characters, and is no stream's.
      }
    }
    history.replaceState(null, "", paths.length ? `#follow=${paths.join(",")}` : location.pathname);
  }

  recall() {
    const found = /^#follow=(.+)$/.exec(location.hash);
    for (const path of found ? found[1].split(",") : []) {
      try {
        this.follow(decodeURIComponent(path));
      } catch {
        // Not an address that this page has made.
      }
    }
  }
}

async function report(answer, act) {
  try {
    answer.textContent = await act();
    answer.classList.remove("error");
  } catch (error) {
    answer.textContent = explain(error);
    answer.classList.add("error");
  }
}

function check(text) {
  try {
    JSON.parse(text);
  } catch (error) {
    throw new Refused(400, `the data must be JSON: ${error.message}`);
  }
}

/** The table of the streams. It is brought up to date while the page is visible. */
class List {
  constructor(onFollow) {
    this.onFollow = onFollow;
    this.body = $("list-body");
    this.rows = new Map();
    this.most = LISTED;
    this.woken = new AbortController();
    $("list-prefix").addEventListener("input", () => {
      this.most = LISTED;
      this.refresh();
    });
    $("list-more").addEventListener("click", () => {
      this.most = Math.min(this.most + MORE, MOST);
      this.refresh();
    });
    document.addEventListener("visibilitychange", () => this.refresh());
    this.run();
  }

  /** Bring it up to date soon. */
  refresh() {
    this.woken.abort();
  }

  async run() {
    while (true) {
      this.woken = new AbortController();
      const { signal } = this.woken;
      if (!document.hidden) await this.look();
      await sleep(document.hidden ? 3600 : REFRESH, signal);
    }
  }

  async look() {
    const prefix = $("list-prefix").value;
    try {
      const query = new URLSearchParams({ prefix, limit: Math.min(this.most + 1, MOST) });
      const { streams } = await askJson(`v1/streams?${query}`);
      this.show(streams.slice(0, this.most), prefix);
      $("list-more").hidden = streams.length <= this.most;
    } catch (error) {
      say($("list-note"), explain(error));
    }
  }

  show(streams, prefix) {
    const paths = new Set(streams.map(({ path }) => path));
    for (const [path, { row }] of this.rows) {
      if (paths.has(path)) continue;
      row.remove();
      this.rows.delete(path);
    }
    streams.forEach(({ path, content_type: type, next_offset: tail, closed }, place) => {
      const found = this.rows.get(path) ?? this.add(path);
      // A row that stays is not moved: it may have the focus.
      if (this.body.rows[place] !== found.row) this.body.insertBefore(found.row, this.body.rows[place] ?? null);
      [type, amount(unitsAt(tail), type), closed ? "closed" : "open"].forEach((text, cell) =>
        say(found.cells[cell], text),
      );
    });
    const none = prefix ? "No path begins with this text." : "There are no streams yet. Create one.";
    say($("list-note"), streams.length ? (streams.length === MOST ? `Only the first ${count(MOST)} streams are shown.` : "") : none);
  }

  add(path) {
    const button = make("button", { type: "button", class: "quiet", "aria-label": `Follow ${path}` }, "Follow");
    button.addEventListener("click", () => this.onFollow(path));
    const cells = Array.from({ length: 3 }, () => make("td"));
    const row = make(
      "tr",
      {},
      make("th", { scope: "row" }, make("bdi", {}, path)),
      ...cells,
      make("td", {}, button),
    );
    const made = { row, cells };
    this.rows.set(path, made);
    return made;
  }
}

/** A card with the end of a stream, and with all that comes. */
class Followed {
  constructor(path, onEnd) {
    this.path = path;
    this.control = new AbortController();
    this.state = make("span", { class: "note muted" }, "…");
    this.messages = make("ol");
    // Around the list, and not the list itself: its items would be items of no list.
    this.log = make(
      "div",
      { class: "log", role: "log", "aria-live": "off", "aria-label": `Messages of ${path}`, tabindex: "0" },
      this.messages,
    );
    const stop = make("button", { type: "button", class: "quiet", "aria-label": `Stop following ${path}` }, "Stop");
    stop.addEventListener("click", () => {
      this.control.abort();
      this.card.remove();
      onEnd();
    });
    const title = make("h3", {}, make("bdi", {}, path));
    this.card = make(
      "article",
      { class: "stream", "data-stream": path },
      make("div", { class: "bar" }, title, stop),
      this.state,
      this.log,
    );
  }

  tell(text, failed = false) {
    say(this.state, text);
    this.state.classList.toggle("error", failed);
  }

  async run() {
    const { signal } = this.control;
    const onAway = () => this.tell("reconnecting…");
    try {
      const place = await persist(() => this.begin(signal), { signal, onAway });
      let cursor = null;
      let fresh = false;
      while (place !== undefined) {
        const poll = (turn) => this.poll(place.offset, cursor, turn);
        const answer = await persist(() => inSlot(signal, poll), { signal, onAway });
        if (answer === undefined) return;
        if (answer === null) continue; // it was the turn of others
        const { headers, bytes } = answer;
        const next = headers.get("stream-next-offset");
        if (bytes.length) this.show(bytes, headers.get("content-type"), unitsAt(next), fresh);
        place.offset = next;
        cursor = headers.get("stream-cursor");
        const closed = headers.has("stream-closed");
        this.tell(closed ? "closed" : this.messages.childElementCount ? "" : "no messages yet");
        if (closed) return;
        if (headers.has("stream-up-to-date") && !fresh) {
          fresh = true;
          // From now on, new messages are read out.
          requestAnimationFrame(() => this.log.setAttribute("aria-live", "polite"));
        }
      }
    } catch (error) {
      if (signal.aborted) return;
      if (!(error instanceof Refused)) throw error;
      this.tell(`Refused: ${error.message}`, true);
    }
  }

  /** Where to begin: some messages before the end. */
  async begin(signal) {
    const headers = await head(this.path, signal);
    const tail = headers.get("stream-next-offset");
    const recent = isJson(headers.get("content-type")) ? SHOWN : RECENT;
    const position = Math.max(0, unitsAt(tail) - recent);
    // At the end, an answer would come with the next message only.
    if (position === unitsAt(tail)) this.tell(headers.has("stream-closed") ? "closed" : "no messages yet");
    return { offset: offsetAt(tail, position) };
  }

  async poll(offset, cursor, signal) {
    const parameters = { offset, live: "long-poll", ...(cursor === null ? {} : { cursor }) };
    const response = await ask(address(this.path, parameters), { signal });
    return { headers: response.headers, bytes: new Uint8Array(await response.arrayBuffer()) };
  }

  show(bytes, type, end, fresh) {
    const texts = isJson(type) ? messages(bytes) : [text(bytes)];
    const begin = end - (isJson(type) ? texts.length : bytes.length);
    const items = texts.map((each, index) => item(begin + index, each, fresh));
    this.messages.prepend(...items.reverse());
    while (this.messages.childElementCount > SHOWN) this.messages.lastChild.remove();
  }
}

/** Texts to show, each with a note if it is a part: the last ones, as there may be a million. */
function messages(bytes) {
  const values = parse(new TextDecoder().decode(bytes)).slice(-SHOWN);
  return values.map((value) => shortened(typeof value === "string" ? value : JSON.stringify(value)));
}

function text(bytes) {
  try {
    return shortened(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes));
  } catch {
    const shown = Array.from(bytes.slice(0, BYTES), (byte) => byte.toString(16).padStart(2, "0")).join(" ");
    return { text: shown, note: `${count(Math.min(BYTES, bytes.length))} of ${amount(bytes.length, "")}, not text` };
  }
}

function shortened(text) {
  if (text.length <= LONG) return { text, note: "" };
  return { text: `${text.slice(0, LONG)}…`, note: `the first ${count(LONG)} of ${count(text.length)} characters` };
}

function item(position, { text, note }, fresh) {
  const body = make("bdi", { dir: "auto" }, text);
  const line = make("li", fresh ? { class: "fresh" } : {}, make("span", {}, count(position)), body);
  if (note) line.append(make("span", { class: "note" }, note));
  return line;
}
