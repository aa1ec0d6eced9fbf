// Words for amounts, and one graph: lines over time, bounds as dashed lines, restarts as marks.
"use strict";

const words = {
  bytes(n) {
    if (n == null || !isFinite(n)) return "–";
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    while (Math.abs(n) >= 1024 && unit < units.length - 1) { n /= 1024; unit += 1; }
    return `${unit === 0 || n >= 100 ? Math.round(n) : n.toFixed(1)} ${units[unit]}`;
  },
  rate(n) { return n == null || !isFinite(n) ? "–" : `${words.bytes(n)}/s`; },
  cores(n) {
    if (n == null || !isFinite(n)) return "–";
    if (n === 0) return "0";
    if (n >= 10) return n.toFixed(1);
    return n >= 1 ? n.toFixed(2) : `${n >= 0.0995 ? Math.round(n * 1000) : (n * 1000).toFixed(1)}m`;
  },
  age(seconds) {
    const s = Math.max(0, Math.round(seconds));
    if (s < 120) return `${s}s`;
    if (s < 7200) return `${Math.floor(s / 60)}m`;
    if (s < 172800) return `${Math.floor(s / 3600)}h`;
    return `${Math.floor(s / 86400)}d`;
  },
};

const tone = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

function element(kind, className, text) {
  const made = document.createElement(kind);
  if (className) made.className = className;
  if (text != null) made.textContent = text;
  return made;
}

// Steps that people count in: 1, 2, 5 of each power of ten, or of two for bytes.
function steps(binary) {
  const all = [];
  if (binary) for (let power = 0; power < 50; power += 1) all.push(2 ** power);
  else for (let power = -4; power < 7; power += 1) for (const step of [1, 2, 5]) all.push(step * 10 ** power);
  return all;
}

const together = uPlot.sync("all");

/** One graph. `lines` are {label, tone, key}; the shape of its data is told with each `show`. */
class Graph {
  constructor(title, kind, lines) {
    this.kind = kind;
    this.lines = lines;
    this.bounds = [];
    this.marks = [];
    this.root = element("div", "graph");
    const head = element("h2");
    head.append(element("span", "", title));
    this.values = lines.map((line) => {
      const value = element("span", "value");
      value.style.setProperty("--tone", `var(--${line.tone})`);
      head.append(value);
      return value;
    });
    this.box = element("div", "box");
    this.empty = element("p", "empty", "Waiting for a second look …");
    this.root.append(head, this.empty, this.box);
    this.resized = new ResizeObserver(() => this.plot && this.plot.setSize({ width: this.box.clientWidth, height: 170 }));
    this.resized.observe(this.box);
  }

  format(value) { return words[this.kind](value); }

  say(at) {
    this.lines.forEach((line, i) => {
      const column = this.data[i + 1];
      const value = at == null ? column.findLast((v) => v != null) : column[at];
      this.values[i].textContent = `${line.label} ${this.format(value)}`;
    });
  }

  /** Shows `data` (seconds, then a column for each line) between `from` and `to`. */
  show(data, bounds, marks, from, to, otherwise) {
    this.data = data;
    this.bounds = bounds.filter((b) => b.value > 0);
    this.marks = marks;
    this.span = [from, to];
    const some = data[0].length > 0;
    this.empty.hidden = some;
    this.empty.textContent = otherwise;
    this.box.hidden = !some;
    for (const value of this.values) value.hidden = !some;
    if (!some) return;
    if (!this.plot) this.plot = this.draw();
    else {
      this.plot.setData(data, false);
      this.plot.batch(() => { this.plot.setScale("x", { min: from, max: to }); });
    }
    if (this.plot.cursor.idx == null) this.say(null);
  }

  /** Colours are read when a graph is made, so a change of theme makes it again. */
  repaint() {
    if (!this.plot) return;
    this.plot.destroy();
    this.plot = this.draw();
  }

  end() {
    this.resized.disconnect();
    if (this.plot) this.plot.destroy();
    this.root.remove();
  }

