/* A table with sorting, a filter, a choice of columns, and pages. `columns` have a key, a label and value(row); further
   text(row) or cell(row), and the flags number, text, hidden. */
function makeTable(parent, { id, caption, noun, columns, rows, sort = null, descending = false, pageSize = 100 }) {
  const state = { filter: "", sort, descending, page: 0, shown: new Set(columns.filter((one) => !one.hidden).map((one) => one.key)) };
  const text = (column, row) => (column.text ? column.text(row) : column.value(row) === null || column.value(row) === undefined ? "-" : column.number ? Format.number(column.value(row)) : String(column.value(row)));
  const searched = rows.map((row) => columns.filter((one) => !one.number && one.value).map((one) => text(one, row)).join("\n").toLowerCase());
  let order = rows.map((_, i) => i);

  const status = h("span", { role: "status", class: "muted" });
  const filter = h("input", { type: "search", id: `${id}-filter`, autocomplete: "off", spellcheck: "false", oninput: () => { state.filter = filter.value.toLowerCase(); state.page = 0; update(); } });
  const choices = h("div", { class: "choices" }, ...columns.map((column) => {
    const box = h("input", { type: "checkbox", checked: state.shown.has(column.key), onchange: () => { state.shown[box.checked ? "add" : "delete"](column.key); draw(); } });
    return h("label", {}, box, " " + column.label);
  }));
  const details = h("details", {}, h("summary", {}, "Columns"), choices);
  details.addEventListener("keydown", (event) => { if (event.key === "Escape") { details.open = false; details.querySelector("summary").focus(); } });
  const table = h("table", { id });
  const scroll = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, table);
  const previous = h("button", { onclick: () => { state.page -= 1; draw(); } }, "Previous");
  const next = h("button", { onclick: () => { state.page += 1; draw(); } }, "Next");
  const pages = h("div", { class: "tools pages" }, previous, next);
  parent.append(h("div", { class: "tools" }, h("label", { for: `${id}-filter` }, "Filter"), filter, details, status), scroll, pages);

  function update() {
    const column = columns.find((one) => one.key === state.sort);
    order = rows.map((_, i) => i).filter((i) => searched[i].includes(state.filter));
    if (column) {
      const sign = state.descending ? -1 : 1, values = rows.map((row) => column.value(row));
      order.sort((a, b) => {
        const [x, y] = [values[a], values[b]];
        if (x === null || x === undefined || y === null || y === undefined) return (x === null || x === undefined) - (y === null || y === undefined);
        return sign * (x < y ? -1 : x > y ? 1 : 0);
      });
    }
    draw();
  }

  function draw(all = false) {
    const last = Math.max(Math.ceil(order.length / pageSize) - 1, 0);
    state.page = Math.min(Math.max(state.page, 0), last);
    const part = all ? order : order.slice(state.page * pageSize, (state.page + 1) * pageSize);
    const shown = columns.filter((one) => state.shown.has(one.key));
    const head = h("tr", {}, ...shown.map((column) => {
      const is = state.sort === column.key;
      const button = column.value ? h("button", { onclick: () => { choose(column); } }, column.label) : column.label;
      return h("th", { scope: "col", class: column.number ? "number" : null, "aria-sort": is ? (state.descending ? "descending" : "ascending") : null }, button);
    }));
    const body = h("tbody", {}, ...part.map((i) => h("tr", {}, ...shown.map((column) =>
      h("td", { class: column.number ? "number" : column.wide ? "text" : null }, column.cell ? column.cell(rows[i]) : text(column, rows[i]))))));
    table.replaceChildren(h("caption", {}, caption), h("thead", {}, head), body);
    const from = order.length ? state.page * pageSize + 1 : 0;
    status.textContent = `${Format.count(from)} to ${Format.count(Math.min(from + pageSize - 1, order.length))} of ${Format.count(order.length)} ${noun}${order.length < rows.length ? `, of ${Format.count(rows.length)} in all` : ""}`;
    previous.disabled = state.page === 0;
    next.disabled = state.page === last;
    pages.hidden = last === 0;
  }

  function choose(column) {
    state.descending = state.sort === column.key ? !state.descending : Boolean(column.number);
    state.sort = column.key;
    state.page = 0;
    update();
    for (const button of table.querySelectorAll("th button")) if (button.textContent === column.label) button.focus();
  }

  update();
  window.addEventListener("beforeprint", () => draw(true));
  window.addEventListener("afterprint", () => draw());
}
