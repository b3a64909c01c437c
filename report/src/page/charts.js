// Draws the charts of a page: uPlot, from the JSON in `data-chart`. Knows nothing of runs.
"use strict";
const drawCharts = (() => {
  const HEIGHT = 210;
  const drawn = new Set();
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const number = (v) => Number(v.toPrecision(4)).toLocaleString("en", { maximumFractionDigits: 6 });
  const scaled = (v, steps) => {
    const [least, unit] = steps.find(([least]) => Math.abs(v) >= least) || steps[steps.length - 1];
    return v === 0 ? "0" : number(v / least) + unit;
  };
  const percentile = (nines) => Number((100 * (1 - 10 ** -nines)).toFixed(Math.max(1, Math.ceil(nines) - 1)));
  const units = {
    count: (v) => (Math.abs(v) < 1e6 ? number(v) : number(v / 1e6) + " M"),
    seconds: (v) => number(v) + " s",
    us: (v) => scaled(v, [[1e6, " s"], [1e3, " ms"], [1, " us"], [1e-3, " ns"]]),
    share: (v) => number(100 * v) + " %",
    nines: (v) => "p" + percentile(v),
  };
  // One step of the golden angle apart, so that neighbours differ.
  const hue = (i) => `hsl(${Math.round(210 + i * 137.5) % 360} 60% 48%)`;

  // A value between two gaps is on no line: it gets a point.
  const alone = (u, of) => u.data[0].flatMap((_, i) =>
    (u.data[of][i] != null && u.data[of][i - 1] == null && u.data[of][i + 1] == null ? [i] : []));

  function options(chart, width) {
    const [x, y] = chart.units, dark = css("muted"), faint = { stroke: css("grid"), width: 1 };
    const axis = (unit, more) => ({ stroke: dark, grid: faint, ticks: faint, font: "12px system-ui",
      values: (_, at) => at.map((v) => (v == null ? "" : units[unit](v))), ...more });
    const bars = chart.style === "bars", scatter = chart.style === "scatter";
    const series = chart.lines.map((line, i) => {
      const colour = line.colour ? css(line.colour) : hue(i);
      const dots = ["joined", "filled", "hollow"].includes(line.shape), joined = line.shape === "joined";
      return { label: line.name, stroke: colour, width: bars ? 0 : 1.5, dash: line.shape === "dashed" ? [6, 4] : undefined,
        fill: bars ? colour : undefined, spanGaps: joined,
        points: dots ? { show: true, size: 9, width: 1.5, fill: line.shape === "hollow" ? css("card") : colour }
          : { show: false, size: 4, fill: colour, filter: alone },
        paths: bars ? uPlot.paths.bars({ size: [0.9, 60] }) : dots && !joined ? () => null : undefined,
        value: (_, v, of, at) => (at == null || line.values[at] == null ? "-" : units[y](line.values[at])) };
    });
    const named = (u) => chart.marks.forEach((mark, i) => {
      const y = chart.lines.map((line) => line.values[i]).find((v) => v != null), ctx = u.ctx;
      if (y == null) return;
      ctx.save();
      ctx.fillStyle = css("fg");
      ctx.textAlign = "right";
      ctx.fillText(mark.text, u.valToPos(mark.x, "x", true) - 7 * devicePixelRatio, u.valToPos(y, "y", true) - 7 * devicePixelRatio);
      ctx.restore();
    });
    const marks = (u) => chart.marks.forEach((mark, i) => {
      const { left, top, width, height } = u.bbox, at = u.valToPos(mark.x, "x", true), ctx = u.ctx;
      if (at < left || at > left + width) return;
      ctx.save();
      ctx.strokeStyle = ctx.fillStyle = css(mark.colour);
      ctx.setLineDash([3, 3]);
      ctx.beginPath();
      ctx.moveTo(at, top);
      ctx.lineTo(at, top + height);
      ctx.stroke();
      ctx.textAlign = "left";
      ctx.fillText(mark.text, at + 3, top + (1 + (i % 3)) * 13 * devicePixelRatio);
      ctx.restore();
    });
    const all = scatter ? chart.lines.flatMap((line) => line.values).filter((v) => v > 0) : [];
    const log = chart.style === "log" || Math.max(...all) > 20 * Math.min(...all);
    const apart = (a, b) => 0.06 * (b - a || b || 1);
    return { width, height: HEIGHT, padding: [10, 34, 0, 0],
      cursor: { sync: x === "seconds" ? { key: "seconds" } : undefined, drag: { x: true, y: false } },
      scales: { x: { time: false, range: bars ? (_, a, b) => [a - 0.5, b + 0.5]
        : scatter ? (_, a, b) => [Math.max(0, a - apart(a, b)), b + apart(a, b)]
        : x === "seconds" ? (_, a, b) => [Math.max(0, a), b] : undefined },
        y: log ? { distr: 3 } : { range: (_, low, high) => [Math.min(0, low), high > 0 ? 1.05 * high : 1] } },
      axes: [axis(x, { size: 32, incrs: bars ? [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000] : undefined, splits: x === "nines" ? (u, of, low, high) => [0, Math.log10(2), 1, 2, 3, 4, 5, 6, 7].filter((v) => v <= high && (v > 0 || u.width > 200 * high)) : undefined }), axis(y, { size: 74 })],
      series: [{ label: "at", value: (_, v, of, at) => (v == null ? "-" : (scatter && chart.marks[at] ? chart.marks[at].text + ", " : "") + units[x](v)) }, ...series],
      hooks: { draw: [scatter ? named : marks] } };
  }

  function plot(place) {
    const chart = JSON.parse(place.dataset.chart);
    const bars = chart.style === "bars";
    // Bars stand on each other: the whole one is drawn first, its lower parts over it.
    if (bars) chart.lines.reverse();
    const data = chart.lines.map((line) => line.values);
    for (let i = data.length - 2; bars && i >= 0; i--) {
      data[i] = data[i].map((v, at) => v + data[i + 1][at]);
    }
    drawn.add(new uPlot(options(chart, place.clientWidth), [chart.x, ...data], place));
  }

  window.addEventListener("resize", () => drawn.forEach((u) => u.setSize({ width: u.root.parentNode.clientWidth, height: HEIGHT })));
  return () => {
    drawn.forEach((u) => u.root.isConnected || (u.destroy(), drawn.delete(u)));
    document.querySelectorAll(".plot:empty").forEach(plot);
  };
})();
drawCharts();
document.querySelectorAll("time").forEach((time) => (time.textContent = new Date(1000 * time.dataset.at).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "long" })));
