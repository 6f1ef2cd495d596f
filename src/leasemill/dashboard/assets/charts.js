// Shows the values of a chart where the pointer is.

function dotsOf(chart) {
  return [...chart.querySelectorAll("[data-dots]")].map((one) =>
    one.value
      .split(",")
      .filter(Boolean)
      .map((text) => text.split(":").map((part) => (part === "" ? NaN : Number(part)))),
  );
}

function shown(value) {
  if (Number.isNaN(value)) return "–";
  if (Number.isInteger(value) || value >= 100) return Math.round(value).toLocaleString("en");
  return value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

function point(chart, event) {
  const picture = chart.querySelector(".plot > svg").getBoundingClientRect();
  const plot = chart.querySelector(".plot").getBoundingClientRect();
  const share = Math.min(1, Math.max(0, (event.clientX - picture.left) / picture.width));
  const first = Number(chart.dataset.first);
  const at = first + share * (Number(chart.dataset.last) - first);
  const cursor = chart.querySelector(".cursor");
  cursor.hidden = false;
  cursor.style.left = `${picture.left - plot.left + share * picture.width}px`;
  const values = chart.querySelectorAll("[data-value]");
  dotsOf(chart).forEach((dots, index) => {
    const near = dots.reduce((best, dot) => (best && Math.abs(best[0] - at) <= Math.abs(dot[0] - at) ? best : dot), null);
    if (!near) return;
    const value = values[index];
    value.dataset.latest ??= value.textContent;
    value.textContent = shown(near[1]);
    value.title = new Date(near[0] / 1000).toISOString();
  });
}

function leave(chart) {
  chart.querySelector(".cursor").hidden = true;
  for (const value of chart.querySelectorAll("[data-value][data-latest]")) {
    value.textContent = value.dataset.latest;
    delete value.dataset.latest;
  }
}

export function startCharts() {
  document.addEventListener("pointermove", (event) => {
    const chart = event.target.closest?.("[data-chart]");
    if (chart) point(chart, event);
  });
  document.addEventListener("pointerout", (event) => {
    const chart = event.target.closest?.("[data-chart]");
    if (chart && !chart.contains(event.relatedTarget)) leave(chart);
  });
}
