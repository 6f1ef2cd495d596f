// Acts open as a dialog on the page instead of a page of their own: the same question, the same form.

export function actAddress(element) {
  if (element.tagName === "A") return element.href;
  const form = element.form;
  const fields = new URLSearchParams(new FormData(form));
  return `${element.formAction}?${fields}`;
}

export async function ask(address) {
  const dialog = document.getElementById("act");
  const headers = { "Leasemill-Part": "1" };
  let response;
  try {
    response = await fetch(address, { headers, credentials: "same-origin", redirect: "error" });
  } catch {
    location.href = address;
    return;
  }
  const fetched = new DOMParser().parseFromString(await response.text(), "text/html");
  const card = fetched.querySelector("#content > .card");
  if (!card) {
    location.href = address;
    return;
  }
  dialog.replaceChildren(document.importNode(card, true));
  dialog.showModal();
  dialog.querySelector("input:not([type=hidden]), select, button")?.focus();
}

export function startActs() {
  const dialog = document.getElementById("act");
  if (!dialog) return;
  document.addEventListener("click", (event) => {
    const element = event.target.closest("[data-act]");
    if (!element || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    ask(actAddress(element));
  });
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog || event.target.closest("[data-close]")) {
      event.preventDefault();
      dialog.close();
    }
  });
  dialog.addEventListener("submit", (event) => {
    if (event.target.dataset.sent) event.preventDefault();
    event.target.dataset.sent = "1";
  });
}
