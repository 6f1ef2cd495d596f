// Keeps a page up to date: an event says that something has changed, the page fetches itself, and what differs is put in.
// Nothing is fetched while the tab is hidden.
import { morph } from "./morph.js";

const LEAST_MS = 900;
const PATIENCE_MS = 15000; // an event comes every few seconds: a page that heard nothing for so long is not up to date

let source = null;
let tag = null;
let isFetching = false;
let isWanted = false;
let fetchedAt = 0;
let heardAt = 0;

function show(state, text) {
  const status = document.querySelector("[data-live-status]");
  if (!status) return;
  status.dataset.state = state;
  if (status.textContent !== text) status.textContent = text;
}

export async function refresh() {
  if (isFetching) {
    isWanted = true;
    return;
  }
  isFetching = true;
  isWanted = false;
  try {
    const headers = { "Leasemill-Part": "1" };
    if (tag) headers["If-None-Match"] = tag;
    const signal = AbortSignal.timeout(PATIENCE_MS);
    const response = await fetch(location.href, { headers, credentials: "same-origin", redirect: "error", signal });
    if (response.status === 401 || response.status === 403) {
      location.reload();
      return;
    }
    if (response.status === 200 || response.status === 404) {
      tag = response.headers.get("ETag");
      put(await response.text());
    }
    if (response.ok || response.status === 304 || response.status === 404) {
      heardAt = performance.now();
      show("live", "live");
    } else show("away", "no answer");
  } catch {
    show("away", "no answer");
  } finally {
    isFetching = false;
    fetchedAt = performance.now();
    if (isWanted) schedule();
  }
}

function put(html) {
  const fetched = new DOMParser().parseFromString(html, "text/html");
  for (const old of document.querySelectorAll("[data-live]")) {
    const fresh = fetched.getElementById(old.id);
    if (fresh) morph(old, fresh);
  }
  document.dispatchEvent(new CustomEvent("leasemill:changed"));
}

function schedule() {
  if (document.hidden) return;
  setTimeout(refresh, Math.max(0, LEAST_MS - (performance.now() - fetchedAt)));
}

// A connection that broke without a word: nothing reports it but the time that has passed.
function watch() {
  if (document.hidden || performance.now() - heardAt < PATIENCE_MS) return;
  show("away", "no answer");
  refresh();
}

function open(address) {
  if (source || document.hidden) return;
  heardAt = performance.now();
  source = new EventSource(address);
  source.addEventListener("open", () => show("live", "live"));
  source.addEventListener("change", schedule);
  source.addEventListener("again", () => {
    source.close();
    source = null;
    open(address);
    schedule(); // what changed between the two
  });
  source.addEventListener("error", () => show("away", "no answer"));
}

function close() {
  source?.close();
  source = null;
  show("paused", "paused");
}

export function startLive() {
  const address = document.body.dataset.events;
  if (!address) return;
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return close();
    open(address);
    refresh();
  });
  setInterval(watch, 5000);
  addEventListener("pagehide", close);
  addEventListener("pageshow", () => open(address));
  open(address);
}
