// Counters, the table of levels, and the histogram of waiting times.

import { count, make, rate, say, span } from "./text.js";

const SPAN = 2; // seconds over which rates are taken

const COUNTERS = [
  { key: "num_delayed", name: "Waiting", remark: peak },
  { key: "satisfied", name: "By condition", swatch: "satisfied" },
  { key: "expired", name: "By deadline", swatch: "expired" },
  { key: "cancelled", name: "Cancelled" },
  { key: "completed_at_once", name: "Completed at once" },
  { key: "failed", name: "Failed" },
  { key: "closed", name: "Closed" },
  { key: "missed", name: "Missed", remark: () => "found only at the deadline" },
  { key: "cascaded", name: "Cascaded" },
  { key: "wake_ups", name: "Timer wake-ups" },
  { key: "purged", name: "Dead entries removed", remark: removed },
  { key: "parked", name: "Requests parked", remark: ({ requests }) => `${count(requests.not_parked)} not parked` },
];

// An entry of a finished operation leaves a watcher list when its key is checked, or with others in a purge.
function removed({ statistics: { purges } }) {
  if (!purges) return "by checks";
  return `by checks and ${count(purges)} ${purges === 1 ? "purge" : "purges"}`;
}

// Of several workers there is none.
function peak({ statistics: { peak_delayed: most } }) {
  return most === undefined ? "" : `peak ${count(most)}`;
}

export class Counters {
  constructor(list) {
    this.cells = COUNTERS.map((counter) => {
      const swatch = counter.swatch ? [make("i", { class: `swatch ${counter.swatch}`, "aria-hidden": "true" })] : [];
      const value = make("span", { "data-counter": counter.key }, "–");
      const note = make("small");
      list.append(make("div", {}, make("dt", {}, ...swatch, counter.name), make("dd", {}, value, note)));
      return { ...counter, value, note };
    });
    this.past = [];
  }

  reset() {
    this.past = [];
  }

  update(purgatory, time) {
    const values = { ...purgatory.statistics, ...purgatory.timer, ...purgatory.requests };
    this.past.push({ time, values });
    while (this.past.length > 2 && this.past[1].time <= time - SPAN) this.past.shift();
    const [oldest] = this.past;
    const seconds = time - oldest.time;
    for (const { key, remark, value, note } of this.cells) {
      say(value, count(values[key]));
      const passed = seconds > 0.5 ? `${rate((values[key] - oldest.values[key]) / seconds)} per second` : "";
      say(note, remark ? remark(purgatory) : passed);
    }
  }
}

export class Levels {
  constructor(body) {
    this.body = body;
  }

  /** A row for each level that is drawn. */
  update(purgatory, levels) {
    const { tick } = purgatory.timer;
    const size = purgatory.wheels[0].counts.length;
    while (this.body.rows.length > levels) this.body.lastChild.remove();
    while (this.body.rows.length < levels) {
      this.body.append(
        make(
          "tr",
          {},
          make("th", { scope: "row" }, String(this.body.rows.length + 1)),
          ...Array.from({ length: 4 }, () => make("td")),
        ),
      );
    }
    for (let level = 0; level < levels; level++) {
      const counts = purgatory.wheels[level]?.counts ?? [];
      const unit = tick * size ** level;
      const total = counts.reduce((sum, each) => sum + each, 0);
      const used = counts.filter(Boolean).length;
      const texts = [span(unit), span(unit * size), `${used} of ${size}`, count(total)];
      texts.forEach((text, index) => say(this.body.rows[level].cells[index + 1], text));
    }
  }
}

const SVG = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT] = [400, 150];

export class Histogram {
  constructor(drawing, axis, caption, scale) {
    this.drawing = drawing;
    this.scale = scale;
    this.axis = axis;
    this.caption = caption;
    this.bars = null;
  }

  update(purgatory, bounds) {
    this.bars ??= this.build(bounds);
    const { satisfied, expired, closed, cancelled, failed } = purgatory.waits;
    const stacks = satisfied.map((number, bar) => [number, expired[bar], closed[bar] + cancelled[bar] + failed[bar]]);
    const totals = stacks.map((stack) => stack.reduce((sum, each) => sum + each, 0));
    const most = Math.max(1, ...totals);
    const all = totals.reduce((sum, each) => sum + each, 0);
    stacks.forEach((stack, bar) => {
      let top = HEIGHT;
      stack.forEach((number, part) => {
        const height = (number / most) * (HEIGHT - 4);
        top -= height;
        set(this.bars[bar].parts[part], "y", top.toFixed(2));
        set(this.bars[bar].parts[part], "height", height.toFixed(2));
      });
      const [met, late, other] = stack;
      const rest = other ? `, ${count(other)} cancelled, closed or failed` : "";
      say(
        this.bars[bar].title,
        `${this.bars[bar].name}: ${count(met)} by condition, ${count(late)} by deadline${rest}`,
      );
    });
    say(this.scale, all ? `operations per bar: up to ${count(most)}` : "operations per bar");
    if (!all) say(this.caption, "No operation has waited yet.");
    else
      say(
        this.caption,
        `${count(all)} operations have waited: 50 % ${within(totals, bounds, 0.5 * all)}, 99 % ${within(totals, bounds, 0.99 * all)}.`,
      );
  }

  build(bounds) {
    const step = WIDTH / (bounds.length + 1);
    const base = document.createElementNS(SVG, "line");
    for (const [key, value] of Object.entries({ x1: 0, x2: WIDTH, y1: HEIGHT, y2: HEIGHT }))
      base.setAttribute(key, value);
    const bars = Array.from({ length: bounds.length + 1 }, (_, bar) => {
      const group = document.createElementNS(SVG, "g");
      const title = document.createElementNS(SVG, "title");
      const parts = ["satisfied", "expired", "other"].map((name) => {
        const part = document.createElementNS(SVG, "rect");
        for (const [key, value] of Object.entries({ class: name, x: bar * step + 1.2, width: step - 2.4, height: 0 }))
          part.setAttribute(key, value);
        return part;
      });
      group.append(title, ...parts);
      this.drawing.append(group);
      const name = bar < bounds.length ? `up to ${span(bounds[bar])}` : `more than ${span(bounds.at(-1))}`;
      return { title, parts, name };
    });
    this.drawing.append(base);
    bounds.forEach((bound, bar) => {
      if (!Number.isInteger(Math.log10(bound * 1000)) && Math.abs(Math.log10(bound) % 1) > 1e-9) return;
      const label = make("span", {}, span(bound));
      label.style.left = `${(100 * (bar + 1)) / (bounds.length + 1)}%`;
      this.axis.append(label);
    });
    return bars;
  }
}

function set(element, name, value) {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

function within(totals, bounds, wanted) {
  let sum = 0;
  const bar = totals.findIndex((number) => (sum += number) >= wanted);
  return bar < bounds.length ? `up to ${span(bounds[bar])}` : `more than ${span(bounds.at(-1))}`;
}
