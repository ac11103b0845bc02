// The slider of the demo traffic. Its scale is logarithmic: nothing, then 10 to 10,000.

import { Refused, ask } from "./polling.js";
import { count, say } from "./text.js";

const [FEWEST, MOST] = [10, 10_000];
const QUIET = 150; // milliseconds without a movement until the server is asked

export class Demo {
  constructor(slider, output, note, onWanted) {
    this.slider = slider;
    this.output = output;
    this.note = note;
    this.onWanted = onWanted;
    this.timer = null;
    this.asked = null; // what the server has been asked for and does not say yet
    slider.addEventListener("input", () => {
      this.show(this.value);
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.ask(), QUIET);
    });
  }

  get value() {
    const steps = Number(this.slider.max) - 1;
    const place = Number(this.slider.value);
    return place === 0 ? 0 : round(FEWEST * (MOST / FEWEST) ** ((place - 1) / steps));
  }

  /** `pending` is what the server says is wanted; `null` if it makes no demo traffic. */
  update(pending) {
    this.slider.disabled = pending === null;
    if (pending === null) {
      say(this.note, "Off. To use it, start one process with: purgatory serve --demo");
      return;
    }
    if (!this.failed) say(this.note, "It stops ten seconds after the last viewer has left.");
    if (this.asked === pending) this.asked = null;
    if (this.timer !== null || this.asked !== null) return;
    const steps = Number(this.slider.max) - 1;
    const place = pending ? 1 + (steps * Math.log(pending / FEWEST)) / Math.log(MOST / FEWEST) : 0;
    this.slider.value = String(Math.max(0, Math.round(place)));
    this.show(pending);
  }

  show(pending) {
    say(this.output, count(pending));
    this.slider.setAttribute("aria-valuetext", pending ? `${count(pending)} operations` : "none");
  }

  async ask() {
    this.timer = null;
    const pending = this.value;
    this.asked = pending;
    this.failed = false;
    if (pending) this.onWanted();
    try {
      const headers = { "content-type": "application/json" };
      await ask("v1/demo", { method: "PUT", headers, body: JSON.stringify({ pending }) });
    } catch (error) {
      this.failed = true;
      this.asked = null;
      say(this.note, error instanceof Refused ? `Refused: ${error.message}` : "The server cannot be reached.");
    }
  }
}

/** To two digits. */
function round(number) {
  return Number(number.toPrecision(2));
}
