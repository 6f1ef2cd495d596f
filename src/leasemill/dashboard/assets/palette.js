// Ctrl-K: find a page, a job or an action, and go there without the mouse.
import { actAddress, ask } from "./acts.js";

const MOST = 12;
let found = [];
let chosen = 0;

function collected() {
  const root = document.body.dataset.root;
  const items = [...document.querySelectorAll("[data-palette-items] a")].map((link) => ({
    label: link.textContent.trim(),
    group: link.dataset.group,
    go: () => (location.href = link.href),
  }));
  for (const element of document.querySelectorAll("#content a[data-act]")) {
    const row = element.closest("tr")?.dataset.key;
    items.push({
      label: [element.textContent.trim(), row].filter(Boolean).join(" "),
      group: "Action",
      go: () => ask(actAddress(element)),
    });
  }
  return { root, items };
}

function search(text) {
  const { root, items } = collected();
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const hits = items.filter((item) => words.every((word) => item.label.toLowerCase().includes(word))).slice(0, MOST);
  const typed = text.trim();
  if (typed) {
    const to = (path, fields) => () => (location.href = `${root}${path}?${new URLSearchParams(fields)}`);
    hits.push({ label: `Jobs whose id begins with ${typed}`, group: "Search", go: to("/jobs", { id: typed }) });
    hits.push({ label: `Jobs whose error contains ${typed}`, group: "Search", go: to("/jobs", { error: typed }) });
    hits.push({ label: `Jobs of kind ${typed}`, group: "Search", go: to("/jobs", { kind: typed }) });
  }
  return hits;
}

function render(dialog) {
  const list = dialog.querySelector("ul");
  const input = dialog.querySelector("input");
  list.replaceChildren(
    ...found.map((item, index) => {
      const row = document.createElement("li");
      row.id = `palette-${index}`;
      row.role = "option";
      row.setAttribute("aria-selected", String(index === chosen));
      const label = document.createElement("span");
      label.textContent = item.label;
      const group = document.createElement("small");
      group.textContent = item.group;
      row.append(label, group);
      row.addEventListener("click", () => go(dialog, index));
      return row;
    }),
  );
  input.setAttribute("aria-activedescendant", found.length ? `palette-${chosen}` : "");
  list.querySelector('[aria-selected="true"]')?.scrollIntoView({ block: "nearest" });
}

function go(dialog, index) {
  const item = found[index];
  if (!item) return;
  dialog.close();
  item.go();
}

function open(dialog) {
  const input = dialog.querySelector("input");
  input.value = "";
  found = search("");
  chosen = 0;
  render(dialog);
  dialog.showModal();
  input.focus();
}

export function startPalette() {
  const dialog = document.getElementById("palette");
  if (!dialog) return;
  document.querySelector("[data-palette]")?.addEventListener("click", () => open(dialog));
  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.closest?.("input, select, textarea, dialog");
    const isAsked = (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey)) || (event.key === "/" && !isTyping);
    if (!isAsked) return;
    event.preventDefault();
    if (!dialog.open) open(dialog);
  });
  dialog.querySelector("input").addEventListener("input", (event) => {
    found = search(event.target.value);
    chosen = 0;
    render(dialog);
  });
  dialog.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && found.length) {
      event.preventDefault();
      chosen = (chosen + step + found.length) % found.length;
      render(dialog);
    } else if (event.key === "Enter") {
      event.preventDefault();
      go(dialog, chosen);
    }
  });
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
}
