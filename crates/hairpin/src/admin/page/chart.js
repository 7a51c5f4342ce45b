// Line charts in SVG. Colours and sizes come from the style sheet, so that dark mode and zoom require no code here.

import { element, svg } from "./main.js";

const WIDTH = 440;
const HEIGHT = 136;
const LEFT = 78;
const RIGHT = 8;
const TOP = 8;
const BOTTOM = 20;
/** Possible lengths of the time axis, in minutes. */
const SPANS = [5, 15, 30, 60];
/** Points per line: one per about two pixels. */
const BUCKETS = 200;

/** The largest value of each bucket, so that short peaks stay visible. */
function reduce(times, values, start, span) {
  const points = [];
  let last = -1;
  times.forEach((time, index) => {
    const bucket = Math.floor(((time - start) / span) * BUCKETS);
    const value = values[index];
    if (bucket < 0 || value === undefined) return;
    if (bucket === last) points.at(-1).value = Math.max(points.at(-1).value, value);
    else points.push({ bucket, value });
    last = bucket;
  });
  return points;
}

/** The next round number that is not less than the value. */
function ceiling(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value);
}

export class Chart {
  constructor(title, names, format, most) {
    this.names = names;
    this.format = format;
    this.most = most;
    this.title = title;
    this.svg = svg("svg", { class: "chart", role: "img", viewBox: `0 0 ${WIDTH} ${HEIGHT}` });
    const keys = names.length > 1 ? names.slice(0, 4).map((name, place) => element("span", { class: `key s${place}` }, name)) : [];
    this.root = element("figure", { class: "card" }, element("figcaption", {}, element("strong", {}, title), ...keys), this.svg);
  }

  /** Draws the samples that exist, at most an hour. */
  draw(times, series) {
    const end = times.at(-1) ?? 0;
    const known = (end - (times[0] ?? end)) / 60;
    const minutes = SPANS.find((most) => known <= most) ?? SPANS.at(-1);
    const span = minutes * 60;
    const start = end - span;
    const lines = series.map((values) => reduce(times, values, start, span));
    const highest = Math.max(0, ...lines.flat().map((point) => point.value));
    const top = this.most ?? ceiling(highest);
    const x = (bucket) => LEFT + (bucket / BUCKETS) * (WIDTH - LEFT - RIGHT);
    const y = (value) => TOP + (1 - Math.min(value / top, 1)) * (HEIGHT - TOP - BOTTOM);
    const parts = [];
    for (const value of [0, top / 2, top]) {
      parts.push(svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }));
      parts.push(svg("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, this.format(value)));
    }
    for (const [share, anchor] of [[1, "start"], [0.5, "middle"], [0, "end"]]) {
      const label = share ? `${minutes * share} min ago` : "now";
      parts.push(svg("text", { x: x(BUCKETS * (1 - share)), y: HEIGHT - 4, "text-anchor": anchor }, label));
    }
    lines.forEach((points, number) => {
      const path = points.map((point, place) => `${place ? "L" : "M"}${x(point.bucket).toFixed(1)} ${y(point.value).toFixed(1)}`);
      if (path.length === 1) path.push("h2");
      parts.push(svg("path", { class: `s${number % 4}`, d: path.join("") || "M0 0" }));
    });
    const spoken = series.map((values, place) => `${this.names[place]}: ${this.format(values.at(-1) ?? 0)} now`);
    this.svg.setAttribute("aria-label", `${this.title}, last ${minutes} minutes. ${spoken.join(", ")}. At most ${this.format(highest)}.`);
    this.svg.replaceChildren(...parts);
  }
}
