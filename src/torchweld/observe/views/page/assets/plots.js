// Plots, drawn with Observable Plot as SVG: colours are CSS variables, so both themes and paper need no second drawing.

const WAYS = { domain: ["eager", "torchweld"], range: ["var(--operator)", "var(--generated)"] };
function figures() {
  return JSON.parse(document.getElementById("figures").textContent);
}

function put(id, plot) {
  const place = typeof id === "string" ? document.getElementById(id) : id;
  if (place) place.replaceChildren(plot);
}

// What a plot may be wide: text is not scaled, so it is as large on a phone as on a desk.
const widthOf = place => Math.max(300, Math.min(1120, place.clientWidth || 1120));
const narrow = width => width < 640;

const digits = value => Number(value.toPrecision(3)).toLocaleString("en", { maximumFractionDigits: 3 });
const microseconds = us => us >= 1e4 ? `${digits(us / 1e3)} ms` : `${digits(us)} µs`;
const bytes = d3.format(".3~s");

// An axis of microseconds up to `end`, told in milliseconds where they are many.
function timeAxis(end, ticks) {
  const [divisor, label] = end > 1e4 ? [1e3, "milliseconds"] : [1, "microseconds"];
  return { label, grid: true, ticks, tickFormat: us => (us / divisor).toLocaleString("en") };
}

// -- timelines --

function launchesOf(profile) {
  return profile.launches.map(([id, start, duration]) => {
    const [name, kind, operations, module, group] = profile.kernels[id];
    const said = [operations || name, operations && name, `${kind}${module ? `, ${module}` : ""}`, microseconds(duration)];
    return { start, end: start + duration, group, short: operations || name, title: said.filter(Boolean).join("\n") };
  });
}

// As much of a name as fits into a block, with the number of its group; nothing where that is little.
function blockLabel(launch, pixels) {
  const text = launch.group && launch.group < 9 ? `${launch.group} ${launch.short}` : launch.short;
  const room = Math.floor((pixels - 6) / 6.6);
  return text.length <= room ? text : room >= 5 ? `${text.slice(0, room - 1)}…` : "";
}

function drawTimeline(place, launches, [from, to]) {
  const seen = launches.filter(l => l.end >= from && l.start <= to);
  const width = widthOf(place), pixels = l => (Math.min(to, l.end) - Math.max(from, l.start)) / (to - from) * width;
  const shape = { x1: l => Math.max(from, l.start), x2: l => Math.min(to, l.end), y1: 0, y2: 1 };
  const middle = l => (Math.max(from, l.start) + Math.min(to, l.end)) / 2;
  const plot = Plot.plot({
    width, height: 104, marginLeft: 4, marginRight: 12, marginTop: 22, marginBottom: 34, style: { background: "none", fontSize: "12px" },
    x: { domain: [from, to], ...timeAxis(to, narrow(width) ? 4 : 9) },
    y: { domain: [0, 1], ticks: [], label: null },
    marks: [
      Plot.rect(seen, { ...shape, fill: l => `var(--group-${l.group})`, stroke: "var(--ground)", strokeWidth: l => Math.min(0.6, pixels(l) / 12) }),
      Plot.text(seen.filter(l => pixels(l) > 40), { x: middle, y: 0.5, text: l => blockLabel(l, pixels(l)), fontSize: 11, fill: "var(--ink)" }),
      Plot.tip(seen, Plot.pointerX({ x: middle, y: 0.5, title: "title", fill: "var(--ground)", stroke: "var(--line)", anchor: "bottom" })),
      Plot.text([place.dataset.way], { frameAnchor: "top-left", dy: -18, text: d => d, fontWeight: 600, fill: "var(--ink)" }),
    ],
  });
  const scale = plot.scale("x");
  put(place, plot);
  return scale;
}

// The window that all timelines show, in microseconds.
class Window {
  constructor(end, draw) {
    Object.assign(this, { end, draw, from: 0, to: end });
  }
  show(from, to) {
    const span = Math.min(this.end, Math.max(this.end / 5000, to - from));
    this.from = Math.max(0, Math.min(from, this.end - span));
    this.to = this.from + span;
    this.draw(this.from, this.to);
  }
  change(how) {
    const span = this.to - this.from, middle = (this.from + this.to) / 2;
    if (how === "all") this.show(0, this.end);
    if (how === "in") this.show(middle - span / 4, middle + span / 4);
    if (how === "out") this.show(middle - span, middle + span);
    if (how === "left") this.show(this.from - span / 3, this.to - span / 3);
    if (how === "right") this.show(this.from + span / 3, this.to + span / 3);
  }
}

const ZOOM_KEYS = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", "0": "all" };

