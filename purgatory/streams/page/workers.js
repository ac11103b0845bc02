// Several workers: the snapshot of one of them, or the sum of all.

import { count, make, rate, say } from "./text.js";

const SPAN = 2; // seconds over which rates are taken

/** The name of a worker. One of several has the number of its process in it. */
export const nameOf = ({ instance, process }) =>
  instance.endsWith(`-${process}`) ? instance : `${instance}, process ${process}`;

/** What tells a worker from all others, those before a restart too. */
export const idOf = ({ instance, process, started }) => `${instance} ${process} ${started}`;

/** The workers in the order of their names. */
export const inOrder = (workers) => workers.toSorted((one, other) => (nameOf(one) < nameOf(other) ? -1 : 1));

/** The sum of the snapshots of several workers, as if there was one worker. */
export function sum(workers) {
  const [first] = workers;
  const offset = (worker) => worker.clock - worker.time;
  const latest = Math.max(...workers.map(({ clock }) => clock));
  const names = [...new Set(workers.flatMap(({ purgatories }) => Object.keys(purgatories)))];
  const added = (name) => {
    const parts = workers
      .filter(({ purgatories }) => purgatories[name])
      .map((worker) => ({ ...worker.purgatories[name], ahead: offset(worker) - offset(first) }));
    const { tick } = parts[0].timer;
    return {
      statistics: total(parts.map(({ statistics }) => statistics)),
      timer: { ...total(parts.map(({ timer }) => timer)), tick },
      wheels: wheelsOf(parts, tick),
      waits: Object.fromEntries(
        Object.keys(parts[0].waits).map((outcome) => [outcome, columns(parts.map(({ waits }) => waits[outcome]))]),
      ),
    };
  };
  return {
    ...first,
    clock: latest,
    time: latest - offset(first),
    requests: total(workers.map(({ requests }) => requests)),
    purgatories: Object.fromEntries(names.map((name) => [name, added(name)])),
  };
}

// Peaks of several workers have been at several times: they have no sum.
function total(records) {
  const keys = Object.keys(records[0]).filter((key) => typeof records[0][key] === "number" && !key.startsWith("peak"));
  return Object.fromEntries(keys.map((key) => [key, records.reduce((all, each) => all + each[key], 0)]));
}

const columns = (rows) => rows[0].map((_, column) => rows.reduce((all, row) => all + row[column], 0));

// The clocks of two machines differ, so that the same moment lies in another bucket.
function wheelsOf(parts, tick) {
  const levels = Math.max(...parts.map(({ wheels }) => wheels.length));
  return Array.from({ length: levels }, (_, level) => {
    const rows = parts.flatMap(({ wheels, ahead }) => {
      if (!wheels[level]) return [];
      const { unit, counts } = wheels[level];
      const size = counts.length;
      const shift = Math.round(ahead / tick / unit) % size;
      return [{ unit, counts: counts.map((_, slot) => counts[(slot - shift + size) % size]) }];
    });
    return { unit: rows[0].unit, counts: columns(rows.map(({ counts }) => counts)) };
  });
}

/** The table of the workers, in which one can be chosen. */
export class Workers {
  constructor(card, body, choice, onChoice) {
    this.card = card;
    this.body = body;
    this.choice = choice;
    this.past = new Map();
    choice.addEventListener("change", () => onChoice());
  }

  /** The id of the chosen worker; empty for all. */
  get chosen() {
    return this.choice.value;
  }

  /** A row for each worker, with the figures of one of its purgatories. */
  update(workers, name) {
    this.card.hidden = workers.length < 2;
    this.offer(workers);
    while (this.body.rows.length > workers.length) this.body.lastChild.remove();
    while (this.body.rows.length < workers.length)
      this.body.append(make("tr", {}, make("th", { scope: "row" }), ...Array.from({ length: 4 }, () => make("td"))));
    const ids = new Set(workers.map(idOf));
    for (const id of this.past.keys()) if (!ids.has(id)) this.past.delete(id);
    workers.forEach((worker, row) => {
      const { cells } = this.body.rows[row];
      const found = worker.purgatories[name]?.statistics;
      const texts = found
        ? [found.num_delayed, found.satisfied, found.expired].map(count).concat(this.rate(worker, name, found))
        : ["–", "–", "–", "–"];
      [nameOf(worker), ...texts].forEach((text, index) => say(cells[index], text));
    });
  }

  offer(workers) {
    const ids = ["", ...workers.map(idOf)];
    if ([...this.choice.options].map(({ value }) => value).join("\n") === ids.join("\n")) return;
    const { chosen } = this;
    const names = ["all workers", ...workers.map(nameOf)];
    this.choice.replaceChildren(...ids.map((value, index) => make("option", { value }, names[index])));
    this.choice.value = ids.includes(chosen) ? chosen : "";
  }

  /** Operations that have finished, a second. */
  rate(worker, name, { satisfied, expired, closed, cancelled, failed }) {
    const done = satisfied + expired + closed + cancelled + failed;
    const id = idOf(worker);
    const past = this.past.get(id)?.name === name ? this.past.get(id).points : [];
    if (past.at(-1)?.time !== worker.time) past.push({ time: worker.time, done });
    while (past.length > 2 && past[1].time <= worker.time - SPAN) past.shift();
    this.past.set(id, { name, points: past });
    const seconds = worker.time - past[0].time;
    return seconds > 0.4 ? rate((done - past[0].done) / seconds) : "–";
  }
}
