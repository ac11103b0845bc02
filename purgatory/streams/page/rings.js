// The wheels as rings: the lowest level innermost, its buckets clockwise from the top, and a hand on each.
//
// Two canvases lie on each other: the buckets change with each snapshot, hands and dots with each frame.

import { changes } from "./changes.js";
import { Particles } from "./particles.js";
import { span } from "./text.js";

const TURN = 2 * Math.PI;
const TRAIL = 10; // pieces of which the fading trail of a hand is made
const FEWEST = 4; // levels that are always shown
const DOTS = 5; // up to so many operations in a bucket are drawn one by one

export class Rings {
  constructor(still, moving) {
    this.still = still;
    this.moving = moving;
    this.particles = new Particles();
    this.calm = matchMedia("(prefers-reduced-motion: reduce)");
    this.levels = FEWEST;
    this.most = 1;
    this.offset = null; // the server's time minus the browser's, in seconds
    this.purgatory = null;
    this.time = 0;
    new ResizeObserver(() => this.fit()).observe(still);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.fit());
    this.fit();
  }

  /** Begin again, with another purgatory or another server. */
  reset() {
    this.purgatory = null;
    this.offset = null;
    this.levels = FEWEST;
    this.most = 1;
    this.particles.clear();
  }

  /** Show `purgatory` as it was at `time` of the server, which has just come in. */
  update(purgatory, time) {
    const now = performance.now() / 1000;
    const drift = time - now - (this.offset ?? 0);
    // A snapshot that was long under way must not make the hands jump.
    this.offset = this.offset === null || Math.abs(drift) > 1 ? time - now : this.offset + 0.1 * drift;
    const passed = time - this.time;
    const used = purgatory.wheels.findLastIndex(({ counts }) => counts.some(Boolean)) + 1;
    const levels = Math.max(this.levels, used);
    if (levels !== this.levels) {
      this.levels = levels;
      this.particles.clear();
      this.measure();
    }
    if (this.purgatory && !this.calm.matches && passed > 0 && passed < 2) {
      const moved = changes(this.purgatory, purgatory, this.time, time);
      this.particles.add(moved, this.shape, now, Math.min(passed, 0.6));
    }
    this.purgatory = purgatory;
    this.time = time;
    const most = Math.max(DOTS, ...purgatory.wheels.flatMap(({ counts }) => counts));
    this.most = Math.max(most, 0.98 * this.most);
    this.drawBuckets();
    if (this.calm.matches) this.frame();
  }

  /** Draw what moves. To be called for each frame. */
  frame() {
    const context = this.moving.getContext("2d");
    const { shape } = this;
    context.clearRect(0, 0, this.moving.width, this.moving.height);
    if (!this.purgatory) return;
    const now = performance.now() / 1000;
    const ticks = (now + this.offset) / this.purgatory.timer.tick;
    for (let level = 0; level < Math.min(this.levels, this.purgatory.wheels.length); level++) {
      const { unit, counts } = this.purgatory.wheels[level];
      const revolution = unit * counts.length * this.purgatory.timer.tick;
      const turn = (ticks / (unit * counts.length)) % 1;
      this.drawHand(context, level, turn, revolution);
    }
    this.particles.draw(context, shape, this.colours, now);
  }

  fit() {
    if (this.shape && !this.still.clientWidth) return; // not laid out, so not visible
    const ratio = Math.min(devicePixelRatio || 1, 2);
    const side = Math.max(1, Math.round(this.still.clientWidth * ratio));
    for (const canvas of [this.still, this.moving]) canvas.width = canvas.height = side;
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const names = ["card", "ink", "muted", "empty", "hand", "entering", "satisfied", "expired", "cancelled"];
    this.colours = Object.fromEntries(names.map((name) => [name, colour(name)]));
    this.ramp = ["few", "some", "many"].map((name) => parse(colour(name)));
    this.scale = ratio;
    this.particles.clear();
    this.measure();
    this.drawBuckets();
  }

  measure() {
    const centre = this.still.width / 2;
    const scale = this.scale * Math.max(0.7, Math.min(1, this.still.width / this.scale / 520));
    const outer = centre - 16 * scale;
    const hole = outer * 0.2;
    const width = (outer - hole) / this.levels;
    const middle = (level) => hole + (level + 0.5) * width;
    this.shape = { centre, scale, hole, width, middle, rim: centre - 5 * scale, levels: this.levels, slots: 20 };
  }

  drawBuckets() {
    const context = this.still.getContext("2d");
    const { centre, width, middle, scale } = this.shape;
    context.clearRect(0, 0, this.still.width, this.still.height);
    if (!this.purgatory) return;
    const { wheels, timer } = this.purgatory;
    context.lineWidth = width - 4 * scale;
    for (let level = 0; level < this.levels; level++) {
      const counts = wheels[level]?.counts ?? wheels[0].counts.map(() => 0);
      const radius = middle(level);
      this.shape.slots = counts.length;
      const gap = (1.4 * scale) / radius;
      counts.forEach((count, slot) => {
        const from = (slot / counts.length) * TURN - TURN / 4 + gap;
        const to = ((slot + 1) / counts.length) * TURN - TURN / 4 - gap;
        context.strokeStyle = count ? this.shade(count) : this.colours.empty;
        context.beginPath();
        context.arc(centre, centre, radius, from, to);
        context.stroke();
        if (count && count <= DOTS) this.drawDots(context, count, radius, from, to);
      });
    }
    context.font = `600 ${Math.round(10.5 * scale)}px system-ui, "DejaVu Sans", sans-serif`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.lineJoin = "round";
    context.lineWidth = 4 * scale;
    context.strokeStyle = this.colours.card;
    context.fillStyle = this.colours.ink;
    for (let level = 0; level < this.levels; level++) {
      const text = span(timer.tick * wheels[0].counts.length ** level);
      context.strokeText(text, centre, centre + middle(level));
      context.fillText(text, centre, centre + middle(level));
    }
  }

  drawDots(context, count, radius, from, to) {
    const { centre, scale } = this.shape;
    context.fillStyle = this.colours.entering;
    context.beginPath();
    for (let dot = 1; dot <= count; dot++) {
      const angle = from + ((to - from) * dot) / (count + 1);
      const x = centre + radius * Math.cos(angle);
      const y = centre + radius * Math.sin(angle);
      context.moveTo(x + 2 * scale, y);
      context.arc(x, y, 2 * scale, 0, TURN);
    }
    context.fill();
  }

  drawHand(context, level, turn, revolution) {
    const { centre, width, middle, scale } = this.shape;
    const radius = middle(level);
    const angle = turn * TURN - TURN / 4;
    context.strokeStyle = this.colours.hand;
    if (revolution < 0.1) {
      // Fifty times round in a second: a hand would not be visible.
      context.globalAlpha = 0.07;
      context.lineWidth = width - 4 * scale;
      context.beginPath();
      context.arc(centre, centre, radius, 0, TURN);
      context.stroke();
      context.globalAlpha = 1;
      return;
    }
    if (this.calm.matches && revolution < 5) return;
    const length = (revolution < 1 ? 0.45 : 0.16) * TURN;
    context.lineWidth = width - 4 * scale;
    for (let piece = 0; piece < TRAIL; piece++) {
      context.globalAlpha = 0.13 * (1 - (piece + 0.5) / TRAIL);
      context.beginPath();
      context.arc(centre, centre, radius, angle - (length * (piece + 1)) / TRAIL, angle - (length * piece) / TRAIL);
      context.stroke();
    }
    context.globalAlpha = 1;
    context.lineWidth = 2.4 * scale;
    context.lineCap = "round";
    context.beginPath();
    const [inner, outer] = [radius - width / 2 + 3 * scale, radius + width / 2 - 3 * scale];
    context.moveTo(centre + inner * Math.cos(angle), centre + inner * Math.sin(angle));
    context.lineTo(centre + outer * Math.cos(angle), centre + outer * Math.sin(angle));
    context.stroke();
    context.lineCap = "butt";
  }

  /** The more operations, the stronger, by the logarithm. */
  shade(count) {
    const place = (Math.log1p(count) / Math.log1p(this.most)) * (this.ramp.length - 1);
    const below = Math.min(Math.floor(place), this.ramp.length - 2);
    const [from, to] = [this.ramp[below], this.ramp[below + 1]];
    const mixed = from.map((value, index) => Math.round(value + (to[index] - value) * (place - below)));
    return `rgb(${mixed.join(" ")})`;
  }
}

function parse(hex) {
  return [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16));
}
