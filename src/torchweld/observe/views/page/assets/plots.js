// Plots, drawn with Observable Plot as SVG: colours are CSS variables, so both themes and paper need no second drawing.

const KINDS = ["operator", "library", "generated", "copy"];
const colour = kind => `var(--${KINDS.includes(kind) ? kind : "copy"})`;
const WIDTH = 1120;
const WAY_COLOUR = { eager: "var(--operator)", torchweld: "var(--generated)" };

function figures() {
  return JSON.parse(document.getElementById("figures").textContent);
}

function put(id, plot) {
  const place = typeof id === "string" ? document.getElementById(id) : id;
  if (place) place.replaceChildren(plot);
}

const digits = value => Number(value.toPrecision(3)).toLocaleString("en", { maximumFractionDigits: 3 });
const microseconds = us => us >= 1e4 ? `${digits(us / 1e3)} ms` : `${digits(us)} µs`;
const bytes = d3.format(".3~s");

// An axis of microseconds up to `end`, told in milliseconds where they are many.
function timeAxis(end) {
  const [divisor, label] = end > 1e4 ? [1e3, "milliseconds"] : [1, "microseconds"];
  return { label, grid: true, tickFormat: us => (us / divisor).toLocaleString("en") };
}

// -- ways --

function plotWays(ways) {
  if (!ways.length) return;
  put("plot-ways", Plot.plot({
    width: WIDTH, height: 34 * ways.length + 62, marginLeft: 190, marginRight: 70, marginBottom: 42, style: { background: "none", fontSize: "13px" },
    x: { label: "milliseconds of a call, median; the line spans its quartiles", zero: true, grid: true },
    y: { label: null, domain: ways.map(w => w.name) },
    marks: [
      Plot.barX(ways, { x: "ms", y: "name", fill: w => w.name === "torchweld" ? "var(--generated)" : "var(--copy)", insetTop: 3, insetBottom: 3 }),
      Plot.ruleY(ways, { x1: w => Math.max(0, w.ms - w.iqr / 2), x2: w => w.ms + w.iqr / 2, y: "name", stroke: "var(--ink)", strokeWidth: 1.6 }),
      Plot.text(ways, { x: w => w.ms + w.iqr / 2, y: "name", text: w => `${digits(w.ms)} ms`, textAnchor: "start", dx: 6, fill: "var(--ink)" }),
    ],
  }));
}

// -- timelines --

function launchesOf(profile) {
  return profile.launches.map(([id, start, duration]) => {
    const [name, kind, operations, module] = profile.kernels[id];
    return { start, end: start + duration, kind, title: [name, operations, module, microseconds(duration)].filter(Boolean).join("\n") };
  });
}

