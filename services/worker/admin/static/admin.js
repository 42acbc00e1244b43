// Charts, the switch between light and dark, and "select all". The numbers come with the page.
"use strict";

const root = document.documentElement;
const drawn = [];

const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();

const isDark = () =>
  root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const exact = new Intl.NumberFormat("en");

const units = {
  count: (value) => (value < 10000 ? exact.format(value) : compact.format(value)),
  percent: (value) => `${Math.round(value * 10) / 10} %`,
  ms: (value) => (value === 0 ? "< 1 ms" : value < 1000 ? `${Math.round(value)} ms` : `${Math.round(value / 100) / 10} s`),
  dollars: (value) => `$${value >= 0.1 || value === 0 ? value.toFixed(2) : Number(value.toPrecision(3))}`,
};

const dayName = (iso) =>
  new Date(`${iso}T00:00:00Z`).toLocaleDateString("en-GB", { day: "numeric", month: "short", timeZone: "UTC" });

// Bars stand on each other: what is drawn is the sum so far, the highest first.
const stacked = (series) => {
  const sums = new Array(series[0].values.length).fill(0);
  return series.map((one) => one.values.map((value, day) => (sums[day] += value ?? 0)));
};

const tens = (_, places) => places.map((value) => (Number.isInteger(Math.log10(value)) ? value : null));

const axis = (more) => ({
  stroke: colour("muted"),
  grid: { stroke: colour("line"), width: 1 },
  ticks: { show: false },
  font: "12px system-ui, sans-serif",
  ...more,
});

// Answers from the cache take milliseconds, made ones seconds: only a logarithm shows both.
const yScale = (unit) => {
  if (unit === "ms") return { distr: 3, range: (_, least, most) => uPlot.rangeLog(Math.max(least, 1), Math.max(most, 10), 10, true) };
  if (unit === "percent") return { range: [0, 100] };
  return { range: (_, __, most) => [0, Math.max(most * 1.08, unit === "count" ? 1 : 1e-9)] };
};

const draw = (holder) => {
  const chart = JSON.parse(holder.dataset.chart);
  const write = units[chart.unit];
  const bars = chart.kind === "bars";
  // A logarithm has no place for zero: what took less than a millisecond is drawn at one.
  const height = (value) => (chart.unit === "ms" && value !== null ? Math.max(value, 1) : value);
  const values = bars ? stacked(chart.series) : chart.series.map((one) => one.values.map(height));
  const raw = chart.series.map((one) => one.values);
  const order = chart.series.map((_, place) => place);
  if (bars) order.reverse();
  const line = (place) => ({
    label: chart.series[place].label.replaceAll("_", " "),
    stroke: colour(`series-${place + 1}`),
    width: bars ? 0 : 2,
    fill: bars ? colour(`series-${place + 1}`) : undefined,
    paths: bars ? uPlot.paths.bars({ size: [0.7, 48] }) : undefined,
    points: { show: !bars, size: 6, fill: colour(`series-${place + 1}`) },
    spanGaps: false,
    value: (_, __, ___, day) => (day === null || raw[place][day] === null ? "–" : write(raw[place][day])),
  });
  const days = chart.days.map((_, day) => day);
  const whole = chart.unit === "count";
  const options = {
    width: holder.clientWidth,
    height: 220,
    cursor: { drag: { x: false, y: false }, points: { show: !bars } },
    scales: {
      x: { time: false, range: [-0.6, days.length - 0.4] },
      y: yScale(chart.unit),
    },
    axes: [
      axis({
        values: (_, places) => places.map((day) => (Number.isInteger(day) && chart.days[day] ? dayName(chart.days[day]) : "")),
        space: 56,
        incrs: [1, 2, 3, 4, 7],
      }),
      axis({
        values: (_, places) =>
          places.map((value) => (value === null || (whole && !Number.isInteger(value)) ? "" : write(value))),
        size: 64,
        grid: { stroke: colour("line"), width: 1, ...(chart.unit === "ms" ? { filter: tens } : {}) },
      }),
    ],
    legend: { live: true },
    series: [{ label: "day", value: (_, day) => (day === null ? "–" : dayName(chart.days[day])) }, ...order.map(line)],
  };
  holder.replaceChildren();
  return new uPlot(options, [days, ...order.map((place) => values[place])], holder);
};

const drawAll = () => {
  drawn.splice(0).forEach((plot) => plot.destroy());
  document.querySelectorAll("[data-chart]").forEach((holder) => drawn.push(draw(holder)));
};

const fit = () => drawn.forEach((plot) => plot.setSize({ width: plot.root.parentElement.clientWidth, height: 220 }));

const listen = () => {
  document.getElementById("theme")?.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    localStorage.setItem("glossa-theme", root.dataset.theme);
    drawAll();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  addEventListener("resize", fit);
  document.querySelectorAll("[data-check-all]").forEach((all) =>
    all.addEventListener("change", () => {
      all.form.querySelectorAll(`input[name="${all.dataset.checkAll}"]`).forEach((box) => (box.checked = all.checked));
    }),
  );
};

listen();
drawAll();
