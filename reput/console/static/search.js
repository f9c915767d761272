// Messages: results appear as the server finds them; the conditions are in the URL.

import { apiUrl, clearErrors, conditions, growFields, refusal, showError, suggestTopics } from "./forms.js";
import { duration, messageRow, number, size } from "./rows.js";

const PAGE_MAX = "100";
const form = document.getElementById("search");
const rows = document.getElementById("rows");
const [run, progress, said, stop, on, found, none, damage] =
  ["run", "progress", "said", "stop", "on", "found", "none", "damage"].map((id) => document.getElementById(id));
let source = null;
let count = 0;
let last = null; // the last message found
let waiting = [];
let reached = null; // the last progress of this search

growFields(form);
suggestTopics(form);
if (!form.querySelector("[aria-invalid]") && !document.getElementById("form-error")) start();

form.addEventListener("submit", (event) => {
  event.preventDefault();
  go(conditions(form));
});
stop.addEventListener("click", () => {
  end(`Stopped: ${summary()}`);
  if (last) offerNext(isOldestFirst() ? last.commit_log_offset + last.size : last.commit_log_offset);
});
on.addEventListener("click", (event) => {
  event.preventDefault();
  history.pushState(null, "", on.href);
  search();
});
addEventListener("popstate", () => location.reload());
addEventListener("pagehide", () => source?.close());

function go(params) {
  if (params.get("order") === "newest") params.delete("order");
  for (const name of ["from_time", "to_time"])
    if (params.has(name)) params.set(name, withZone(params.get(name)));
  history.pushState(null, "", params.size ? `?${params}` : location.pathname);
  start();
}

/** A time without a zone is one of this page: in UTC, the URL means the same everywhere. */
function withZone(text) {
  const parts = /^(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d(?:\.\d{1,3})?)?))?$/.exec(text.trim());
  if (!parts) return text;
  const moment = new Date(`${parts[1]}T${parts[2] ?? "00:00"}`);
  return Number.isNaN(moment.getTime()) ? text : moment.toISOString();
}

/** Search from the beginning: the results so far are dropped. */
function start() {
  rows.replaceChildren();
  damage.replaceChildren();
  damage.hidden = true;
  count = 0;
  last = null;
  search();
}

/** Search with the conditions of the URL; results are added to those shown. */
function search() {
  source?.close();
  clearErrors(form);
  waiting = [];
  reached = null;
  const params = new URLSearchParams(location.search);
  params.delete("run");
  showDownloads(params);
  if (!params.has("max")) params.set("max", PAGE_MAX);
  params.set("format", "sse");
  const url = apiUrl(params);
  run.hidden = stop.hidden = false;
  on.hidden = none.hidden = true;
  said.ariaLive = "off";
  said.textContent = "Searching …";
  progress.removeAttribute("value");
  source = new EventSource(url);
  source.addEventListener("message", (event) => add(JSON.parse(event.data)));
  source.addEventListener("progress", (event) => show(JSON.parse(event.data)));
  source.addEventListener("damage", (event) => addDamage(JSON.parse(event.data)));
  source.addEventListener("done", (event) => done(JSON.parse(event.data)));
  source.addEventListener("failed", (event) => fail(JSON.parse(event.data)));
  source.onerror = () => refused(url);
}

function add(message) {
  count += 1;
  last = message;
  if (!waiting.length) requestAnimationFrame(flush);
  waiting.push(messageRow(message));
  found.hidden = false;
}

/** Name a part of the log that the search could not read. */
function addDamage({ error }) {
  const text = document.createElement("p");
  text.textContent = error;
  damage.append(text);
  damage.hidden = false;
}

function flush() {
  rows.append(...waiting);
  waiting = [];
  if (!stop.hidden) said.textContent = summary();
}

/** Show a progress; until the server knows the total, the bar has no value. */
function show(progressed) {
  if (progressed.total_bytes) {
    reached = progressed;
    progress.max = reached.total_bytes;
    progress.value = reached.searched_bytes;
  }
  if (reached || count) said.textContent = summary();
}

function summary() {
  const found = `${number(count)} found`;
  if (!reached) return found;
  const { searched_bytes, total_bytes, elapsed_ms } = reached;
  const share = searched_bytes || !count ? `, ${size(searched_bytes)} of ${size(total_bytes)} searched` : "";
  return `${found}${share} in ${duration(elapsed_ms)}`;
}

function done(result) {
  show(result);
  if (!result.total_bytes) progress.max = progress.value = 1; // nothing to search
  const ends = {
    complete: summary(),
    max: `${number(count)} found in ${duration(result.elapsed_ms)}; more may match`,
    limit: `${summary()}; the server's limit was reached`,
  };
  end(ends[result.reason] ?? summary());
  if (result.next !== null) offerNext(result.next);
}

/** Show the link that continues the search at a commit log offset. */
function offerNext(offset) {
  const params = new URLSearchParams(location.search);
  params.set("next", offset);
  on.href = `?${params}`;
  on.hidden = false;
}

function isOldestFirst() {
  return new URLSearchParams(location.search).get("order") === "oldest";
}

function fail({ error }) {
  end(count ? `${summary()}; then the search failed` : "The search failed");
  none.hidden = true;
  showError(form, { error });
}

async function refused(url) {
  const text = count ? "The connection was lost" : "Not searched";
  end(text);
  run.hidden = !count;
  const reason = await refusal(url);
  showError(form, reason ?? { error: "The connection was lost. Search again to continue." });
  none.hidden = true;
}

function end(text) {
  source.close();
  stop.hidden = true;
  if (!progress.hasAttribute("value")) progress.value = 0;
  said.ariaLive = "polite";
  said.textContent = text;
  found.hidden = !count;
  none.hidden = Boolean(count);
}

function showDownloads(params) {
  for (const link of document.querySelectorAll("[data-download]")) {
    const all = new URLSearchParams(params);
    all.delete("max");
    all.delete("next");
    all.set("format", link.dataset.download);
    link.href = apiUrl(all);
  }
}
