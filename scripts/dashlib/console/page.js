"use strict";
// BOARDS and ANNOTATIONS stand above. Everything is asked of the Prometheus that serves this page.

const RANGES = {"15m": 900, "1h": 3600, "6h": 21600, "24h": 86400, "7d": 604800, "30d": 2592000};
const POINTS = 240, SCRAPE_S = 15, REFRESH_S = 30;
const SVG = "http://www.w3.org/2000/svg";
const asked = new URLSearchParams(location.search);
const valid = (key, pattern, otherwise) => pattern.test(asked.get(key) ?? "") ? asked.get(key) : otherwise;
const view = {
  pipeline: valid("pipeline", /^[a-z0-9][a-z0-9_-]{0,40}$/, ""),
  board: valid("board", new RegExp("^(" + BOARDS.map((each) => each.name).join("|") + ")$"), BOARDS[0].name),
  range: valid("range", /^(15m|1h|6h|24h|7d|30d)$/, "6h"),
};
const link = (change) => "?" + new URLSearchParams({...view, ...change});

// ---- the page's elements

function set(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}
const html = (tag, attributes = {}, ...children) => set(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) => set(document.createElementNS(SVG, tag), attributes, children);
const byId = (id) => document.getElementById(id);
const colourOf = (name) => name.startsWith("#") ? name : "var(--" + name + ")";

// ---- asking Prometheus

function now(range) {
  const end = Date.now() / 1000, step = RANGES[range] / POINTS;
  return {start: end - POINTS * step, end, step, range: RANGES[range]};
}

function filled(expr, time) {
  return expr.replaceAll("$pipeline", view.pipeline)
    .replaceAll("$__rate_interval", Math.ceil(Math.max(time.step + SCRAPE_S, 4 * SCRAPE_S)) + "s")
    .replaceAll("$__interval", Math.ceil(time.step) + "s")
    .replaceAll("$__range", time.range + "s");
}

async function ask(path, query) {
  const answer = await fetch("../api/v1/" + path + "?" + new URLSearchParams(query));
  const body = await answer.json();
  if (body.status !== "success") throw new Error(body.error);
  return body.data;
}

// Series with a point (or null) for each moment shown.
async function ranged(legend, expr, time) {
  const {start, end, step} = time;
  const {result} = await ask("query_range", {query: filled(expr, time), start, end, step});
  return result.map(({metric, values}) => {
    const points = new Array(POINTS + 1).fill(null);
    for (const [at, value] of values) {
      if (isFinite(value)) points[Math.round((at - start) / step)] = Number(value);
    }
    return {name: legend.replace(/[{]+(\w+)[}]+/g, (_, label) => metric[label] ?? ""), points};
  });
}

async function allRanged(panel, time) {
  const found = await Promise.all(panel.queries.map(([legend, expr]) => ranged(legend, expr, time)));
  return found.flat().filter((each) => each.points.some((point) => point !== null));
}

// ---- figures in words

function scaled(value, base, names) {
  let at = 0;
  while (Math.abs(value) >= base && at < names.length - 1) { value /= base; at++; }
  return (plain(Number(value.toPrecision(3))) + " " + names[at]).trim();
}
function plain(value) {
  return Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(4)));
}
function duration(value) {
  if (value < 0) return "-" + duration(-value);
  if (value < 1) return value === 0 ? "0 s" : plain(Number((value * 1000).toPrecision(3))) + " ms";
  if (value < 60) return Number(value.toPrecision(3)) + " s";
  const pairs = [["d", 86400, "h", 3600], ["h", 3600, "min", 60], ["min", 60, "s", 1]];
  const [big, bigS, small, smallS] = pairs.find((pair) => value >= pair[1]);
  const rest = Math.floor(value % bigS / smallS);
  return Math.floor(value / bigS) + " " + big + (rest ? " " + rest + " " + small : "");
}
const BYTES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const UNITS = {
  bytes: (value) => scaled(value, 1024, BYTES),
  binBps: (value) => scaled(value, 1024, BYTES) + "/s",
  percentunit: (value) => plain(Number((value * 100).toPrecision(3))) + " %",
  s: duration,
  short: (value) => scaled(value, 1000, ["", "k", "M", "G", "T"]),
  sci: (value) => value === 0 ? "0" : value.toExponential(2),
  celsius: (value) => plain(value) + " \u00b0C",
  watt: (value) => plain(value) + " W",
  none: plain,
};
const clockOf = (seconds, options) => new Date(seconds * 1000).toLocaleString("en-GB", options);

