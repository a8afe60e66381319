"use strict";

/* Make an element. Text is always a text node, so nothing in it is ever read as HTML. */
function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key === "onclick" || key === "oninput" || key === "onchange") element.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const Format = {
  count: (value) => (value === null ? "-" : value.toLocaleString("en-US")),
  number: (value) => (value === null || value === undefined ? "-" : Number.isInteger(value) ? value.toLocaleString("en-US") : String(Number(value.toPrecision(4)))),
  bytes(value) {
    if (value === null) return "-";
    let unit = 0;
    while (value >= 1024 && unit < 4) { value /= 1024; unit += 1; }
    return (unit ? value.toFixed(1) : String(value)) + " " + ["bytes", "KiB", "MiB", "GiB", "TiB"][unit];
  },
  decibel: (value) => (value === null ? "-" : value.toFixed(1) + " dB"),
  shape: (value) => "[" + value.map((size) => (size === null ? "?" : size)).join(", ") + "]",
};

const Charts = (() => {
  const svg = (parent, width, height, label, role = "img") =>
    d3.select(parent).append("svg").attr("viewBox", `0 0 ${width} ${height}`).attr("width", width).attr("height", height)
      .attr("role", role).attr("aria-label", label);

  /* Bins are [low, high, width, counts]; a width of 0 divides the range evenly. */
  const edges = ([low, high, width, counts]) =>
    counts.map((_, i) => width ? [low + i * width, Math.min(low + (i + 1) * width, high + 1)] : [low + ((high - low) * i) / counts.length, low + ((high - low) * (i + 1)) / counts.length]);

  function mini(histogram) {
    const counts = histogram[3], most = d3.max(counts) || 1, step = 72 / counts.length;
    const scale = d3.scaleSqrt().domain([0, most]).range([0, 19]);
    const path = counts.map((count, i) => count ? `M${(i * step).toFixed(1)} 20v${(-Math.max(scale(count), 1)).toFixed(1)}h${(step - 1).toFixed(1)}V20z` : "").join("");
    const element = d3.create("svg:svg").attr("class", "mini").attr("viewBox", "0 0 72 20").attr("role", "img")
      .attr("aria-label", `histogram from ${Format.number(histogram[0])} to ${Format.number(histogram[1])}`);
    element.append("path").attr("d", path);
    return element.node();
  }

  /* Counts on a scale of log(1 + n), so that a single outlier is seen. `other` are counts over the same bins. */
  function histogram(parent, bins, { mean = null, std = null, other = null, label }) {
    const width = 460, height = 238, [left, bottom] = [52, 190];
    const all = edges(bins), low = all[0][0], high = all[all.length - 1][1];
    const x = d3.scaleLinear().domain(low < high ? [low, high] : [low - 0.5, high + 0.5]).range([left, width - 10]);
    const most = Math.max(d3.max(bins[3]), other ? d3.max(other) : 0, 1);
    const y = d3.scaleLinear().domain([0, Math.log10(1 + most)]).range([bottom, 12]);
    const chart = svg(parent, width, height, label);
    const at = (count) => y(Math.log10(1 + count));
    const bars = chart.append("g").attr("class", "bars");
    all.forEach(([from, to], i) => {
      if (!bins[3][i]) return;
      const bar = bars.append("rect").attr("x", x(from)).attr("width", Math.max(x(to) - x(from) - 1, 1)).attr("y", at(bins[3][i])).attr("height", bottom - at(bins[3][i]));
      bar.append("title").text(`${Format.number(from)} to ${Format.number(to)}: ${Format.count(bins[3][i])}`);
    });
    if (other) {
      const line = all.map(([from, to], i) => `${i ? "L" : "M"}${x(from)} ${at(other[i])}H${x(to)}`).join("");
      chart.append("path").attr("class", "bars-other").attr("d", line);
    }
    if (std) for (const sigma of [-6, -3, 3, 6]) {
      const value = mean + sigma * std;
      if (value <= low || value >= high) continue;
      chart.append("line").attr("class", "mark").attr("x1", x(value)).attr("x2", x(value)).attr("y1", 12).attr("y2", bottom);
      chart.append("text").attr("x", x(value)).attr("y", 10).attr("text-anchor", "middle").text(`${sigma}σ`);
    }
    axis(chart, d3.axisBottom(x).ticks(6), 0, bottom);
    axis(chart, d3.axisLeft(y).tickValues(powers(most).map((n) => Math.log10(1 + n))).tickFormat((value) => Format.count(Math.round(10 ** value - 1))), left, 0);
    chart.append("text").attr("x", width - 10).attr("y", height - 8).attr("text-anchor", "end").text("value; bars: elements, log scale");
  }

  const powers = (most) => d3.range(0, Math.floor(Math.log10(most)) + 1).map((n) => 10 ** n);

  function axis(chart, made, x, y) {
    chart.append("g").attr("transform", `translate(${x},${y})`).call(made).attr("font-family", null);
  }

  function ranges(parent, [channels, least, most, lows, highs, count]) {
    const width = 460, height = 238, shown = lows.length, indices = lows.map((_, i) => Math.floor((i * (channels - 1)) / (shown - 1)));
    const value = (step) => least + (most - least) * (step / 999);
    const known = indices.map((index, i) => [index, value(lows[i]), value(highs[i])]).filter((_, i) => lows[i] >= 0);
    if (!known.length) return;
    const x = d3.scaleLinear().domain([0, indices[indices.length - 1]]).range([60, width - 14]);
    const y = d3.scaleLinear().domain([d3.min(known, (row) => row[1]), d3.max(known, (row) => row[2])]).nice().range([190, 12]);
    const chart = svg(parent, width, height, `Ranges of ${known.length} channels, of ${Format.count(count)} elements each`);
    for (const [index, low, high] of known) {
      chart.append("line").attr("class", "range").attr("x1", x(index)).attr("x2", x(index)).attr("y1", y(low) + 1).attr("y2", y(high) - 1)
        .append("title").text(`channel ${index}: ${Format.number(low)} to ${Format.number(high)}`);
    }
    axis(chart, d3.axisBottom(x).ticks(Math.min(8, indices.length)).tickFormat(d3.format("d")), 0, 192);
    axis(chart, d3.axisLeft(y).ticks(6), 58, 0);
    chart.append("text").attr("x", width - 10).attr("y", height - 8).attr("text-anchor", "end").text("index along the first axis");
  }

  const clipped = (text, room) => (text.length <= room ? text : room < 2 ? "" : [...text].slice(0, room - 1).join("") + "…");

  function consumers(parent, name, rows, total) {
    const shown = rows.length, height = Math.max(shown, 1) * 34 + 6, middle = height / 2;
    const chart = svg(parent, 620, height, `${clipped(name, 80)} is read by ${rows.map((row) => clipped(row[1], 60)).join(", ")}`);
    const box = (x, y, width, text) => {
      chart.append("rect").attr("class", "box").attr("x", x).attr("y", y - 13).attr("width", width).attr("height", 26).attr("rx", 4);
      chart.append("text").attr("x", x + 8).attr("y", y + 4).text(clipped(text, Math.floor((width - 16) / 6.6)));
    };
    rows.forEach(([type, label], i) => {
      const y = i * 34 + 20;
      chart.append("path").attr("class", "edge").attr("d", `M230 ${middle}C270 ${middle} 270 ${y} 310 ${y}`);
      box(310, y, 308, `${type}: ${label}`);
    });
    box(2, middle, 228, name);
    if (total > shown) d3.select(parent).append("p").text(`and ${Format.count(total - shown)} more`);
  }

  /* The weights in network order: SQNR above, largest difference below. */
  function layers(parent, rows, open) {
    const width = 1180, left = 60, right = width - 10;
    const x = d3.scaleLinear().domain([-0.5, rows.length - 0.5]).range([left, right]);
    const panel = (label, key, scale, format) => {
      const known = rows.map((row, i) => [i, row[key]]).filter(([, value]) => value !== null && (key !== "max_abs" || value > 0));
      if (!known.length) return;
      const chart = svg(parent, width, 190, `${label} of ${rows.length} weights in network order`);
      const low = key === "sqnr" ? Math.min(0, d3.min(known, (one) => one[1])) : d3.min(known, (one) => one[1]) / 2;
      const y = scale.domain([low, d3.max(known, (one) => one[1]) * (key === "sqnr" ? 1 : 1.2)]).range([165, 16]);
      chart.append("path").attr("class", "stem").attr("d", known.map(([i, value]) => `M${x(i).toFixed(1)} 165V${y(value).toFixed(1)}`).join(""));
      const dots = known.length > 600 ? [] : known;
      for (const [i, value] of dots) chart.append("circle").attr("class", "point").attr("cx", x(i)).attr("cy", y(value)).attr("r", 2.5).append("title").text(`${clipped(rows[i].name, 80)}: ${format(value)}`);
      axis(chart, d3.axisLeft(y).ticks(5), left - 4, 0);
      axis(chart, d3.axisBottom(x).ticks(10).tickFormat(d3.format("d")), 0, 166);
      chart.append("text").attr("x", left).attr("y", 11).text(label);
      chart.node().addEventListener("click", (event) => {
        const place = chart.node().getBoundingClientRect();
        const index = Math.round(x.invert(((event.clientX - place.left) * width) / place.width));
        if (rows[index]) open(rows[index]);
      });
    };
    panel("SQNR, dB (more is better)", "sqnr", d3.scaleLinear(), Format.decibel);
    panel("Largest difference (log scale)", "max_abs", d3.scaleLog(), Format.number);
  }

  function frontier(parent, { points, alone }, chosen) {
    const width = 760, height = 380, known = [...points, ...alone.map((row) => row.slice(1))].filter((point) => point[1] !== null);
    if (!known.length) return;
    const x = d3.scaleLinear().domain([0, Math.max(d3.max(known, (point) => point[0]), chosen || 0) * 1.05]).range([60, width - 20]);
    const y = d3.scaleLinear().domain([Math.min(0, d3.min(known, (point) => point[1])), d3.max(known, (point) => point[1]) * 1.05]).range([330, 14]);
    const chart = svg(parent, width, height, `Frontier: bytes of all weights against SQNR, ${points.length} sizes`);
    const line = points.filter((point) => point[1] !== null);
    chart.append("path").attr("class", "curve").attr("d", d3.line().x((point) => x(point[0])).y((point) => y(point[1])).curve(d3.curveStepAfter)(line));
    for (const [label, nbytes, sqnr] of alone.filter((row) => row[2] !== null)) {
      chart.append("circle").attr("class", "alone").attr("cx", x(nbytes)).attr("cy", y(sqnr)).attr("r", 5);
      chart.append("text").attr("x", x(nbytes) + 8).attr("y", y(sqnr) + 14).text(label);
    }
    if (chosen !== null) {
      chart.append("line").attr("class", "mark").attr("x1", x(chosen)).attr("x2", x(chosen)).attr("y1", 14).attr("y2", 330);
      const below = line.filter((point) => point[0] <= chosen);
      if (below.length) chart.append("circle").attr("class", "chosen").attr("cx", x(chosen)).attr("cy", y(d3.max(below, (point) => point[1]))).attr("r", 6);
      chart.append("text").attr("x", x(chosen) + 4).attr("y", 26).text(`chosen: ${Format.bytes(chosen)}`);
    }
    const unit = 1024 ** Math.floor(Math.log(x.domain()[1] || 1) / Math.log(1024)); // round numbers of it, not of bytes
    axis(chart, d3.axisBottom(x).tickValues(d3.ticks(0, x.domain()[1] / unit, 7).map((value) => value * unit)).tickFormat(Format.bytes), 0, 332);
    axis(chart, d3.axisLeft(y).ticks(6), 58, 0);
    chart.append("text").attr("x", width - 10).attr("y", height - 8).attr("text-anchor", "end").text("bytes of all weights; upwards: SQNR in dB; rings: one recipe for all weights");
  }

  /* Two levels of the scope `node`. `paint(node)` returns a class, `open(node)` is called for the cell that is chosen. */
  function treemap(parent, node, { paint, describe, open, leave }) {
    const width = 1180, height = 460;
    const copy = (one, depth) => ({ node: one, value: one.value, children: depth && one.children ? one.children.map((child) => copy(child, depth - 1)) : undefined });
    const root = d3.hierarchy(copy(node, 2)).sum((one) => (one.children ? 0 : Math.max(one.value, 1))).sort((a, b) => b.value - a.value);
    d3.treemap().size([width, height]).paddingInner(1).paddingTop((one) => (one.depth === 1 ? 18 : 0)).round(true)(root);
    const cells = root.descendants().slice(1).filter((cell) => (cell.x1 - cell.x0) * (cell.y1 - cell.y0) >= 4);
    if (!cells.length && !node.children) cells.push(root);
    const chart = svg(parent, width, height, "Map of bytes. Arrow keys move between cells, Enter opens one, Escape leaves the scope.", "group").attr("class", "map");
    cells.forEach((cell, number) => {
      const [x, y, w, t] = [cell.x0, cell.y0, Math.max(cell.x1 - cell.x0, 1), Math.max(cell.y1 - cell.y0, 1)];
      const own = cell.data.node, group = chart.append("g").attr("role", "button").attr("tabindex", number ? -1 : 0).attr("aria-label", describe(own));
      group.append("rect").attr("x", x).attr("y", y).attr("width", w).attr("height", t).attr("class", cell.children ? "scope" : paint(own));
      group.append("title").text(describe(own));
      const label = clipped(own.data.label, Math.floor((w - 8) / 6.8));
      if (label && t >= 15) group.append("text").attr("x", x + 4).attr("y", y + 13).text(label);
      group.node().addEventListener("click", () => open(own));
    });
    chart.node().addEventListener("keydown", (event) => {
      const all = [...chart.node().querySelectorAll("g[role=button]")], now = all.indexOf(document.activeElement);
      const next = { ArrowRight: now + 1, ArrowDown: now + 1, ArrowLeft: now - 1, ArrowUp: now - 1, Home: 0, End: all.length - 1 }[event.key];
      if (event.key === "Enter" || event.key === " ") open(cells[now].data.node);
      else if (event.key === "Escape" || event.key === "Backspace") leave();
      else if (next === undefined || !all[next]) return;
      else {
        all[now].setAttribute("tabindex", -1);
        all[next].setAttribute("tabindex", 0);
        all[next].focus();
      }
      event.preventDefault();
    });
    return chart.node();
  }

  return { mini, histogram, ranges, consumers, layers, frontier, treemap, clipped };
})();
