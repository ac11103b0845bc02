// Long polling: ask, wait for the answer, ask again from where it ended; and come back when the server has been away.

const SHORTEST = 0.25; // seconds until the first attempt to come back
const LONGEST = 8;
const SLOTS = 3;

/** The server has answered, but not with what was asked for. */
export class Refused extends Error {
  constructor(status, message, retryAfter) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }

  /** Whether asking again would help. */
  get passes() {
    return this.status >= 500 || this.status === 429 || this.status === 408;
  }
}

// Numbers that JavaScript would round are kept as they were written, where the browser can.
function exact(key, value, context) {
  const loses = typeof value === "number" && Math.abs(value) > Number.MAX_SAFE_INTEGER;
  return loses && context?.source && JSON.rawJSON ? JSON.rawJSON(context.source) : value;
}

/** Ask the server. Raises `Refused`, or a `TypeError` if it cannot be reached. */
export async function ask(path, options = {}) {
  const response = await fetch(path, { cache: "no-store", ...options });
  const text = await response.text();
  let answer;
  try {
    answer = JSON.parse(text, exact);
  } catch {
    throw new Refused(response.ok ? 502 : response.status, `the answer (${response.status}) is not JSON`);
  }
  if (response.ok) return answer;
  throw new Refused(
    response.status,
    String(answer?.error ?? response.status),
    Number(response.headers.get("retry-after")),
  );
}

/** Where the messages of `topic` are. Names that a URL would take for a way up are refused. */
export function address(topic, parameters = {}) {
  if (topic === "" || topic === "." || topic === "..") throw new Refused(400, `a topic cannot be named “${topic}”`);
  const query = new URLSearchParams(parameters).toString();
  return `topics/${encodeURIComponent(topic)}/messages${query && `?${query}`}`;
}

/** Fetch from `topic`. */
export function fetchMessages(topic, parameters, signal) {
  // A connection that died without a word is given up some time after the answer was due.
  const late = AbortSignal.timeout((2 * (parameters.wait ?? 0) + 20) * 1000);
  return ask(address(topic, parameters), { signal: AbortSignal.any([signal, late]) });
}

/** Where `topic` ends, found with a few questions however long it is, and its last messages, up to `limit`. */
export async function findEnd(topic, limit, signal) {
  const at = (offset, most) => fetchMessages(topic, { offset, min_messages: 0, max_messages: most, wait: 0 }, signal);
  const first = await at(0, limit);
  if (first.messages.length < limit) return first;
  let below = first.next_offset; // there are that many
  let above = 2 * below;
  while ((await at(above - 1, 1)).messages.length) [below, above] = [above, 2 * above];
  while (above - below > 1) {
    const middle = Math.floor((below + above) / 2);
    if ((await at(middle - 1, 1)).messages.length) below = middle;
    else above = middle;
  }
  return at(Math.max(below - limit, 0), limit);
}

/**
 * What `attempt` resolves with. While the server is away it is tried again and `onAway(error)` is called each time;
 * nothing comes of it when `signal` aborts. Raises `Refused` when asking again would not help.
 */
export async function persist(attempt, { signal, onAway }) {
  for (let failures = 0; !signal.aborted; failures++) {
    try {
      return await attempt();
    } catch (error) {
      if (signal.aborted) break;
      if (error instanceof Refused && !error.passes) throw error;
      onAway(error);
      await sleep(backOff(failures, error.retryAfter), signal);
    }
  }
  return undefined;
}

/**
 * Follow `topic` from `offset` until `signal` aborts; `onAnswer(messages)` is called after each answer. With `latest` it
 * does not go on where an answer ended: what has come meanwhile is left out. The rest is as in `persist`.
 */
export async function follow(topic, offset, { signal, wait, shared = false, latest = false, onAnswer, onAway }) {
  const poll = (seconds) => fetchMessages(topic, { offset, wait: seconds }, signal);
  while (true) {
    const began = performance.now();
    const answer = await persist(() => (shared ? inSlot(signal, wait, poll) : poll(wait)), { signal, onAway });
    if (answer === undefined) return;
    if (!latest) offset = answer.next_offset;
    onAnswer(answer.messages);
    // Answered at once with nothing: the server is about to stop.
    if (!answer.messages.length && performance.now() - began < 100) await sleep(SHORTEST, signal);
  }
}

/** Seconds until the next attempt: twice as long each time, and never the same for all waiting clients. */
export function backOff(failures, retryAfter) {
  const most = Math.min(LONGEST, SHORTEST * 2 ** failures);
  return Math.max(retryAfter || 0, 0) + most * (0.5 + Math.random() / 2);
}

/** Resolves after so many seconds, or when `signal` aborts. */
export function sleep(seconds, signal) {
  return new Promise((resolve) => {
    const over = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", over);
      resolve();
    };
    const timer = setTimeout(over, seconds * 1000);
    signal.addEventListener("abort", over);
    if (signal.aborted) over();
  });
}

// A browser opens six connections to a server, for all its tabs together. Polls that wait for long share three, so that
// publishing and the statistics always have one; where there are more, they take turns.
async function inSlot(signal, wait, poll) {
  if (!navigator.locks) return poll(wait);
  const missed = Symbol("missed");
  const name = (slot) => `long-poll-${slot}`;
  const held = async () => {
    const { pending } = await navigator.locks.query();
    return poll(pending.some((lock) => lock.name.startsWith("long-poll-")) ? 1 : wait);
  };
  for (let slot = 0; slot < SLOTS; slot++) {
    const answer = await navigator.locks.request(name(slot), { ifAvailable: true }, (lock) => (lock ? held() : missed));
    if (answer !== missed) return answer;
  }
  return navigator.locks.request(name(Math.floor(Math.random() * SLOTS)), { signal }, held);
}