function startTimelines(profiles) {
  const places = Array.from(document.querySelectorAll(".timeline"));
  const launches = new Map(profiles.map(p => [p.way, launchesOf(p)]));
  const end = d3.max([...launches.values()].flat(), l => l.end) || 1;
  const scales = new Map();
  const shown = new Window(end, (from, to) => {
    for (const place of places) scales.set(place, drawTimeline(place, launches.get(place.dataset.way) || [], [from, to]));
    document.getElementById("window").textContent = `${microseconds(from)} to ${microseconds(to)}`;
  });
  for (const button of document.querySelectorAll("[data-zoom]"))
    button.addEventListener("click", () => shown.change(button.dataset.zoom));
  for (const place of places) {
    place.addEventListener("keydown", event => {
      if (!(event.key in ZOOM_KEYS) || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      shown.change(ZOOM_KEYS[event.key]);
    });
    dragToZoom(place, scales, shown);
  }
  shown.change("all");
  return () => shown.show(shown.from, shown.to);
}

function dragToZoom(place, scales, shown) {
  let start = null;
  const at = event => {
    const svg = place.querySelector("svg"), box = svg.getBoundingClientRect();
    return scales.get(place).invert((event.clientX - box.left) * svg.viewBox.baseVal.width / box.width);
  };
  place.addEventListener("pointerdown", event => { start = at(event); });
  addEventListener("pointerup", event => {
    if (start === null) return;
    const [from, to] = [start, at(event)].sort((a, b) => a - b);
    start = null;
    if (to - from > (shown.to - shown.from) / 100) shown.show(from, to);
  });
}

// -- roofline --

function pointsOf(profile) {
  return profile.points.map(([operations, name, module, regime, calls, us, intensity, rate]) => ({
    way: profile.way, us, intensity, rate, label: operations,
    title: [`${profile.way}: ${operations}`, name, module, `${calls} × ${microseconds(us / calls)}, ${regime}-bound`].filter(Boolean).join("\n"),
  }));
}

// Labels of the points that take most time, as many as lie apart; `at` gives a point's pixels.
function labelled(points, at, most) {
  const placed = [];
  for (const point of d3.sort(points, p => -p.us)) {
    const [x, y] = at(point), text = point.label.length > 24 ? `${point.label.slice(0, 23)}…` : point.label;
    const free = placed.every(p => Math.abs(p.y - y) > 15 || Math.abs(p.x - x) > 4 + 3.4 * (p.text.length + text.length));
    if (free) placed.push({ ...point, x, y, text });
    if (placed.length === most) break;
  }
  return placed;
}

// [names, rate] of each flat line; rates too close for two labels share one. `apart`: the factor that a line of text takes.
function flatRates(roof, apart) {
  const all = [["arithmetic", roof.vector], ...Object.entries(roof.products).map(([t, rate]) => [`products, ${t}`, rate])];
  const found = [];
  for (const [name, rate] of d3.sort(all, d => d[1])) {
    const last = found.at(-1), lines = last ? last[0].split("\n").length + 1 : 0;
    if (last && rate < apart ** (lines / 2) * last[1]) last[0] = `${name} and\n${last[0]}`;
    else found.push([name, rate]);
  }
  return found;
}

// Each a name and its two ends; a slope begins where it enters the frame.
function roofLines(roof, [left, right], bottom, apart) {
  const flat = flatRates(roof, apart);
  const top = d3.max([roof.vector, ...Object.values(roof.products)]);
  const slopes = [["memory", roof.memory], ["cache", roof.cache]].map(([name, rate]) => {
    const start = Math.max(left, bottom / rate), end = Math.max(start, Math.min(right, top / rate));
    return { name, points: [[start, rate * start], [end, rate * end]] };
  });
  return [...slopes, ...flat.map(([name, rate]) => ({ name, flat: true, points: [[Math.max(left, rate / roof.cache), rate], [right, rate]] }))];
}

// A coordinate a third of the way up a slope, where its name stands beside it.
const along = ([start, end], axis) => start[axis] * (end[axis] / start[axis]) ** 0.3;

function plotRoofline(roof, profiles) {
  const place = document.getElementById("plot-roofline"), points = profiles.flatMap(pointsOf);
  document.getElementById("roofline-note").textContent = points.length ? "Kernels without arithmetic, such as copies, are not shown." : "";
  if (!points.length) return;
  const width = widthOf(place), height = narrow(width) ? 340 : 430;
  const margins = { marginLeft: 48, marginRight: narrow(width) ? 20 : 140, marginTop: 24, marginBottom: 36 };
  const domain = [Math.min(0.02, d3.min(points, p => p.intensity)) / 1.5, Math.max(500, d3.max(points, p => p.intensity)) * 1.5];
  const limits = [...points.map(p => p.rate), roof.vector, ...Object.values(roof.products)];
  const range = [d3.min(limits) / 3, d3.max(limits) * 2.2];
  const x = d3.scaleLog(domain, [margins.marginLeft, width - margins.marginRight]), y = d3.scaleLog(range, [height - margins.marginBottom, margins.marginTop]);
  const lines = roofLines(roof, domain, range[0], (range[1] / range[0]) ** (15 / height));
  const names = labelled(points, p => [x(p.intensity), y(p.rate)], narrow(width) ? 4 : 9);
  const halo = { fill: "var(--soft)", stroke: "var(--ground)", strokeWidth: 4 };
  const flat = narrow(width) ? { textAnchor: "end", dx: 0, dy: -12 } : { textAnchor: "start", dx: 6 };
  put(place, Plot.plot({
    width, height, ...margins, style: { background: "none", fontSize: "12px" },
    x: { type: "log", domain, label: "flop for each byte moved", grid: true, ticks: narrow(width) ? 4 : 6, tickFormat: "~g" },
    y: { type: "log", domain: range, label: "flop/s", grid: true, ticks: 6, tickFormat: "~s" },
    r: { range: [2.5, 15] },
    color: { legend: true, ...WAYS },
    symbol: { legend: false, domain: WAYS.domain, range: ["circle", "diamond2"] },
    marks: [
      ...lines.map(l => Plot.line(l.points, { stroke: "var(--soft)", strokeDasharray: l.name === "cache" ? "4 3" : null })),
      Plot.dot(points, { x: "intensity", y: "rate", r: "us", symbol: "way", stroke: "way", fill: "way", fillOpacity: 0.3 }),
      Plot.text(lines.filter(l => l.flat), { x: domain[1], y: l => l.points[1][1], text: "name", ...flat, ...halo }),
      ...[["cache", -12], ["memory", 14]].map(([name, dy]) => Plot.text(lines.filter(l => l.name === name), {
        x: l => along(l.points, 0), y: l => along(l.points, 1), text: "name", textAnchor: dy < 0 ? "end" : "start", dx: dy / 3, dy, ...halo })),
      Plot.text(names, { x: "intensity", y: "rate", text: "text", textAnchor: p => p.x > 0.72 * width ? "end" : "start", dy: -9, dx: 0, fill: "var(--ink)", stroke: "var(--ground)", strokeWidth: 4 }),
      Plot.tip(points, Plot.pointer({ x: "intensity", y: "rate", title: "title", fill: "var(--ground)", stroke: "var(--line)" })),
    ],
  }));
}

// -- memory --

function plotMemory(profiles) {
  const place = document.getElementById("plot-memory"), known = profiles.filter(p => p.memory);
  const lines = known.flatMap(p => p.memory.line.map(([at, size]) => ({ way: p.way, at, size })));
  const peaks = d3.sort(known.map(p => ({ way: p.way, size: p.memory.peak })), p => -p.size);
  const end = d3.max(lines, l => l.at) ?? d3.max(profiles, p => p.step);
  if (!peaks.length) return;
  const width = widthOf(place);
  put(place, Plot.plot({
    width, height: 260, marginLeft: 48, marginRight: 12, marginTop: 34, style: { background: "none", fontSize: "12px" },
    x: timeAxis(end, narrow(width) ? 4 : 9),
    y: { label: "bytes", domain: [0, 1.08 * d3.max([...peaks, ...lines], p => p.size)], grid: true, tickFormat: bytes, ticks: 5 },
    color: { legend: true, ...WAYS },
    marks: [
      Plot.areaY(lines, { x: "at", y2: "size", y1: 0, fill: "way", fillOpacity: 0.15, curve: "step-after" }),
      Plot.lineY(lines, { x: "at", y: "size", stroke: "way", curve: "step-after" }),
      Plot.ruleY(peaks, { y: "size", stroke: "way", strokeDasharray: "5 4" }),
      // one above its line at the left, the other below its own at the right: never on each other
      ...peaks.map((p, at) => Plot.text([p], { x: at ? end : 0, y: "size", text: d => `peak, ${d.way}: ${bytes(d.size)}B`, textAnchor: at ? "end" : "start", dy: at ? 9 : -9, fill: "var(--ink)", stroke: "var(--ground)", strokeWidth: 4 })),
      Plot.tip(lines, Plot.pointerX({ x: "at", y: "size", title: p => `${p.way}\n${bytes(p.size)}B at ${microseconds(p.at)}`, fill: "var(--ground)", stroke: "var(--line)" })),
    ],
  }));
}

function startPlots() {
  const data = figures();
  if (!data.profiles.length) return;
  const drawTimelines = startTimelines(data.profiles);
  const draw = () => {
    plotRoofline(data.roofline, data.profiles);
    plotMemory(data.profiles);
  };
  draw();
  let width = innerWidth;
  addEventListener("resize", () => {
    if (width === innerWidth) return;
    width = innerWidth;
    drawTimelines();
    draw();
  });
}
