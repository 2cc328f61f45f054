const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const themeListeners = [];

/** A new element: attributes, then children; text is never read as markup. */
function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "rect", "text", "line", "g"].includes(tag);
  const element = svg
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const comma = (number) => number.toLocaleString("en-US");

/** 12.3 MiB */
function size(bytes) {
  for (const unit of ["bytes", "KiB", "MiB"]) {
    if (bytes < 1024) return unit === "bytes" ? `${comma(Math.round(bytes))} bytes` : `${bytes.toFixed(1)} ${unit}`;
    bytes /= 1024;
  }
  return `${comma(Math.round(bytes * 10) / 10)} GiB`;
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
