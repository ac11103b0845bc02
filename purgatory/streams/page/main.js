// The page: it follows the statistics by long polling, and shows what they say.

import { Demo } from "./demo.js";
import { Counters, Histogram, Levels } from "./panels.js";
import { Refused, askJson, persist, sleep } from "./polling.js";
import { Rings } from "./rings.js";
import { Streams } from "./streams.js";
import { count, make, say } from "./text.js";
import { Workers, idOf, inOrder, nameOf, sum } from "./workers.js";

const NOTES = {
  read: "Reads that wait for appends: long polls and event streams. The polls of this page for its figures are not included.",
  throttle: "Appends of clients above --append-rate, whose answers are delayed.",
  demo: "Made-up operations: half are completed by their condition, and half expire.",
};

const $ = (id) => document.getElementById(id);

const rings = new Rings($("rings"), $("motion"));
const counters = new Counters($("counters"));
const levels = new Levels($("levels-body"));
const histogram = new Histogram($("histogram"), $("axis"), $("waits-text"), $("histogram-most"));
const demo = new Demo($("demo"), $("demo-output"), $("demo-note"), () => choose("demo"));
const workers = new Workers($("workers"), $("workers-body"), $("worker"), () => show());
let chosen = "read";
let latest = null; // the workers of the last answer
let shown = null; // the workers that the figures are of

function choose(name) {
  const button = document.querySelector(`#choice input[value="${name}"]`);
  if (!button) return;
  button.checked = true;
  if (name === chosen) return;
  chosen = name;
  shown = null;
  if (latest) show();
}

function offer(names) {
  const offered = [...document.querySelectorAll("#choice input")].map((button) => button.value);
  if (offered.join() === names.join()) return;
  const buttons = names.map((name) => {
    const button = make("input", { type: "radio", name: "purgatory", value: name });
    button.addEventListener("change", () => choose(name));
    return make("label", {}, button, make("span", {}, name));
  });
  $("choice").replaceChildren(...buttons);
  choose(names.includes(chosen) ? chosen : names[0]);
}

function take(answer) {
  if (!answer.workers.length) return; // the server is about to stop
  const first = latest === null;
  latest = inOrder(answer.workers);
  offer([...new Set(latest.flatMap(({ purgatories }) => Object.keys(purgatories)))]);
  if (first && latest[0].demo) choose("demo"); // another viewer has started it already
  show();
}

function show() {
  workers.update(latest, chosen);
  const seen = latest.filter((worker) => !workers.chosen || idOf(worker) === workers.chosen);
  const snapshot = seen.length > 1 ? sum(seen) : seen[0];
  const ids = seen.map(idOf).join("\n");
  if (ids !== shown) {
    rings.reset();
    counters.reset();
  }
  shown = ids;
  const purgatory = snapshot.purgatories[chosen];
  if (!purgatory) return; // this worker has no such one
  rings.update(purgatory, snapshot.time);
  counters.update({ ...purgatory, requests: snapshot.requests }, snapshot.time);
  levels.update(purgatory, rings.levels);
  histogram.update(purgatory, snapshot.bounds);
  demo.update(snapshot.demo);
  say($("centre-count"), count(purgatory.statistics.num_delayed));
  say($("process"), seen.length > 1 ? `${count(seen.length)} workers.` : `${nameOf(snapshot)}.`);
  say($("version"), seen[0].version);
  const most = Math.max(0, ...purgatory.wheels.flatMap(({ counts }) => counts));
  const stands = Math.round(rings.particles.stands);
  say($("ramp-text"), `operations in a bucket: 0 to ${count(most)}`);
  say($("note"), `${NOTES[chosen] ?? ""}${stands > 1 ? ` Each moving dot is ${count(stands)} operations.` : ""}`);
  $("rings").setAttribute(
    "aria-label",
    `Timing wheels of the purgatory ${chosen}, ${rings.levels} rings: the table of levels has their operations`,
  );
}

function tell(state, text) {
  $("state").dataset.state = state;
  say($("state-text"), text);
}

async function followStatistics() {
  let after = null;
  while (true) {
    const looking = new AbortController();
    const { signal } = looking;
    // A hidden page costs the server nothing.
    const hide = () => document.hidden && looking.abort();
    document.addEventListener("visibilitychange", hide);
    hide();
    try {
      const poll = () => askJson(`v1/statistics${after === null ? "" : `?after=${after}`}`, { signal });
      const answer = await persist(poll, { signal, onAway: () => tell("away", "reconnecting…") });
      if (answer !== undefined) {
        tell("live", "live");
        take(answer);
        // Answered at once with nothing new: the server is about to stop.
        if (answer.number === after) await sleep(0.25, signal);
        after = answer.number;
      }
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      tell("away", `the server refuses the statistics: ${error.message}`);
      await sleep(5, signal);
    }
    document.removeEventListener("visibilitychange", hide);
    if (document.hidden)
      await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
  }
}

function animate() {
  requestAnimationFrame(animate);
  if (!rings.calm.matches) rings.frame();
}

const streams = new Streams();
// A browser may keep a page that was left, and its connections with it.
addEventListener("pagehide", () => streams.stop());
addEventListener("pageshow", ({ persisted }) => persisted && location.reload());
animate();
followStatistics();
