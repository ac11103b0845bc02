// The changes between two snapshots of a purgatory, and their places on its wheels.

const FINISHED = ["satisfied", "expired", "closed", "cancelled", "failed"];

/**
 * What moved: lists of `{level, slot, count}` for those that have entered, cascaded or left before their deadlines, and
 * how many have finished in each way. Levels and slots count from 0, times are in seconds.
 */
export function changes(before, after, timeBefore, timeAfter) {
  const entered = [];
  const cascaded = [];
  const left = [];
  const { tick } = after.timer;
  after.wheels.forEach(({ unit, counts }, level) => {
    const old = before.wheels[level]?.counts ?? counts.map(() => 0);
    const passed = slotsPassed(Math.floor(timeBefore / tick), Math.floor(timeAfter / tick), unit, counts.length);
    counts.forEach((count, slot) => {
      if (passed.has(slot)) {
        // The hand has come to it: its operations have moved to lower levels.
        if (level > 0 && old[slot]) cascaded.push({ level, slot, count: old[slot] });
        if (count) entered.push({ level, slot, count });
      } else if (count > old[slot]) {
        entered.push({ level, slot, count: count - old[slot] });
      } else if (count < old[slot]) {
        left.push({ level, slot, count: old[slot] - count });
      }
    });
  });
  const finished = {};
  for (const outcome of FINISHED)
    finished[outcome] = Math.max(0, after.statistics[outcome] - before.statistics[outcome]);
  const gone = FINISHED.reduce((sum, outcome) => sum + finished[outcome], 0);
  const arrived = Math.max(0, after.statistics.num_delayed - before.statistics.num_delayed + gone);
  return { entered, cascaded, left, finished, arrived };
}

function slotsPassed(tickBefore, tickAfter, unit, size) {
  const first = Math.floor(tickBefore / unit) + 1;
  const last = Math.floor(tickAfter / unit);
  const slots = new Set();
  for (let bucket = Math.max(first, last - size + 1); bucket <= last; bucket++) slots.add(bucket % size);
  return slots;
}