  top(max) {
    // A bound far above what is used would press the lines flat; then it is told at the upper edge.
    const near = this.bounds.map((b) => b.value).filter((v) => v <= Math.max(max, 0) * 4);
    const highest = Math.max(max, ...near, 0);
    return highest > 0 ? highest * 1.12 : this.kind === "cores" ? 0.01 : 1024;
  }

  draw() {
    const soft = tone("faint"), grid = { stroke: tone("line"), width: 1 };
    const font = `11px ${getComputedStyle(document.body).fontFamily}`;
    const time = (u, splits) => splits.map((s) => {
      const d = new Date(s * 1000), two = (n) => String(n).padStart(2, "0");
      const short = `${two(d.getHours())}:${two(d.getMinutes())}`;
      return u.scales.x.max - u.scales.x.min > 300 ? short : `${short}:${two(d.getSeconds())}`;
    });
    return new uPlot({
      width: this.box.clientWidth, height: 170, padding: [8, 6, 0, 0], pxAlign: true,
      legend: { show: false },
      cursor: { sync: { key: together.key }, drag: { setScale: false, x: false, y: false }, points: { size: 7 } },
      scales: { x: { time: true, range: () => this.span }, y: { range: (u, min, max) => [0, this.top(max)] } },
      axes: [
        { stroke: soft, grid: { show: false }, ticks: { show: false }, font, values: time, size: 26, space: 74 },
        { stroke: soft, grid, ticks: { show: false }, font, size: 66, space: 32, incrs: steps(this.kind !== "cores"),
          values: (u, splits) => splits.map((v) => this.format(v)) },
      ],
      series: [{}, ...this.lines.map((line) => ({
        stroke: tone(line.tone), width: 1.75, points: { show: false },
        fill: this.lines.length === 1 ? `color-mix(in srgb, ${tone(line.tone)} 14%, transparent)` : undefined,
      }))],
      hooks: {
        setCursor: [(u) => this.say(u.cursor.idx)],
        draw: [(u) => { this.drawBounds(u, font); this.drawMarks(u, font); }],
      },
    }, this.data, this.box);
  }

  drawBounds(u, font) {
    const { ctx, bbox } = u, ratio = devicePixelRatio;
    ctx.save();
    ctx.font = font.replace("11", String(11 * ratio));
    ctx.textBaseline = "alphabetic";
    ctx.lineWidth = 1.25 * ratio;
    for (const bound of this.bounds) {
      const fits = bound.value <= u.scales.y.max;
      const y = fits ? u.valToPos(bound.value, "y", true) : bbox.top + 12 * ratio;
      ctx.strokeStyle = ctx.fillStyle = tone(bound.tone);
      if (fits) {
        ctx.setLineDash([5 * ratio, 4 * ratio]);
        ctx.beginPath();
        ctx.moveTo(bbox.left, y);
        ctx.lineTo(bbox.left + bbox.width, y);
        ctx.stroke();
      }
      ctx.textAlign = bound.left ? "left" : "right";
      const x = bound.left ? bbox.left + 4 * ratio : bbox.left + bbox.width - 4 * ratio;
      ctx.fillText(`${bound.label} ${this.format(bound.value)}${fits ? "" : " ↑"}`, x, y - 4 * ratio);
    }
    ctx.restore();
  }

  drawMarks(u, font) {
    const { ctx, bbox } = u, ratio = devicePixelRatio;
    ctx.save();
    ctx.font = font.replace("11", String(11 * ratio));
    for (const mark of this.marks) {
      if (mark.at < this.span[0] || mark.at > this.span[1]) continue;
      const x = u.valToPos(mark.at, "x", true);
      ctx.strokeStyle = ctx.fillStyle = tone(mark.bad ? "bad" : "warn");
      ctx.lineWidth = 1.25 * ratio;
      ctx.setLineDash([2 * ratio, 3 * ratio]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.beginPath();
      ctx.moveTo(x - 4 * ratio, bbox.top);
      ctx.lineTo(x + 4 * ratio, bbox.top);
      ctx.lineTo(x, bbox.top + 7 * ratio);
      ctx.fill();
    }
    ctx.restore();
  }
}
