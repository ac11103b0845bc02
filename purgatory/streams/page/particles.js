// Dots for operations that enter, cascade and complete. There are never more than a few hundred, however many do.

const MOST = 90; // new ones for one snapshot
const ALIVE = 900;
const KINDS = ["entering", "cancelled", "satisfied", "expired"];
const TURN = 2 * Math.PI;

export class Particles {
  constructor() {
    this.alive = [];
    this.stands = 1; // for how many operations a dot stands
  }

  clear() {
    this.alive.length = 0;
  }

  /** Show `moved`, of `changes()`, from `now` on for `duration` seconds. Times are in seconds. */
  add(moved, shape, now, duration) {
    const { entered, cascaded, left, finished, arrived } = moved;
    const drops = cascaded.reduce((sum, { count }) => sum + count, 0);
    const others = finished.closed + finished.cancelled + finished.failed;
    const events = arrived + drops + finished.satisfied + finished.expired + others;
    if (!events) return;
    const share = Math.min(1, MOST / events);
    this.stands += (1 / share - this.stands) * 0.1;
    const room = ALIVE - this.alive.length;
    const each = (number, make) => {
      // 0.3 of a dot is a dot in three of ten cases.
      for (let dots = Math.min(Math.floor(number * share + Math.random()), room); dots > 0; dots--) {
        const [kind, from, to, life] = make();
        this.alive.push({
          kind,
          from,
          to,
          born: now + Math.random() * duration,
          life: life * (0.8 + 0.4 * Math.random()),
        });
      }
    };
    each(arrived, () => {
      const place = spot(shape, draw(entered) ?? { level: shape.levels - 1, slot: Math.random() * 20 });
      return ["entering", { radius: shape.rim, turn: place.turn - 0.06 }, place, 0.55];
    });
    for (const source of cascaded) {
      each(source.count, () => {
        const from = spot(shape, source);
        const radius = shape.middle(source.level - 1);
        return ["entering", from, { radius, turn: from.turn + (Math.random() - 0.5) * 0.7 }, 0.7];
      });
    }
    const leave = (kind, life) => () => {
      const from = spot(shape, draw(left) ?? draw(cascaded) ?? draw(entered) ?? { level: 0, slot: Math.random() * 20 });
      return [kind, from, { radius: shape.rim, turn: from.turn + 0.05 }, life];
    };
    each(finished.satisfied, leave("satisfied", 0.9));
    each(others, leave("cancelled", 0.9));
    each(finished.expired, () => {
      const turn = Math.random();
      return ["expired", { radius: shape.middle(0), turn }, { radius: shape.hole * 0.92, turn: turn + 0.06 }, 0.6];
    });
  }

  /** Draw them where they are at `now`. A kind is one path, which is much faster than as many as there are dots. */
  draw(context, shape, colours, now) {
    this.alive = this.alive.filter((dot) => now < dot.born + dot.life);
    for (const kind of KINDS) {
      // A rim in the colour of the ground, so that they are seen on a bucket of any shade.
      context.strokeStyle = colours.card;
      context.lineWidth = (kind === "entering" ? 1 : 2) * shape.scale;
      context.fillStyle = colours[kind];
      context.beginPath();
      for (const dot of this.alive) {
        if (dot.kind !== kind || now < dot.born) continue;
        const part = (now - dot.born) / dot.life;
        const eased = part * part * (3 - 2 * part);
        const radius = dot.from.radius + (dot.to.radius - dot.from.radius) * eased;
        const angle = (dot.from.turn + (dot.to.turn - dot.from.turn) * eased) * TURN;
        const x = shape.centre + radius * Math.sin(angle);
        const y = shape.centre - radius * Math.cos(angle);
        const size = (kind === "entering" ? 1.9 : 3.3) * shape.scale * (1 - part ** 4);
        if (kind === "expired") diamond(context, x, y, 1.3 * size);
        else {
          context.moveTo(x + size, y);
          context.arc(x, y, size, 0, TURN);
        }
      }
      context.stroke();
      context.fill();
    }
  }
}

function diamond(context, x, y, size) {
  context.moveTo(x, y - size);
  context.lineTo(x + size, y);
  context.lineTo(x, y + size);
  context.lineTo(x - size, y);
  context.closePath();
}

/** Somewhere in a bucket. */
function spot(shape, { level, slot }) {
  const depth = (Math.random() - 0.5) * 0.6 * shape.width;
  return { radius: shape.middle(level) + depth, turn: (slot + 0.15 + 0.7 * Math.random()) / shape.slots };
}

/** One of `places`, the more likely the more operations it is about. */
function draw(places) {
  let rest = Math.random() * places.reduce((sum, { count }) => sum + count, 0);
  return places.find(({ count }) => (rest -= count) < 0);
}
