// Numbers and times in words, and text into the page: only ever as text.

const WHOLE = new Intl.NumberFormat("en");

/** A whole number. */
export const count = (number) => WHOLE.format(number);

/** A rate, with as many digits as say something. */
export const rate = (number) => (number >= 9.95 ? WHOLE.format(Math.round(number)) : String(Number(number.toFixed(1))));

/** A span of time. */
export function span(seconds) {
  if (seconds < 1) return `${tidy(seconds * 1000)} ms`;
  if (seconds < 120) return `${tidy(seconds)} s`;
  if (seconds < 3600) return parts(seconds, 60, "min", "s");
  if (seconds < 86400) return parts(seconds / 60, 60, "h", "min");
  return parts(seconds / 3600, 24, "d", "h");
}

const tidy = (number) => Number(number.toPrecision(3));

function parts(number, size, large, small) {
  const rest = Math.round(number % size);
  return `${Math.floor(number / size)} ${large}${rest ? ` ${rest} ${small}` : ""}`;
}

/** Let `element` say `text`, and leave it alone if it does. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A new element, with text, attributes and children. */
export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children); // strings become text
  return element;
}