function drawTimeline(place, launches, [from, to]) {
  const seen = launches.filter(l => l.end >= from && l.start <= to);
  const shape = { x1: l => Math.max(from, l.start), x2: l => Math.min(to, l.end), y1: 0, y2: 1 };
  const plot = Plot.plot({
    width: WIDTH, height: 96, marginLeft: 74, marginTop: 8, marginBottom: 34, style: { background: "none", fontSize: "12px" },
    x: { domain: [from, to], ...timeAxis(to) },
    y: { domain: [0, 1], ticks: [], label: null },
    marks: [
      Plot.rect(seen, { ...shape, fill: l => colour(l.kind), stroke: "var(--ground)", strokeWidth: l => Math.min(0.6, 300 * (l.end - l.start) / (to - from)) }),
      Plot.tip(seen, Plot.pointerX({ x: l => (Math.max(from, l.start) + Math.min(to, l.end)) / 2, y: 0.5, title: "title", fill: "var(--ground)", stroke: "var(--line)", anchor: "bottom" })),
      Plot.text([place.dataset.way], { frameAnchor: "left", dx: -74, text: d => d, fontWeight: 600, fill: "var(--ink)" }),
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
  showKinds([...launches.values()].flat());
  shown.change("all");
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

function showKinds(launches) {
  const found = KINDS.filter(kind => launches.some(l => l.kind === kind));
  document.getElementById("kinds").replaceChildren(...found.map(kind => {
    const label = document.createElement("span"), mark = document.createElement("i");
    mark.style.setProperty("--colour", colour(kind));
    label.append(mark, kind);
    return label;
  }));
}

// -- roofline --

function pointsOf(profile) {
  return profile.kernels.filter(([, , , , , us, moved, flops]) => us > 0 && moved > 0 && flops > 0)
    .map(([name, kind, operations, module, regime, us, moved, flops]) => ({
      way: profile.way, regime, us, intensity: flops / moved, rate: flops / us * 1e6,
      title: [`${profile.way}: ${name}`, operations, module, `${microseconds(us)}, ${regime}-bound`].filter(Boolean).join("\n"),
    }));
}

// [names, rate] of each flat line; rates too close to be told apart share a label.
function flatRates(roof) {
  const all = [["arithmetic", roof.vector], ...Object.entries(roof.products).map(([t, rate]) => [`products, ${t}`, rate])];
  const found = [];
  for (const [name, rate] of d3.sort(all, d => d[1])) {
    const last = found.at(-1);
    if (last && rate < 1.6 * last[1]) last[0] += ` and\n${name}`;
    else found.push([name, rate]);
  }
  return found;
}

// Each a name and its two ends; a slope begins where it enters the frame.
function roofLines(roof, [left, right], bottom) {
  const flat = flatRates(roof);
  const top = d3.max(flat, d => d[1]);
  const slopes = [["memory", roof.memory], ["cache", roof.cache]].map(([name, rate]) => {
    const start = Math.max(left, bottom / rate), end = Math.max(start, Math.min(right, top / rate));
    return { name, points: [[start, rate * start], [end, rate * end]] };
  });
  return [...slopes, ...flat.map(([name, rate]) => ({ name, flat: true, points: [[Math.max(left, rate / roof.cache), rate], [right, rate]] }))];
}

// A coordinate a third of the way up a slope, where its name stands beside it.
const along = ([start, end], axis) => start[axis] * (end[axis] / start[axis]) ** 0.3;

function plotRoofline(roof, profiles) {
  const points = profiles.flatMap(pointsOf);
  const all = d3.sum(profiles, p => p.kernels.length);
  document.getElementById("roofline-note").textContent = all - points.length
    ? `${points.length} of ${all} kernels are shown: the others do no arithmetic, or their work is not known.` : "";
  if (!points.length) return;
  const domain = [Math.min(0.02, d3.min(points, p => p.intensity)) / 1.5, Math.max(500, d3.max(points, p => p.intensity)) * 1.5];
  const limits = [...points.map(p => p.rate), roof.vector, ...Object.values(roof.products)];
  const [bottom, top] = [d3.min(limits) / 3, d3.max(limits) * 1.6];
  const lines = roofLines(roof, domain, bottom);
  put("plot-roofline", Plot.plot({
    width: WIDTH, height: 430, marginLeft: 74, marginRight: 132, style: { background: "none", fontSize: "12px" },
    x: { type: "log", domain, label: "flop for each byte moved", grid: true, ticks: 6, tickFormat: "~g" },
    y: { type: "log", domain: [bottom, top], label: "flop/s", grid: true, ticks: 6, tickFormat: "~s" },
    r: { range: [2.5, 13] },
    color: { legend: true, domain: ["eager", "torchweld"], range: [WAY_COLOUR.eager, WAY_COLOUR.torchweld] },
    symbol: { legend: false, domain: ["eager", "torchweld"], range: ["circle", "diamond2"] },
    marks: [
      ...lines.map(l => Plot.line(l.points, { stroke: "var(--soft)", strokeDasharray: l.name === "cache" ? "4 3" : null })),
      Plot.text(lines.filter(l => l.flat), { x: domain[1], y: l => l.points[1][1], text: "name", textAnchor: "start", dx: 6, fill: "var(--soft)" }),
      ...[["cache", -12], ["memory", 14]].map(([name, dy]) => Plot.text(lines.filter(l => l.name === name), {
        x: l => along(l.points, 0), y: l => along(l.points, 1), text: "name", textAnchor: dy < 0 ? "end" : "start", dx: dy / 3, dy, fill: "var(--soft)" })),
      Plot.dot(points, { x: "intensity", y: "rate", r: "us", symbol: "way", stroke: "way", fill: "way", fillOpacity: 0.3 }),
      Plot.tip(points, Plot.pointer({ x: "intensity", y: "rate", title: "title", fill: "var(--ground)", stroke: "var(--line)" })),
    ],
  }));
}

// -- memory --

function plotMemory(profiles) {
  const lines = profiles.filter(p => p.memory).flatMap(p => p.memory.line.map(([at, size]) => ({ way: p.way, at, size })));
  const peaks = profiles.filter(p => p.memory).map(p => ({ way: p.way, at: p.memory.at, size: p.memory.peak }));
  const end = d3.max(lines, l => l.at) ?? d3.max(profiles, p => p.step);
  if (!peaks.length) return;
  put("plot-memory", Plot.plot({
    width: WIDTH, height: 260, marginLeft: 74, marginRight: 120, style: { background: "none", fontSize: "12px" },
    x: timeAxis(end),
    y: { label: "bytes", grid: true, zero: true, tickFormat: bytes, ticks: 5 },
    color: { legend: true, domain: ["eager", "torchweld"], range: [WAY_COLOUR.eager, WAY_COLOUR.torchweld] },
    marks: [
      Plot.areaY(lines, { x: "at", y2: "size", y1: 0, fill: "way", fillOpacity: 0.15, curve: "step-after" }),
      Plot.lineY(lines, { x: "at", y: "size", stroke: "way", curve: "step-after" }),
      Plot.ruleY(peaks.filter(p => p.at === null), { y: "size", x1: 0, x2: end, stroke: "way", strokeDasharray: "5 4" }),
      Plot.dot(peaks.filter(p => p.at !== null), { x: "at", y: "size", fill: "way", r: 4 }),
      Plot.text(peaks, { x: p => p.at ?? end, y: "size", text: p => `${bytes(p.size)}B${p.at === null ? " at most, " + p.way : ""}`, textAnchor: "end", dy: -10, fill: "var(--ink)", stroke: "var(--ground)", strokeWidth: 4 }),
      Plot.tip(lines, Plot.pointerX({ x: "at", y: "size", title: p => `${p.way}\n${bytes(p.size)}B at ${microseconds(p.at)}`, fill: "var(--ground)", stroke: "var(--line)" })),
    ],
  }));
}

function startPlots() {
  const data = figures();
  plotWays(data.ways);
  if (!data.profiles.length) return;
  startTimelines(data.profiles);
  plotRoofline(data.roofline, data.profiles);
  plotMemory(data.profiles);
}
