// Values of the store as text, as the server's filters show them, and rows of messages.
// Everything enters the page by textContent.

const UNITS = ["bytes", "kB", "MB", "GB", "TB", "PB"];
const NAMED = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };

/** Text on one line: control, format and bidirectional characters as escapes. */
export function printable(text) {
  return String(text).replace(/[\p{C}\p{Z}]/gu, (c) => (c === " " ? c : (NAMED[c] ?? escape(c))));
}

function escape(c) {
  const hex = c.codePointAt(0).toString(16);
  if (hex.length <= 2) return `\\x${hex.padStart(2, "0")}`;
  return hex.length <= 4 ? `\\u${hex.padStart(4, "0")}` : `\\U${hex.padStart(8, "0")}`;
}

export function number(value) {
  return Number(value).toLocaleString("en");
}

/** Bytes in about three digits, as "1.2 GB"; units are powers of 1000. */
export function size(bytes) {
  let power = 0;
  let value = bytes;
  while (value >= 1000 && power < UNITS.length - 1) {
    value /= 1000;
    power += 1;
  }
  return `${value.toFixed(power && value < 100 ? 1 : 0)} ${UNITS[power]}`;
}

export function duration(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  return ms < 10000 ? `${(ms / 1000).toFixed(1)} s` : `${number(Math.round(ms / 1000))} s`;
}

/** Show the times below a node in the browser's time zone, with UTC as their title. */
export function localize(root) {
  for (const time of root.querySelectorAll("time[data-ms]")) setTime(time, Number(time.dataset.ms));
}

function setTime(time, ms) {
  const moment = new Date(ms);
  if (Number.isNaN(moment.getTime())) return; // outside the calendar: keep the number
  const two = (n) => String(n).padStart(2, "0");
  const day = [moment.getFullYear(), two(moment.getMonth() + 1), two(moment.getDate())].join("-");
  const clock = [moment.getHours(), moment.getMinutes(), moment.getSeconds()].map(two).join(":");
  time.textContent = `${day} ${clock}.${String(moment.getMilliseconds()).padStart(3, "0")}`;
  time.dateTime = moment.toISOString();
  time.title = `${moment.toISOString()} (${ms})`;
}

/** A row for a message summary: a copy of the page's empty row, filled. */
export function messageRow(message) {
  const row = document.getElementById("row").content.firstElementChild.cloneNode(true);
  for (const cell of row.querySelectorAll("[data-field]")) fill(cell, message[cell.dataset.field]);
  row.querySelector("[data-link]").href =
    `${document.body.dataset.brokerUrl}/messages/${message.commit_log_offset}`;
  return row;
}

function fill(cell, value) {
  if (cell.tagName === "TIME") {
    cell.textContent = value;
    setTime(cell, value);
  } else if (value === null || value === undefined || value === "") {
    cell.dataset.empty = "";
  } else if (typeof value === "number") {
    cell.textContent = number(value);
  } else {
    const isolated = document.createElement("bdi");
    isolated.textContent = printable(value);
    cell.append(isolated);
  }
}
