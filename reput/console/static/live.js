// While a page is open: the state of its broker, its figures, and graphs on the overview.
// The numbers of a page come from the server alone: the regions marked data-live are replaced by
// those of the same page, fetched again.

import { localize, number, size } from "./rows.js";

const POLL_MS = 2000;
const POLLS_A_REFRESH = 2;
const TREND_SAMPLES = 4;
const HOUR_MS = 3_600_000;
const SECONDS_MIN = 60; // that a graph shows from the beginning
const WHOLE = Array.from({ length: 16 }, (_, n) => [1, 2, 5].map((m) => m * 10 ** n)).flat();
const BROKER_URL = document.body.dataset.brokerUrl; // none on the list of brokers

const history = { timestamp: [], messages_per_second: [], bytes_per_second: [], behind_bytes: [] };
const section = window.uPlot ? document.getElementById("graphs") : null;
let graphs = section?.dataset.isLive === undefined ? null : showGraphs();
const TITLE = document.title;
let polls = 0;

poll();

async function poll() {
  if (!document.hidden) await look();
  setTimeout(poll, POLL_MS);
}

async function look() {
  try {
    if (BROKER_URL) await showStatus();
    polls += 1;
    if (polls % POLLS_A_REFRESH === 0) await refresh();
  } catch (error) {
    if (!BROKER_URL) return;
    const isNetwork = error instanceof TypeError;
    showState("bad", isNetwork ? "no answer" : "not available", isNetwork ? "" : error.message);
  }
}

async function showStatus() {
  const response = await fetch(`/api${BROKER_URL}/status`);
  const status = await response.json();
  if (!response.ok) throw new Error(status.error);
  showState(...stateOf(status));
  if (section && polls % POLLS_A_REFRESH === 0 && (status.is_live || graphs)) await drawHistory(status);
}

function stateOf(status) {
  if (status.problem) return ["bad", "unreadable"];
  if (status.is_stuck) return ["bad", "stuck"];
  if (status.damage?.length) return ["bad", "damaged"];
  if (status.lost?.length) return ["bad", "messages lost"];
  if (status.build_command) return ["", "no queues"];
  if (status.behind_ms > 60000) return ["warn", "behind"];
  return ["good", "ok"];
}

function showState(kind, text, title = "") {
  const state = document.getElementById("state");
  state.className = `state ${kind}`;
  state.textContent = text;
  state.title = title;
  state.hidden = false;
  document.title = kind === "bad" ? `${text}: ${TITLE}` : TITLE;
}

async function refresh() {
  const regions = [...document.querySelectorAll("[data-live]")];
  if (!regions.length) return;
  const response = await fetch(location.href);
  if (!response.ok) return;
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  for (const region of regions) {
    const fresh = page.getElementById(region.id);
    if (fresh && !isInUse(region)) replace(region, fresh);
  }
}

function isInUse(region) {
  const selection = getSelection();
  const isSelected = !selection.isCollapsed && selection.containsNode(region, true);
  return isSelected || region.contains(document.activeElement);
}

function replace(region, fresh) {
  for (const open of region.querySelectorAll("details[id][open]")) {
    const same = fresh.querySelector(`#${CSS.escape(open.id)}`);
    if (same) same.open = true;
  }
  localize(fresh);
  if (!fresh.isEqualNode(region)) region.replaceWith(fresh);
}

function showGraphs() {
  section.hidden = false; // before their width is measured
  return { rate: makeGraph("rate", number, 10), second: makeGraph("second", size, 1000) };
}

/** Draw the history of the last hour; the browser asks only for what it does not have yet. */
async function drawHistory(status) {
  const response = await fetch(`/api${BROKER_URL}/history?since=${history.timestamp.at(-1) ?? 0}`);
  if (!response.ok) return;
  const fresh = await response.json();
  for (const [n, at] of fresh.timestamp.entries()) {
    const last = history.timestamp.at(-1);
    if (at - last > 2 * fresh.interval_ms) add(last + 1, () => null);
    add(at, (column) => fresh[column][n]);
  }
  const old = history.timestamp.findIndex((at) => at > history.timestamp.at(-1) - HOUR_MS);
  for (const column of Object.values(history)) column.splice(0, old);
  graphs ??= showGraphs();
  draw(status);
}

function add(at, valueOf) {
  for (const column of Object.keys(history)) history[column].push(column === "timestamp" ? at : valueOf(column));
}

function draw(status) {
  const isOurs = status.reput_from_offset !== null;
  document.getElementById("second-title").textContent = isOurs ? "Backlog" : "Bytes in";
  const behind = history.behind_bytes;
  const isGrowing = behind.at(-1) > (behind.at(-TREND_SAMPLES) ?? Infinity) && status.behind_ms > 5000;
  const unit = isOurs ? (isGrowing ? ", growing" : "") : " per second";
  graphs.rate.draw(history.messages_per_second, (value) => `${number(Math.round(value))} per second`);
  graphs.second.draw(isOurs ? behind : history.bytes_per_second, (value) => size(Math.round(value)) + unit);
}

function clock(seconds) {
  return new Date(seconds * 1000).toTimeString().slice(0, 8);
}

function span(min, max) {
  const begin = min ?? Date.now() / 1000;
  return [begin, Math.max(max ?? 0, begin + SECONDS_MIN)];
}

/** A graph of values by time; `least` is the smallest range of its values. */
function makeGraph(name, format, least) {
  const plot = document.getElementById(`${name}-plot`);
  let data = [[], []];
  const colour = (token) => () => getComputedStyle(plot).getPropertyValue(token);
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
  const graph = new uPlot(
    {
      width: plot.clientWidth,
      height: plot.clientHeight,
      legend: { show: false },
      cursor: { y: false, drag: { setScale: false } },
      scales: {
        x: { range: (_, min, max) => span(min, max) },
        y: { range: (_, __, max) => [0, Math.max(max * 1.1, least)] },
      },
      axes: [
        { ...axis, space: 70, size: 30, gap: 9, values: (_, splits) => splits.map(data[0].length > 1 ? clock : () => "") },
        { ...axis, space: 24, size: 66, incrs: WHOLE, values: (_, splits) => splits.map(format) },
      ],
      series: [{}, { stroke: colour("--accent"), fill: colour("--accent-soft"), width: 1.5, points: { show: false } }],
    },
    data,
    plot,
  );
  new ResizeObserver(() => graph.setSize({ width: plot.clientWidth, height: plot.clientHeight })).observe(plot);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => graph.redraw());
  return {
    /** Draw a column of the history; null is a gap. `text` shows the newest value. */
    draw(column, text) {
      data = [history.timestamp.map((at) => at / 1000), column];
      graph.setData(data);
      document.getElementById(name).textContent = (column.at(-1) ?? null) === null ? "–" : text(column.at(-1));
    },
  };
}