// ---- axes

const SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

function niceStep(least, unit) {
  if (unit === "s" && least > .5) return SECONDS.find((each) => each >= least) ?? Math.ceil(least / 86400) * 86400;
  const base = unit === "bytes" || unit === "binBps" ? 1024 : 10;
  if (base === 1024) least = Math.max(1, least);
  const power = base ** Math.floor(Math.log(least) / Math.log(base));
  const nice = base === 10 ? [1, 2, 2.5, 5, 10] : [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
  return power * nice.find((each) => each * power >= least * .999);
}

function scaleOf(panel, lines) {
  const all = lines.flatMap((line) => line.points.filter((point) => point !== null));
  let low = Math.min(...all, panel.minimum ?? Infinity), high = Math.max(...all, panel.minimum ?? -Infinity);
  if (high === low) high += Math.abs(high) / 10 || 1;
  const step = niceStep((high - low) / 4, panel.unit);
  [low, high] = [Math.floor(low / step + 1e-9) * step, Math.ceil(high / step - 1e-9) * step];
  if (panel.maximum !== null && low >= 0) high = Math.min(high, panel.maximum);
  const ticks = [];
  for (let at = low; at <= high + step / 1e6; at += step) ticks.push(at);
  return {low, high, ticks};
}

function timeAxis(area, time) {
  const least = time.range / Math.max(2, area.width / 64);
  const step = [60, ...SECONDS.slice(7), 172800, 432000].find((each) => each >= least) ?? 864000;
  const offset = new Date().getTimezoneOffset() * 60;
  const format = step < 86400 ? {hour: "2-digit", minute: "2-digit"} : {day: "numeric", month: "short"};
  const axis = svg("g");
  for (let at = Math.ceil((time.start - offset) / step) * step + offset; at < time.end; at += step) {
    const x = area.left + (at - time.start) / time.range * area.width;
    axis.append(svg("line", {class: "grid", x1: x, x2: x, y1: area.top, y2: area.top + area.height}));
    if (x > area.left + 14 && x < area.left + area.width - 14) {
      axis.append(svg("text", {x, y: area.top + area.height + 15, "text-anchor": "middle"}, clockOf(at, format)));
    }
  }
  return axis;
}

const markLines = (area, marks) => svg("g", {}, ...marks.flatMap((mark) => mark.at.map((at) => {
  const x = area.left + at / POINTS * area.width;
  return svg("line", {class: "mark", stroke: colourOf(mark.colour), x1: x, x2: x, y1: area.top, y2: area.top + area.height});
})));

// ---- the cursor: one moment in all charts

let charts = [];
function moveCursor(index) { for (const chart of charts) chart(index); }

function withCursor(drawn, area, time, tell) {
  const line = svg("line", {y1: area.top, y2: area.top + area.height});
  const label = svg("text", {"text-anchor": "middle", y: area.top + area.height + 14});
  const box = svg("rect", {rx: 3, width: 104, height: 16, y: area.top + area.height + 2});
  const cursor = svg("g", {class: "cursor", visibility: "hidden"}, line, box, label);
  drawn.append(cursor);
  const move = (event) => {
    const share = (event.clientX - drawn.getBoundingClientRect().left - area.left) / area.width;
    moveCursor(Math.round(Math.min(1, Math.max(0, share)) * POINTS));
  };
  drawn.addEventListener("pointermove", move);
  drawn.addEventListener("pointerdown", move);
  drawn.addEventListener("pointerleave", () => moveCursor(null));
  charts.push((index) => {
    cursor.setAttribute("visibility", index === null ? "hidden" : "visible");
    tell(index);
    if (index === null) return;
    const x = area.left + index / POINTS * area.width;
    const middle = Math.min(area.left + area.width - 50, Math.max(52, x));
    set(line, {x1: x, x2: x}, []);
    set(label, {x: middle}, []);
    set(box, {x: middle - 52}, []);
    const moment = {day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit"};
    label.textContent = clockOf(time.start + index * time.step, moment).replace(",", "");
  });
}

// ---- kinds of panels; each returns what stands in the panel's body

function stacked(series) {
  const sums = new Array(POINTS + 1).fill(0);
  return series.map((each) => {
    const base = [...sums];
    const points = each.points.map((point, at) => point === null ? null : sums[at] += point);
    return {...each, points, base};
  });
}

// The path of a line, or of the area between it and its base; it breaks where there is no point.
function pathOf(points, x, y, base) {
  let path = "", began = null;
  for (let at = 0; at <= points.length; at++) {
    const here = at < points.length && points[at] !== null;
    if (here) path += (began === null ? "M" : "L") + x(at).toFixed(1) + " " + y(points[at]).toFixed(1);
    if (here && began === null) { began = at; path += "h0"; }  // a lone point is a dot
    if (!here && began !== null && base) {
      for (let back = at - 1; back >= began; back--) path += "L" + x(back).toFixed(1) + " " + y(base[back]).toFixed(1);
      path += "Z";
    }
    if (!here) began = null;
  }
  return path;
}

function drawLines(panel, series, time, marks, width) {
  const lines = panel.stacked ? stacked(series) : series;
  const {low, high, ticks} = scaleOf(panel, lines);
  const format = UNITS[panel.unit], left = 6.4 * Math.max(...ticks.map((tick) => format(tick).length)) + 12;
  const area = {left, top: 8, width: width - left - 6, height: 122};
  const x = (at) => area.left + at / POINTS * area.width;
  const y = (value) => area.top + (high - value) / (high - low) * area.height;
  const drawn = svg("svg", {width, height: 150, role: "img", "aria-label": panel.title}, timeAxis(area, time));
  for (const tick of ticks) {
    drawn.append(
      svg("line", {class: "grid", x1: area.left, x2: width - 6, y1: y(tick), y2: y(tick)}),
      svg("text", {x: area.left - 7, y: y(tick) + 4, "text-anchor": "end"}, format(tick)),
    );
  }
  const worseAbove = panel.thresholds[0][1] === "green";
  for (const [number, [value, colour]] of panel.thresholds.entries()) {
    if (value === null || value <= low || value >= high) continue;
    const worse = worseAbove ? colour : panel.thresholds[number - 1][1];
    drawn.append(svg("line", {class: "line limit", stroke: colourOf(worse), x1: area.left, x2: width - 6, y1: y(value), y2: y(value)}));
  }
  drawn.append(markLines(area, marks));
  const values = lines.map((line, number) => {
    const colour = "var(--s" + number % 8 + ")";
    const floor = panel.stacked ? line.base : line.points.map(() => low);
    const opacity = panel.stacked ? .5 : lines.length === 1 ? .12 : 0;
    if (opacity) drawn.append(svg("path", {d: pathOf(line.points, x, y, floor), fill: colour, "fill-opacity": opacity}));
    drawn.append(svg("path", {class: "line", d: pathOf(line.points, x, y), stroke: colour}));
    return html("b");
  });
  const legend = html("div", {class: "legend"}, ...series.map((each, number) => html(
    "span", {}, html("i", {style: "background: var(--s" + number % 8 + ")"}), each.name, values[number],
  )));
  const tell = (index) => series.forEach((each, number) => {
    const value = each.points[index ?? POINTS];
    values[number].textContent = value === null ? "-" : format(value);
  });
  tell(null);
  withCursor(drawn, area, time, tell);
  return [drawn, legend];
}

function drawStates(panel, series, time, marks, width) {
  const order = Object.keys(panel.colours);
  series.sort((one, other) => order.indexOf(one.name) - order.indexOf(other.name));
  const longest = Math.max(...series.map((each) => each.name.length));
  const left = Math.min(longest * 6.4 + 12, width * .5), lane = 19;
  const area = {left, top: 4, width: width - left - 6, height: series.length * lane};
  const drawn = svg("svg", {width, height: area.height + 24, role: "img", "aria-label": panel.title}, timeAxis(area, time));
  series.forEach((each, number) => {
    const top = area.top + number * lane;
    drawn.append(svg("text", {x: left - 8, y: top + 13, "text-anchor": "end"}, each.name));
    drawn.append(svg("rect", {x: left, y: top + 8, width: area.width, height: 1, fill: "var(--grid)"}));
    const colour = colourOf(panel.colours[each.name] ?? "orange"), slot = area.width / POINTS;
    for (let at = 0, began = null; at <= POINTS + 1; at++) {
      const on = each.points[at] > 0;
      if (on && began === null) began = at;
      if (!on && began !== null) {
        const from = Math.max(left, left + (began - .5) * slot), to = Math.min(left + area.width, left + (at - .5) * slot);
        drawn.append(svg("rect", {x: from, y: top + 2, width: to - from, height: lane - 6, rx: 2, fill: colour}));
        began = null;
      }
    }
  });
  drawn.append(markLines(area, marks));
  withCursor(drawn, area, time, () => {});
  return [drawn];
}

function drawStat(panel, series) {
  const last = (each) => each.points[POINTS];
  const current = series.filter((each) => last(each) !== null);
  if (!current.length) return null;
  if (Object.keys(panel.colours).length) {
    const {name} = current[0];
    return [html("div", {class: "value", style: "color: " + colourOf(panel.colours[name] ?? "blue")}, name)];
  }
  const [{name, points}] = current, value = points[POINTS];
  const [, colour] = panel.thresholds.findLast(([from]) => from === null || value >= from);
  const figure = html("span", {style: "color: " + colourOf(colour)}, UNITS[panel.unit](value));
  const shown = html("div", {class: "value"}, figure, html("small", {}, name));
  if (panel.maximum !== null) {
    const fill = html("i", {style: "width: " + Math.min(100, 100 * value / panel.maximum) + "%"});
    return [shown, html("div", {class: "bar", style: "color: " + colourOf(colour)}, fill)];
  }
  const {low, high} = scaleOf(panel, current);
  const path = pathOf(points, (at) => at, (point) => 21 - 20 * (point - low) / (high - low));
  const spark = svg("svg", {viewBox: "0 0 " + POINTS + " 22", preserveAspectRatio: "none"});
  spark.append(svg("path", {class: "line", d: path, stroke: colourOf(colour)}));
  return [shown, spark];
}

const SEVERITIES = {critical: "red", warning: "orange", info: "blue"};
const rank = ({metric}) => Object.keys(SEVERITIES).indexOf(metric.severity);

async function drawTable(panel, time) {
  const {result} = await ask("query", {query: filled(panel.queries[0][1], time), time: time.end});
  if (!result.length) return null;
  result.sort((one, other) => rank(one) - rank(other) || other.value[1] - one.value[1]);
  const rows = result.map(({metric, value}) => html("tr", {}, ...panel.columns.map((column) => {
    if (column === "Value") return html("td", {class: "number"}, UNITS[panel.unit](Number(value[1])));
    const colour = column === "severity" && SEVERITIES[metric[column]];
    return html("td", colour ? {style: "color: " + colourOf(colour)} : {}, metric[column] ?? "");
  })));
  return [html("div", {class: "scroll"}, html("table", {}, ...rows))];
}

async function draw(panel, box, time, marks) {
  const width = box.clientWidth;
  let body;
  try {
    if (panel.kind === "table") body = await drawTable(panel, time);
    else {
      const series = await allRanged(panel, time);
      if (panel.kind === "stat") body = drawStat(panel, series);
      else if (series.length) body = (panel.kind === "states" ? drawStates : drawLines)(panel, series, time, marks, width);
    }
  } catch (error) {
    byId("trouble").hidden = false;
    byId("trouble").textContent = "Prometheus did not answer " + panel.title + ": " + error.message;
    return;
  }
  box.replaceChildren(...(body ?? [html("div", {class: "none"}, panel.empty || "no data")]));
}

// ---- the page

async function findMarks(time) {
  const found = await Promise.all(ANNOTATIONS.map((each) => ranged("", each.expr, time)));
  return ANNOTATIONS.map((each, number) => ({
    ...each,
    at: found[number].flatMap(({points}) => points.flatMap((point, at) => point > 0 ? [at] : [])),
  }));
}

function skeleton(board) {
  const boxes = [];
  for (const row of board.rows) {
    const grid = html("div", {class: "row"});
    for (const panel of row.panels) {
      const title = html("h3", {title: panel.text}, panel.title), box = html("div");
      const outer = html("section", {class: "panel " + panel.kind, style: "--width: " + panel.width}, title, html("p", {}, panel.text), box);
      title.addEventListener("click", () => outer.classList.toggle("explained"));
      grid.append(outer);
      boxes.push([panel, box]);
    }
    byId("board").append(html("h2", {}, row.title), grid);
  }
  return boxes;
}

async function refresh(boxes) {
  const time = now(view.range);
  byId("trouble").hidden = true;
  charts = [];
  const marks = await findMarks(time).catch(() => []);
  await Promise.all(boxes.map(([panel, box]) => draw(panel, box, time, marks)));
  if (byId("trouble").hidden) byId("clock").textContent = clockOf(time.end, {timeStyle: "medium"});
  document.body.dataset.drawn = "yes";
}

async function pipelines() {
  const start = Date.now() / 1000 - RANGES["30d"];
  return ask("label/pipeline/values", {"match[]": "up{job=\"stoker\"}", start});
}

async function pick(names) {
  const {result} = await ask("query", {query: "stoker_train_state == 1"});
  const states = Object.fromEntries(result.map(({metric}) => [metric.pipeline, metric.state]));
  const cards = names.map((name) => html("a", {href: link({pipeline: name})}, html("b", {}, name), states[name] ?? "no train supervisor runs"));
  byId("board").replaceChildren(html("div", {class: "cards"}, ...cards));
  if (!names.length) byId("board").append(html("p", {}, "Prometheus knows no pipeline yet: no target of the job stoker was up."));
}

async function begin() {
  byId("board").replaceChildren();
  const tab = (text, change, here) => html("a", {href: link(change), ...(here ? {class: "here", "aria-current": "page"} : {})}, text);
  let names = [];
  try {
    names = await pipelines();
    if (!view.pipeline) await pick(names);
  } catch (error) {
    byId("trouble").hidden = false;
    byId("trouble").textContent = "Prometheus did not answer: " + error.message;
  }
  if (!view.pipeline) return;
  document.title = view.pipeline + " - Stoker";
  const known = names.includes(view.pipeline) ? names : [view.pipeline, ...names];
  byId("pipelines").append(...known.map((name) => tab(name, {pipeline: name}, name === view.pipeline)));
  byId("boards").append(...BOARDS.map((each) => tab(each.title, {board: each.name}, each.name === view.board)));
  byId("ranges").append(...Object.keys(RANGES).map((range) => tab(range, {range}, range === view.range)));
  byId("marks").append(...ANNOTATIONS.map((each) => html("span", {}, html("i", {style: "color: " + colourOf(each.colour)}), each.name)));
  const boxes = skeleton(BOARDS.find((each) => each.name === view.board));
  let busy = false;
  const again = async () => {
    if (busy || document.hidden) return;
    busy = true;
    await refresh(boxes).finally(() => { busy = false; });
  };
  setInterval(again, REFRESH_S * 1000);
  document.addEventListener("visibilitychange", again);
  let resized;
  addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(again, 300); });
  await again();
}

begin();
