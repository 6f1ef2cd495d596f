// Makes one element look like another and keeps what belongs to the reader: focus, ticks, what is typed, what is open.
const KEPT = {
  INPUT: ["value", "checked"],
  SELECT: ["value"],
  TEXTAREA: ["value"],
  DETAILS: ["open"],
  DIALOG: ["open"],
};

export function morph(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE || old.nodeType === Node.COMMENT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  if (old.hasAttribute("data-keep")) return;
  morphAttributes(old, fresh);
  morphChildren(old, fresh);
}

function morphAttributes(old, fresh) {
  const kept = KEPT[old.tagName] ?? [];
  for (const { name, value } of fresh.attributes) {
    if (!kept.includes(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const { name } of [...old.attributes]) {
    if (!kept.includes(name) && !fresh.hasAttribute(name) && !isOurs(old, name)) old.removeAttribute(name);
  }
}

// What scripts set on an element that the server renders without it.
function isOurs(element, name) {
  return (name === "class" && element.id === "nav") || (name === "hidden" && element.hasAttribute("data-chosen"));
}

// Not node.id: of a form with a field called id that is the field.
function keyOf(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("data-key") ?? node.getAttribute("id") : null;
}

function matches(old, fresh) {
  return old.nodeType === fresh.nodeType && old.nodeName === fresh.nodeName && keyOf(old) === keyOf(fresh);
}

function morphChildren(old, fresh) {
  const keyed = new Map();
  for (const child of old.childNodes) {
    const key = keyOf(child);
    if (key !== null) keyed.set(key, child);
  }
  let next = old.firstChild;
  for (const wanted of [...fresh.childNodes]) {
    const key = keyOf(wanted);
    let found = key === null ? next : keyed.get(key);
    if (found && !matches(found, wanted)) found = null;
    if (found) {
      if (found === next) next = next.nextSibling;
      else old.insertBefore(found, next);
      morph(found, wanted);
      keyed.delete(key);
    } else {
      old.insertBefore(document.importNode(wanted, true), next);
    }
  }
  while (next) {
    const gone = next;
    next = next.nextSibling;
    gone.remove();
  }
}
