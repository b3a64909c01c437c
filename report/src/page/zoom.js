// Zoom and read-out, for whoever lets scripts run: the page is complete without.
(() => {
  const element = document.querySelector("script.record");
  const place = document.getElementById("zoom");
  if (!element || !place || !window.uPlot) return;
  // The opposite of what the page's maker does: arrays of objects lie there as columns.
  const unpack = (v) => {
    if (Array.isArray(v)) return v.map(unpack);
    if (!v || typeof v !== "object") return v;
    if (!("#" in v)) return Object.fromEntries(Object.entries(v).map(([k, x]) => [k, unpack(x)]));
    const rows = Array.from({ length: v["#"] }, () => ({}));
    for (const [key, column] of Object.entries(v)) {
      if (key === "#") continue;
      const same = column && !Array.isArray(column) && "=" in column && Object.keys(column).length === 1;
      const values = same ? null : unpack(column);
      const one = same ? unpack(column["="]) : null;
      rows.forEach((row, i) => (row[key] = same ? one : values[i]));
    }
    return rows;
  };
  const timeline = unpack(JSON.parse(element.textContent).timeline);
  if (!timeline || !timeline.ticks || timeline.ticks.length < 2) return;
  const tick = timeline.tick_ms / 1000;
  const at = timeline.ticks.map((_, i) => (i + 0.5) * tick);
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const begins = (b) => (8 + (b % 8)) * 2 ** (Math.floor(b / 8) - 3);
  const quantile = (latency, q) => {
    const total = latency.reduce((sum, [, n]) => sum + n, 0);
    let below = 0;
    for (const [bucket, n] of latency) {
      if (below + n >= q * total) {
        const share = Math.min(1, Math.max(0, (q * total - below) / n));
        return (begins(bucket) + share * (begins(bucket + 1) - begins(bucket))) / 1e6;
      }
      below += n;
    }
    return null;
  };
  const plots = [];
  const key = uPlot.sync("run");
  let moving = false;
  const together = (u) => {
    if (moving) return;
    moving = true;
    const { min, max } = u.scales.x;
    plots.filter((p) => p !== u).forEach((p) => p.setScale("x", { min, max }));
    moving = false;
  };
  const draw = (title, unit, series, log) => {
    const box = document.createElement("div");
    box.className = "plot";
    place.append(box);
    const axis = { stroke: style("--muted"), grid: { stroke: style("--grid"), width: 1 }, ticks: { stroke: style("--grid") } };
    const lines = series.map((s) => ({ label: s.name, stroke: style(s.colour), width: 1.4,
      value: (_, v) => (v == null ? "-" : Number(v.toPrecision(4)).toLocaleString() + unit) }));
    const options = { title, width: place.clientWidth, height: 220,
      cursor: { sync: { key: key.key }, drag: { x: true, y: false } },
      scales: { x: { time: false }, y: log ? { distr: 3 } : { range: (_, low, high) => [Math.min(0, low), high || 1] } },
      axes: [{ ...axis, values: (_, v) => v.map((x) => x + " s") }, { ...axis, size: 64 }],
      series: [{ label: "time", value: (_, v) => (v == null ? "-" : v.toFixed(2) + " s") }, ...lines],
      hooks: { setScale: [(u, name) => name === "x" && plots.includes(u) && together(u)] } };
    plots.push(new uPlot(options, [at, ...series.map((s) => s.values)], box));
  };
  const colours = ["--r0", "--r1", "--r2", "--r3", "--r4", "--r5"];
  const rate = (of) => timeline.ticks.map((t) => of(t) / tick);
  place.hidden = false;
  draw("Samples per second", "/s", [
    { name: "completed", colour: "--net", values: rate((t) => t.completed) },
    { name: "issued", colour: "--all", values: rate((t) => t.issued) }]);
  const filled = (q) => timeline.ticks.map((t) => (t.latency.length ? quantile(t.latency, q) : null));
  draw("Latency of a tick, ms", " ms", [
    { name: "p50", colour: "--q50", values: filled(0.5) },
    { name: "p99", colour: "--q99", values: filled(0.99) },
    { name: "longest", colour: "--all", values: filled(1) }], true);
  const connections = timeline.ticks[0].connections.length;
  if (connections > 0 && connections <= 16) {
    const names = place.dataset.connections ? JSON.parse(place.dataset.connections) : [];
    draw("Samples per second of each connection", "/s", Array.from({ length: connections }, (_, i) => ({
      name: names[i] || String(i), colour: colours[i % colours.length],
      values: rate((t) => (t.connections[i] || { samples: 0 }).samples) })));
  }
  const widen = () => plots.forEach((p) => p.setSize({ width: place.clientWidth, height: 220 }));
  window.addEventListener("resize", widen);
})();
