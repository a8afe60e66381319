/* Puts the page together from the data. */
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const named = (columns, row) => Object.fromEntries(columns.map((key, i) => [key, row[i]]));
  const main = document.getElementById("main"), dialog = document.getElementById("weight");
  const weights = data.weights.rows.map((row, index) => {
    const weight = named(data.weights.columns, row);
    weight.figures = weight.statistics === null ? null : named(data.weights.statistics, weight.statistics);
    weight.index = index;
    return weight;
  });
  const differences = data.comparison === null ? [] : data.comparison.rows.map((row) => named(data.comparison.columns, row));
  for (const row of differences) if (row.index !== null && weights[row.index]) weights[row.index].difference = row;

  function section(id, title) {
    const part = h("section", { id, "aria-labelledby": `${id}-title` }, h("h2", { id: `${id}-title` }, title));
    main.append(part);
    document.getElementById("sections").append(h("li", {}, h("a", { href: `#${id}` }, title)));
    return part;
  }

  const facts = (rows) => h("dl", { class: "facts" }, ...rows.filter((row) => row[1] !== null && row[1] !== "").flatMap(([key, value]) => [h("dt", {}, key), h("dd", {}, String(value))]));
  const nameButton = (text, act) => h("button", { class: "link name", title: text, onclick: act }, text);

  function header() {
    const first = data.models[0];
    document.getElementById("title").textContent = data.title;
    document.getElementById("summary").textContent = data.models.map((model) => `${model.title}: ${Format.count(model.weights)} weights, ${Format.count(model.elements)} elements, ${Format.bytes(model.nbytes)}`).join("; ");
    document.getElementById("made-by").textContent = `Made by ${data.made_by}. Charts: D3. This file needs no network.`;
    const theme = document.getElementById("theme");
    theme.addEventListener("change", () => { if (theme.value) document.documentElement.dataset.theme = theme.value; else delete document.documentElement.dataset.theme; });
    const part = section("models", data.models.length > 1 ? "Models" : "Model");
    const boxes = h("div", { class: "models" });
    data.models.forEach((model, i) => boxes.append(h("div", {}, h("h3", {}, data.models.length > 1 ? `${"AB"[i]}: ${model.title}` : model.title), facts([["kind", model.kind], ["weights", Format.count(model.weights)], ["elements", Format.count(model.elements)], ["stored bytes", `${Format.bytes(model.nbytes)} (${Format.count(model.nbytes)})`], ...model.metadata]))));
    part.append(boxes);
    const notes = [];
    if (!data.values) notes.push("Values were not read: this report was made from the Program alone.");
    const sampled = weights.filter((one) => one.sampled !== null), failed = weights.filter((one) => one.failure);
    if (sampled.length) notes.push(`Statistics of ${Format.count(sampled.length)} large weights are of a sample of their values; their pages say how many.`);
    if (failed.length) notes.push(`${Format.count(failed.length)} weights could not be read; their pages say why.`);
    const odd = weights.filter((one) => one.figures && one.figures.nans + one.figures.infinities > 0);
    if (odd.length) notes.push(`${Format.count(odd.length)} weights hold NaN or infinities.`);
    if (!first.weights) notes.push("This model has no weights.");
    part.append(...notes.map((note) => h("p", { class: "bad" }, note)));
  }

  // ------------------------------------------------------------------------------------------------------------- map

  const plain = (text) => text.replace(/[._/]$/, "");
  const nested = (nodes) => nodes.map(([label, content]) => Array.isArray(content) ? { label: plain(label), children: nested(content) } : { label, weight: weights[content] });

  function measured(root) {
    root.eachAfter((node) => {
      const own = node.data.weight, parts = node.children || [];
      node.value = own ? own.nbytes || 0 : d3.sum(parts, (one) => one.value);
      node.elements = own ? own.count || 0 : d3.sum(parts, (one) => one.elements);
      node.count = own ? 1 : d3.sum(parts, (one) => one.count);
      node.dtypes = new Map();
      if (own) node.dtypes.set(own.dtype, node.value);
      for (const one of parts) for (const [key, value] of one.dtypes) node.dtypes.set(key, (node.dtypes.get(key) || 0) + value);
      const errors = own ? (own.difference ? [own.difference.sqnr] : []) : parts.map((one) => one.sqnr);
      node.sqnr = d3.min(errors.filter((value) => value !== null && value !== undefined));
      if (node.sqnr === undefined) node.sqnr = null;
    });
    return root;
  }

  function stepped(value, limits) {
    const at = limits.findIndex((limit) => value < limit);
    return `s${at < 0 ? limits.length : at}`;
  }

  function map() {
    const part = section("map", "Map of bytes");
    if (!weights.length) { part.append(h("p", {}, "There are no weights to show.")); return; }
    const whole = measured(d3.hierarchy({ label: data.models[0].title, children: nested(data.weights.tree) }));
    const dtypes = [...whole.dtypes.keys()], bits = [3, 6, 10, 20], sqnr = [15, 25, 40, 60];
    const main_dtype = (node) => [...node.dtypes].sort((a, b) => b[1] - a[1])[0][0];
    const modes = {
      dtype: { label: "dtype", paint: (node) => `k${dtypes.indexOf(main_dtype(node)) % 8}`, legend: dtypes.map((dtype, i) => [`k${i % 8}`, dtype]) },
      bits: { label: "bits per weight", paint: (node) => node.elements ? stepped((8 * node.value) / node.elements, bits) : "scope", legend: ["below 3", "3 to 6", "6 to 10", "10 to 20", "20 and more"].map((text, i) => [`s${i}`, `${text} bits`]) },
    };
    if (differences.some((row) => row.sqnr !== null)) modes.error = { label: "error (SQNR)", paint: (node) => node.sqnr === null ? "scope" : stepped(node.sqnr, sqnr), legend: [["s0", "below 15 dB"], ["s1", "15 to 25 dB"], ["s2", "25 to 40 dB"], ["s3", "40 to 60 dB"], ["s4", "60 dB and more"], ["scope", "no difference"]] };
    const select = h("select", { id: "map-colour", onchange: () => draw() }, ...Object.entries(modes).map(([key, mode]) => h("option", { value: key }, mode.label)));
    const path = h("ol"), place = h("div", { id: "treemap" }), legend = h("ul", { class: "legend", "aria-label": "Legend" });
    part.append(h("div", { class: "tools" }, h("label", { for: "map-colour" }, "Colour by"), select), h("nav", { "aria-label": "Scope" }, path), place, legend);
    let now = whole;
    const describe = (node) => `${Charts.clipped(node.data.label, 120)}: ${Format.bytes(node.value)}, ${node.data.weight ? "" : `${Format.count(node.count)} weights, `}${main_dtype(node)}${node.elements ? `, ${Format.number((8 * node.value) / node.elements)} bits per weight` : ""}${node.sqnr === null ? "" : `, SQNR ${Format.decibel(node.sqnr)}`}`;
    const go = (node) => { now = node; draw(true); };
    const open = (node) => (node.children ? go(node) : show(node.data.weight));
    function draw(focus = false) {
      const trail = now.ancestors().reverse();
      path.replaceChildren(...trail.map((node, i) => h("li", {}, i === trail.length - 1 ? h("span", { "aria-current": "location", class: "name" }, node.data.label) : h("button", { class: "link name", onclick: () => go(node) }, node.data.label))));
      place.replaceChildren();
      const mode = modes[select.value];
      const chart = Charts.treemap(place, now, { paint: mode.paint, describe, open, leave: () => now.parent && go(now.parent) });
      legend.replaceChildren(...mode.legend.map(([paint, text]) => {
        const sign = d3.create("svg:svg").attr("width", 14).attr("height", 14).attr("aria-hidden", "true");
        sign.append("rect").attr("width", 14).attr("height", 14).attr("class", paint);
        return h("li", {}, sign.node(), text);
      }));
      if (focus) { const first = chart.querySelector("g[tabindex='0']"); if (first) first.focus(); }
    }
    draw();
  }

  // --------------------------------------------------------------------------------------------------------- weights

  function table() {
    const part = section("weights", "Weights"), has = (key) => weights.some((one) => one[key]);
    const figure = (key, label, more = {}) => ({ key, label, number: true, value: (one) => (one.figures ? one.figures[key] : null), ...more });
    const columns = [
      { key: "index", label: "#", number: true, value: (one) => one.index, hidden: true },
      { key: "name", label: "name", value: (one) => one.name, cell: (one) => nameButton(one.name, () => show(one)) },
      { key: "dtype", label: "dtype", value: (one) => one.dtype },
      { key: "shape", label: "shape", value: (one) => Format.shape(one.shape) },
      { key: "nbytes", label: "bytes", number: true, value: (one) => one.nbytes, text: (one) => Format.bytes(one.nbytes) },
      { key: "bits", label: "bits", number: true, value: (one) => one.bits },
      { key: "compression", label: "compression", value: (one) => one.compression, hidden: !has("compression") },
      { key: "op", label: "operation", value: (one) => one.op, hidden: true },
      { key: "function", label: "function", value: (one) => one.function, hidden: new Set(weights.map((one) => one.function)).size < 2 },
    ];
    if (data.values) columns.push(
      { key: "histogram", label: "histogram", cell: (one) => (one.histogram ? Charts.mini(one.histogram) : one.failure ? "unreadable" : "-") },
      figure("min", "min"), figure("max", "max"), figure("mean", "mean", { hidden: true }), figure("std", "std"), figure("absmax", "absmax", { hidden: true }),
      { key: "zeros", label: "zeros", number: true, value: (one) => (one.figures && one.count ? one.figures.zeros / (one.sampled || one.count) : null), text: (one) => (one.figures && one.count ? `${((100 * one.figures.zeros) / (one.sampled || one.count)).toFixed(1)}%` : "-") },
      { key: "special", label: "NaN, inf", number: true, value: (one) => (one.figures ? one.figures.nans + one.figures.infinities : null) },
      figure("distinct", "distinct", { hidden: true }));
    if (differences.length) columns.push({ key: "sqnr", label: "SQNR", number: true, value: (one) => (one.difference ? one.difference.sqnr : null), text: (one) => (one.difference ? (one.difference.sqnr === null ? one.difference.kind : Format.decibel(one.difference.sqnr)) : "-") });
    makeTable(part, { id: "weights-table", caption: `Weights of ${data.models[0].title}`, noun: "weights", columns, rows: weights });
  }

  function show(weight, difference = weight && weight.difference) {
    if (!weight && !difference) return;
    const close = h("button", { id: "weight-close", onclick: () => dialog.close() }, "Close");
    const name = weight ? weight.name : difference.name;
    dialog.replaceChildren(h("div", { class: "tools" }, close), h("h2", { id: "weight-title", tabindex: "-1" }, name));
    const charts = h("div", { class: "charts" });
    if (weight) {
      const facing = h("div", { class: "charts" });
      dialog.append(facing);
      facing.append(facts([["dtype", weight.dtype], ["shape", Format.shape(weight.shape)], ["elements", Format.count(weight.count)], ["stored bytes", Format.count(weight.nbytes)], ["bits per element", Format.number(weight.bits)], ["compression", weight.compression], ["function", weight.function], ["operation", weight.op], ["file", weight.file], ["record at byte", weight.offset === null ? null : Format.count(weight.offset)], ["values at byte", weight.data_offset === null ? null : Format.count(weight.data_offset)]]));
      if (weight.failure) dialog.append(h("p", { class: "bad" }, `The values could not be read: ${weight.failure}`));
      if (weight.sampled !== null) dialog.append(h("p", { class: "bad" }, `Sampled: the statistics are of ${Format.count(weight.sampled)} of ${Format.count(weight.count)} elements.`));
      if (weight.figures) {
        const f = weight.figures, far = f.std ? Math.max(Math.abs(f.max - f.mean), Math.abs(f.min - f.mean)) / f.std : null;
        facing.append(facts([["min", Format.number(f.min)], ["max", Format.number(f.max)], ["mean", Format.number(f.mean)], ["std", Format.number(f.std)], ["farthest from the mean", far === null ? null : `${far.toFixed(1)} σ`], ["smallest magnitude", Format.number(f.smallest)], ["zeros", Format.count(f.zeros)], ["NaN", Format.count(f.nans)], ["infinities", Format.count(f.infinities)], ["subnormal", Format.count(f.subnormals)], ["overflow in float16", Format.count(f.overflows)], ["distinct values", f.distinct === null ? null : Format.count(f.distinct)]]));
      }
      if (weight.histogram) {
        const box = h("div", {}, h("h3", {}, "Histogram"));
        Charts.histogram(box, weight.histogram, { ...weight.figures, label: `Histogram of ${Charts.clipped(name, 80)}` });
        if (weight.histogram_count < weight.count) box.append(h("p", { class: "muted" }, `of ${Format.count(weight.histogram_count)} elements at even distances`));
        charts.append(box);
      }
      if (weight.channels) {
        const box = h("div", {}, h("h3", {}, "Range of each channel")), each = weight.channels[5], shown = weight.channels[3].length;
        Charts.ranges(box, weight.channels);
        box.append(h("p", { class: "muted" }, `${Format.count(shown)} of ${Format.count(weight.shape[0])} channels, ${Format.count(each)} of ${Format.count(weight.count / weight.shape[0])} elements of each`));
        charts.append(box);
      }
    }
    if (difference) {
      const box = h("div", {}, h("h3", {}, "Compared with the other model"), h("p", {}, difference.message));
      if (difference.histograms) {
        const [low, high, width, a, b, count] = difference.histograms;
        Charts.histogram(box, [low, high, width, a], { other: b, label: `Histograms of ${Charts.clipped(name, 80)} in A and B` });
        box.append(h("p", { class: "muted" }, `bars: A, line: B; ${Format.count(count)} elements of each`));
      }
      charts.append(box);
    }
    dialog.append(charts);
    if (weight && weight.consumers.length) {
      dialog.append(h("h3", {}, "Read by"));
      Charts.consumers(dialog, name, weight.consumers, weight.consumer_count);
    }
    dialog.showModal();
    dialog.querySelector("#weight-title").focus();
    if (weight) history.replaceState(null, "", `#weight-${weight.index}`);
  }
  dialog.addEventListener("close", () => history.replaceState(null, "", "#weights"));

  // ---------------------------------------------------------------------------------------------- findings and the rest

  function comparison() {
    const part = section("comparison", "Comparison"), found = data.comparison, words = Object.entries(found.totals).map(([key, count]) => `${Format.count(count)} ${key.replace("_", " in ")}`);
    part.append(h("p", {}, `${found.is_same ? "The models are the same" : "The models differ"}: ${words.join(", ")}.${found.names_only ? " Only names were compared." : ""}`));
    const layers = differences.filter((row) => row.kind !== "only_b");
    if (!found.names_only) Charts.layers(part, layers, (row) => show(row.index === null ? null : weights[row.index], row));
    const differs = (row) => row.kind === "different" || row.kind === "dtype" || row.kind === "shape";
    const rank = (row) => (row.sqnr !== null ? row.sqnr : row.kind === "shape" || row.kind === "different" ? -Infinity : Infinity);
    const columns = [
      { key: "order", label: "#", number: true, value: (row) => row.order },
      { key: "name", label: "name", value: (row) => row.name, cell: (row) => nameButton(row.name, () => show(row.index === null ? null : weights[row.index], row)) },
      { key: "kind", label: "kind", value: (row) => row.kind.replace("_", " in ") },
      { key: "sqnr", label: "SQNR", number: true, value: rank, text: (row) => Format.decibel(row.sqnr) },
      { key: "max_abs", label: "largest difference", number: true, value: (row) => row.max_abs },
      { key: "relative", label: "relative", number: true, value: (row) => row.relative, hidden: true },
      { key: "histograms", label: "A", cell: (row) => (row.histograms ? Charts.mini(row.histograms.slice(0, 4)) : "-") },
      { key: "histogram-b", label: "B", cell: (row) => (row.histograms ? Charts.mini([...row.histograms.slice(0, 3), row.histograms[4]]) : "-") },
      { key: "message", label: "what differs", value: (row) => row.message, wide: true, hidden: differences.every((row) => row.sqnr !== null || !differs(row)) },
    ];
    differences.forEach((row, order) => { row.order = order; });
    const differing = differences.filter((row) => row.kind !== "same" && row.kind !== "named" && !row.kind.startsWith("only"));
    part.append(h("h3", {}, "Worst first"));
    makeTable(part, { id: "worst-table", caption: "Weights that differ", noun: "weights", columns, rows: differing, sort: "sqnr", pageSize: 50 });
    for (const [kind, where] of [["only_a", "A"], ["only_b", "B"]]) {
      const only = differences.filter((row) => row.kind === kind);
      if (!only.length) continue;
      part.append(h("h3", {}, `Only in ${where}`));
      makeTable(part, { id: `${kind}-table`, caption: `Weights that only ${where} has`, noun: "weights", columns: [columns[0], columns[1], { key: "dtype", label: "dtype", value: (row) => row.dtypes[kind === "only_a" ? 0 : 1] }, columns[8]], rows: only, pageSize: 50 });
    }
    if (found.changes.length) {
      part.append(h("h3", {}, "Programs and metadata"));
      makeTable(part, { id: "changes-table", caption: "What else differs", noun: "changes", columns: [{ key: "where", label: "where", value: (row) => row[0] }, { key: "what", label: "what", value: (row) => row[1], wide: true }], rows: found.changes, pageSize: 50 });
    }
  }

  function compression() {
    const part = section("compression", "Compression"), found = data.compression, rows = found.rows.map((row) => named(found.columns, row));
    if (found.outputs_sqnr !== null) part.append(h("p", {}, `SQNR of the outputs: ${Format.decibel(found.outputs_sqnr)}`));
    if (found.frontier) {
      Charts.frontier(part, found.frontier, found.chosen);
    }
    if (!rows.length) return;
    const by = new Map();
    for (const row of rows) { const key = row.recipe || "kept"; const one = by.get(key) || [0, 0, 0]; by.set(key, [one[0] + 1, one[1] + (row.nbytes || 0), one[2] + (row.nbytes_after || 0)]); }
    part.append(facts([...by].map(([recipe, [count, before, after]]) => [recipe, `${Format.count(count)} weights${before ? `, ${Format.bytes(before)} to ${Format.bytes(after)}` : ""}`])));
    const columns = [
      { key: "name", label: "name", value: (row) => row.name, cell: (row) => (row.index === null ? h("span", { class: "name", title: row.name }, row.name) : nameButton(row.name, () => show(weights[row.index]))) },
      { key: "recipe", label: "recipe", value: (row) => row.recipe || "kept" },
      { key: "nbytes", label: "bytes before", number: true, value: (row) => row.nbytes, text: (row) => Format.bytes(row.nbytes) },
      { key: "nbytes_after", label: "after", number: true, value: (row) => row.nbytes_after, text: (row) => Format.bytes(row.nbytes_after) },
      { key: "sqnr", label: "SQNR", number: true, value: (row) => row.sqnr, text: (row) => Format.decibel(row.sqnr) },
      { key: "largest", label: "largest difference", number: true, value: (row) => row.largest },
      { key: "reason", label: "why it is kept", value: (row) => row.reason, wide: true },
    ];
    makeTable(part, { id: "recipes-table", caption: "Recipe of each weight", noun: "weights", columns, rows, pageSize: 50 });
  }

  function findings() {
    const part = section("findings", "Findings");
    if (data.findings === null) { part.append(h("p", {}, "Not checked: only models that have a path are.")); return; }
    if (!data.findings.length) { part.append(h("p", {}, "Nothing was found: the model is sound.")); return; }
    const columns = [
      { key: "severity", label: "severity", value: (row) => row[0], cell: (row) => h("span", { class: row[0] === "error" ? "bad" : null }, row[0]) },
      { key: "code", label: "code", value: (row) => row[1] },
      { key: "message", label: "message", value: (row) => row[2], wide: true },
      { key: "where", label: "where", value: (row) => row[3], wide: true },
    ];
    makeTable(part, { id: "findings-table", caption: "What milblob check says", noun: "findings", columns, rows: data.findings, pageSize: 50 });
  }

  header();
  map();
  if (data.comparison !== null) comparison();
  if (data.compression !== null) compression();
  table();
  findings();
  const linked = /^#weight-(\d+)$/.exec(location.hash);
  if (linked && weights[linked[1]]) show(weights[linked[1]]);
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
})();
