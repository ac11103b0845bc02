// The page: it follows the topic of statistics by long polling, as any client would, and shows what it says.

import { Demo } from "./demo.js";
import { Counters, Histogram, Levels } from "./panels.js";
import { Refused, follow, sleep } from "./polling.js";
import { Rings } from "./rings.js";
import { count, make, say } from "./text.js";
import { Topics } from "./topics.js";

const TOPIC = "__statistics";
const NOW_ON = Number.MAX_SAFE_INTEGER; // ahead of all there is: the next one
const WAIT = 25;
const PATIENCE = 2000; // milliseconds

const NOTES = {
  fetch: "Fetches that wait for messages. This page's own polls are among them.",
  produce: "Publishers that wait for replicas to acknowledge (?acks=1).",
  throttle: "Publishers that are faster than --publish-rate, and wait for their answers.",
  demo: "Made-up operations: half meet their condition, half their deadline.",
};

const $ = (id) => document.getElementById(id);

const rings = new Rings($("rings"), $("motion"));
const counters = new Counters($("counters"));
const levels = new Levels($("levels-body"));
const histogram = new Histogram($("histogram"), $("axis"), $("waits-text"));
const demo = new Demo($("demo"), $("demo-output"), $("demo-note"), () => choose("demo"));
let chosen = "fetch";
let latest = null;
let shownAt = 0; // milliseconds

function choose(name) {
  const button = document.querySelector(`#choice input[value="${name}"]`);
  if (!button) return;
  button.checked = true;
  if (name === chosen) return;
  chosen = name;
  rings.reset();
  counters.reset();
  if (latest) show(latest);
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

function isAnother(snapshot) {
  return latest !== null && ["instance", "process", "started"].some((key) => latest[key] !== snapshot[key]);
}

// There may be several processes behind the address. It is one that is shown, as long as it answers.
function take(snapshot) {
  const now = performance.now();
  if (isAnother(snapshot) && now - shownAt < PATIENCE) return;
  shownAt = now;
  show(snapshot);
}

function show(snapshot) {
  if (isAnother(snapshot)) {
    rings.reset();
    counters.reset();
  }
  const first = latest === null;
  latest = snapshot;
  offer(Object.keys(snapshot.purgatories));
  if (first && snapshot.demo) choose("demo"); // another viewer has started it already
  const purgatory = snapshot.purgatories[chosen];
  rings.update(purgatory, snapshot.time);
  counters.update(purgatory, snapshot.time);
  levels.update(purgatory, rings.levels);
  histogram.update(purgatory, snapshot.bounds);
  demo.update(snapshot.demo);
  say($("centre-count"), count(purgatory.statistics.num_delayed));
  say($("process"), `${snapshot.instance}, process ${snapshot.process}.`);
  const most = Math.max(0, ...purgatory.wheels.flatMap(({ counts }) => counts));
  const stands = Math.round(rings.particles.stands);
  say($("ramp-text"), `operations in a bucket: 0 to ${count(most)}`);
  say($("note"), `${NOTES[chosen] ?? ""}${stands > 1 ? ` A moving dot stands for ${count(stands)}.` : ""}`);
  $("rings").setAttribute(
    "aria-label",
    `Timing wheels of the purgatory ${chosen}, ${rings.levels} rings; the table says what they hold`,
  );
}

function tell(state, text) {
  $("state").dataset.state = state;
  say($("state-text"), text);
}

async function followStatistics() {
  while (true) {
    const looking = new AbortController();
    // A hidden page costs the server nothing.
    const hide = () => document.hidden && looking.abort();
    document.addEventListener("visibilitychange", hide);
    hide();
    try {
      await follow(TOPIC, NOW_ON, {
        signal: looking.signal,
        wait: WAIT,
        latest: true,
        onAnswer: (messages) => {
          tell("live", "live");
          if (messages.length) take(messages.at(-1).value);
        },
        onAway: () => tell("away", "reconnecting…"),
      });
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      tell("away", `the statistics are refused: ${error.message}`);
      await sleep(5, looking.signal);
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

new Topics();
animate();
followStatistics();
