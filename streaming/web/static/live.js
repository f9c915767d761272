// While a page is open: the state of its broker, its figures, and graphs on the overview.
// The numbers of a page come from the server alone: the regions marked data-live are replaced by
// those of the same page, fetched again.

import { localize, number, size } from "./rows.js";

const POLL_MS = 2000;
const POLLS_A_REFRESH = 2;
const TREND_POLLS = 10;
const POINTS = 150;
const SECONDS_MIN = 60; // that a graph shows from the beginning
const WHOLE = Array.from({ length: 16 }, (_, n) => [1, 2, 5].map((m) => m * 10 ** n)).flat();
const BROKER_URL = document.body.dataset.brokerUrl; // none on the list of brokers

const graphs = document.getElementById("graphs") && window.uPlot ? makeGraphs() : null;
const TITLE = document.title;
let polls = 0;
let last = null;

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
  graphs?.add(status, last);
  last = status;
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

function makeGraphs() {
  document.getElementById("graphs").hidden = false;
  const rate = makeGraph("rate", number, 10);
  const second = makeGraph("second", size, 1000);
  return {
    add(status, before) {
      const isOurs = status.reput_from_offset !== null;
      if (!isOurs) document.getElementById("second-title").textContent = "Bytes in";
      const elapsed = before ? (status.now_ms - before.now_ms) / 1000 : 0;
      const perSecond = (name) => (elapsed > 0 ? (status[name] - before[name]) / elapsed : null);
      const at = status.now_ms / 1000;
      const messages = perSecond("messages_in");
      const bytes = isOurs ? status.behind_bytes : perSecond("bytes_in");
      rate.add(at, messages, messages === null ? "–" : `${number(Math.round(messages))} per second`);
      const unit = isOurs ? growth(status, second.before(TREND_POLLS)) : " per second";
      second.add(at, bytes, bytes === null ? "–" : size(bytes) + unit);
    },
  };
}

function growth(status, before) {
  return before !== undefined && status.behind_bytes > before && status.behind_ms > 5000 ? ", growing" : "";
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
  const data = [[], []];
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
    before: (polls) => data[1].at(-polls),
    add(at, value, text) {
      data[0].push(at);
      data[1].push(value);
      if (data[0].length > POINTS) data.forEach((column) => column.shift());
      graph.setData(data);
      document.getElementById(name).textContent = text;
    },
  };
}
