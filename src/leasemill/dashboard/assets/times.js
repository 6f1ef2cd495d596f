// Counts down to what will happen: between two updates the browser's own clock measures what has passed.
const UNITS = [
  [86400, "d"],
  [3600, "h"],
  [60, "min"],
];
const since = new WeakMap();

function written(seconds) {
  for (const [size, unit] of UNITS) if (seconds >= size) return `${(seconds / size).toFixed(1)} ${unit}`;
  return `${seconds.toFixed(1)} s`;
}

function tick() {
  if (document.hidden) return;
  for (const element of document.querySelectorAll("[data-left-us]")) {
    const given = element.dataset.leftUs;
    let known = since.get(element);
    if (!known || known.given !== given) {
      known = { given, at: performance.now() };
      since.set(element, known);
    }
    const left = Number(given) / 1e6 - (performance.now() - known.at) / 1e3;
    const text = left > 0 ? `in ${written(left)}` : `${written(-left)} ago`;
    if (element.textContent !== text) element.textContent = text;
    element.classList.toggle("over", left <= 0);
  }
}

export function startTimes() {
  tick();
  setInterval(tick, 250);
}
