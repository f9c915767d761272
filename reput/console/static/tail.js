// Live tail: messages as the broker stores them, the newest on top.

import { conditions, apiUrl, growFields, refusal, showError, suggestTopics } from "./forms.js";
import { messageRow, number } from "./rows.js";

const ROWS_MAX = 500; // kept in the page, and kept back during a pause
const form = document.getElementById("tail");
const rows = document.getElementById("rows");
const [connection, pause, clear, skipped, said, found, none] =
  ["connection", "pause", "clear", "skipped", "said", "found", "none"].map((id) => document.getElementById(id));
const shown = new Map(); // message -> row: after a reconnect the server repeats the newest ones
let waiting = [];
let isPaused = false;
let isQueued = false;
let received = 0;
let skippedCount = 0;

growFields(form);
suggestTopics(form);
document.getElementById("controls").hidden = false;
pause.addEventListener("click", () => setPaused(!isPaused));
clear.addEventListener("click", () => {
  rows.replaceChildren();
  shown.clear();
  received = waiting.length;
  report();
});
if (!form.querySelector("[aria-invalid]")) follow(apiUrl(conditions(form)));

function follow(url) {
  none.hidden = false;
  const source = new EventSource(url);
  source.onopen = () => state("good", isPaused ? "paused" : "live");
  source.addEventListener("message", (event) => receive(JSON.parse(event.data)));
  source.addEventListener("skipped", (event) => skip(JSON.parse(event.data).count));
  // The server resumes after an error, such as a damaged record, when it can.
  for (const name of ["failed", "damage"]) {
    source.addEventListener(name, (event) => showError(form, JSON.parse(event.data)));
  }
  source.addEventListener("ended", (event) => {
    source.close(); // or the browser would connect again
    state("bad", "ended");
    showError(form, JSON.parse(event.data));
  });
  source.onerror = async () => {
    if (source.readyState !== EventSource.CLOSED) return state("warn", "reconnecting");
    state("bad", "ended");
    showError(form, (await refusal(url)) ?? { error: "The connection was lost. Reload to continue." });
  };
  addEventListener("pagehide", () => source.close());
}

function receive(message) {
  const key = `${message.commit_log_offset} ${message.store_timestamp}`;
  if (shown.has(key)) return;
  shown.set(key, null);
  received += 1;
  waiting.push([key, message]);
  if (waiting.length > ROWS_MAX) forget(waiting.shift()[0]);
  if (isPaused) return report();
  if (!isQueued) requestAnimationFrame(flush);
  isQueued = true;
}

function flush() {
  isQueued = false;
  if (isPaused) return;
  const fresh = waiting.map(([key, message]) => {
    const row = messageRow(message);
    row.className = "fresh";
    shown.set(key, row);
    return row;
  });
  waiting = [];
  rows.prepend(...fresh.reverse());
  for (const [key, row] of shown) {
    if (shown.size <= ROWS_MAX) break;
    row?.remove();
    forget(key);
  }
  report();
}

function forget(key) {
  shown.delete(key);
}

function report() {
  found.hidden = !rows.children.length;
  none.hidden = Boolean(rows.children.length);
  const kept = rows.children.length < received - waiting.length ? `, the newest ${number(rows.children.length)} are shown` : "";
  const held = isPaused && waiting.length ? `; ${number(waiting.length)} arrived during the pause` : "";
  said.textContent = received ? `${number(received)} messages${kept}${held}` : "";
}

function setPaused(value) {
  isPaused = value;
  pause.textContent = isPaused ? "Resume" : "Pause";
  pause.setAttribute("aria-pressed", String(isPaused));
  state(isPaused ? "warn" : "good", isPaused ? "paused" : "live");
  if (!isPaused) flush();
}

function skip(more) {
  skippedCount += more;
  skipped.firstElementChild.textContent =
    `${number(skippedCount)} messages were left out, because this page could not keep up. Narrow the conditions, or search for them.`;
  skipped.hidden = false;
}

function state(kind, text) {
  connection.className = `state ${kind}`;
  connection.textContent = text;
}
