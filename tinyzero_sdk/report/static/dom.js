"use strict";
// Elements and numbers. All text of runs and models goes through `h`, which never reads it as HTML.

function h(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else if (name.startsWith("aria-")) element.setAttribute(name, String(value));
    else if (name in element && name !== "list") element[name] = value;
    else if (value !== undefined && value !== false && value !== null) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const replace = (element, ...children) => element.replaceChildren(...children.flat(Infinity).filter(Boolean));
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const count = (number) => number.toLocaleString("en");
const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
const percent = (share) => (share === null || share === undefined ? "–" : `${(100 * share).toFixed(1)}%`);

function short(number) {
  if (number === null || number === undefined || Number.isNaN(number)) return "–";
  const size = Math.abs(number);
  if (size >= 1e4) return number.toLocaleString("en", { notation: "compact", maximumFractionDigits: 1 });
  if (size !== 0 && size < 1e-3) return number.toExponential(1);
  return String(Number(number.toPrecision(3)));
}

// Of numbers in percent, of which hundredths say nothing.
const shortPercent = (number) => short(number === null || number === undefined ? number : Number(number.toFixed(2)));

// Labels of an axis, with as many digits as tell them apart.
function ticks(values) {
  const labels = values.map(short);
  return new Set(labels).size === labels.length ? labels : values.map((value) => value?.toExponential(2) ?? "");
}

function debounced(action, milliseconds) {
  let timer;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(action, milliseconds, ...values);
  };
}

// The reasons of scores, the good one first. Marks tell them apart without colour.
const REASONS = {
  ok: { label: "right", mark: "✓" },
  wrong: { label: "wrong", mark: "✗" },
  malformed: { label: "malformed", mark: "≈" },
  no_answer: { label: "no answer", mark: "∅" },
  timeout: { label: "timed out", mark: "◷" },
  error: { label: "scorer failed", mark: "!" },
  unknown: { label: "not scored", mark: "?" },
};
const reasonOf = (row) => row.reason ?? (row.correct === null ? "unknown" : row.correct ? "ok" : "wrong");
const badge = (reason) => h("span", { className: `badge ${reason}` }, h("span", { "aria-hidden": true }, REASONS[reason]?.mark ?? "·"), " ", REASONS[reason]?.label ?? reason);
