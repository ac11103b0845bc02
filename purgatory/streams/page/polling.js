// Requests and long polls: ask, wait for the answer, ask again from where it ended; and come back when the server has
// been away.

const SHORTEST = 0.25; // seconds until the first attempt to come back
const LONGEST = 8;
const PATIENCE = 60; // seconds after which a connection that died silently is given up
const TURN = 50; // the same of a long poll, which is asked again
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

/** The value of a text of JSON. Raises a `SyntaxError`. */
export const parse = (text) => JSON.parse(text, exact);

/** Ask the server. Returns its response; raises `Refused`, or a `TypeError` if it cannot be reached. */
export async function ask(path, options = {}) {
  const late = AbortSignal.timeout(1000 * PATIENCE);
  const signal = options.signal ? AbortSignal.any([options.signal, late]) : late;
  const response = await fetch(path, { cache: "no-store", ...options, signal });
  if (response.ok) return response;
  const text = await response.text();
  let message = "";
  try {
    message = JSON.parse(text).error.message;
  } catch {
    // It is not this server that has answered.
  }
  throw new Refused(
    response.status,
    String(message || `the server answered ${response.status}`),
    Number(response.headers.get("retry-after")),
  );
}

/** As `ask`, for an answer that is JSON. */
export async function askJson(path, options = {}) {
  const response = await ask(path, options);
  try {
    return parse(await response.text());
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
    throw new Refused(502, `the answer (${response.status}) must be JSON: is this the right server?`);
  }
}

/** The address of a stream. Raises `Refused` for paths that a URL would take for others. */
export function address(path, parameters = {}) {
  const segments = path.split("/");
  if (segments.some((segment) => segment === "" || segment === "." || segment === ".."))
    throw new Refused(400, "the segments of a path must not be empty, . or ..");
  const query = new URLSearchParams(parameters).toString();
  try {
    return `v1/stream/${segments.map(encodeURIComponent).join("/")}${query && `?${query}`}`;
  } catch {
    throw new Refused(400, "a path must not have halves of characters");
  }
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

/**
 * What `poll(signal)` resolves with; `null` if the poll was given up, for others or because it took too long.
 *
 * A browser opens six connections to a server, for all its tabs together. Polls that wait for long share three, so that
 * appends and the statistics always have one. Where there are more polls, they take turns of a second.
 */
export async function inSlot(signal, poll) {
  if (!navigator.locks) return poll(signal);
  const name = (slot) => `long-poll-${slot}`;
  const missed = Symbol("missed");
  const held = async () => {
    const turn = new AbortController();
    const look = setInterval(async () => {
      const { pending } = await navigator.locks.query();
      if (pending.some((lock) => lock.name.startsWith("long-poll-"))) turn.abort();
    }, 1000);
    const late = setTimeout(() => turn.abort(), 1000 * TURN);
    try {
      return await poll(AbortSignal.any([signal, turn.signal]));
    } catch (error) {
      if (turn.signal.aborted) return null;
      throw error;
    } finally {
      clearInterval(look);
      clearTimeout(late);
    }
  };
  for (let slot = 0; slot < SLOTS; slot++) {
    const answer = await navigator.locks.request(name(slot), { ifAvailable: true }, (lock) => (lock ? held() : missed));
    if (answer !== missed) return answer;
  }
  return navigator.locks.request(name(Math.floor(Math.random() * SLOTS)), { signal }, held);
}
