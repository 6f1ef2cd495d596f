// What pages do beyond plain links and forms: every part works on its own, and without this file the pages still do.
import { startActs } from "./acts.js";
import { startCharts } from "./charts.js";
import { startLive } from "./live.js";
import { startPalette } from "./palette.js";
import { startSelection } from "./selection.js";
import { startTimes } from "./times.js";

const THEME = "leasemill_theme";

function startTheme() {
  const root = document.documentElement;
  for (const button of document.querySelectorAll("[data-theme-switch]")) {
    button.addEventListener("click", () => {
      const isDark = root.dataset.theme
        ? root.dataset.theme === "dark"
        : matchMedia("(prefers-color-scheme: dark)").matches;
      root.dataset.theme = isDark ? "light" : "dark";
      const secure = location.protocol === "https:" ? "; secure" : "";
      document.cookie = `${THEME}=${root.dataset.theme}; path=/; max-age=31536000; samesite=strict${secure}`;
    });
  }
}

function startMenu() {
  const button = document.querySelector("[data-menu]");
  button?.addEventListener("click", () => {
    const isOpen = document.getElementById("nav").classList.toggle("open");
    button.setAttribute("aria-expanded", String(isOpen));
  });
}

function startNotice() {
  const notice = document.querySelector("[data-notice]");
  if (notice) setTimeout(() => notice.remove(), 6000);
}

startTheme();
startMenu();
startNotice();
startActs();
startCharts();
startSelection();
startTimes();
startPalette();
startLive();
