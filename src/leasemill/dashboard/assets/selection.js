// Which rows are chosen: the box in the head chooses all, and what can be done appears when something is.

function update() {
  const form = document.querySelector("[data-selection]");
  const bar = document.querySelector("[data-chosen]");
  if (!form || !bar) return;
  const boxes = [...form.querySelectorAll('input[name="job"]')];
  const count = boxes.filter((box) => box.checked).length;
  bar.hidden = count === 0;
  bar.querySelector("[data-count]").textContent = count.toLocaleString("en");
  const all = form.querySelector("[data-all]");
  all.checked = count > 0 && count === boxes.length;
  all.indeterminate = count > 0 && count < boxes.length;
}

export function startSelection() {
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-all]")) {
      for (const box of event.target.form.querySelectorAll('input[name="job"]')) box.checked = event.target.checked;
    }
    if (event.target.closest("[data-selection]")) update();
    if (event.target.closest("[data-filters]")?.matches("form") && event.target.name === "state") event.target.form.requestSubmit();
  });
  // Empty fields do not belong in an address.
  document.addEventListener("submit", (event) => {
    if (!event.target.matches("[data-filters]")) return;
    for (const field of event.target.elements) if (field.name && field.value === "") field.disabled = true;
  });
  document.addEventListener("leasemill:changed", update);
  update();
}
