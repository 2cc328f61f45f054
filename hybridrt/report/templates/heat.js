/** What a heat map shows: names of rows and columns, and `cells[row][column]`. */
function heatView(figure, statistic, layer) {
  const { layers, positions } = data.heat;
  const byHead = figure.dataset.across === "heads";
  const positionTexts = positions.map(comma);
  const headTexts = (key) => {
    const { heads, rows } = statistic.layers[key];
    const start = (row) => Math.floor((row * heads) / rows);
    return Array.from({ length: rows }, (_, row) => String(start(row)));
  };
  if (layer !== "all") {
    return {
      rowName: "head", columnName: "position", rows: headTexts(layer), columns: positionTexts,
      cells: transposed(unpackHeat(statistic, layer)),
    };
  }
  const keys = Object.keys(statistic.layers);
  const rows = keys.map((key) => `${layers[key].label} ${layers[key].mixer}`);
  if (!byHead) {
    const cells = keys.map((key) => unpackHeat(statistic, key).map(meanOf));
    return { rowName: "layer", columnName: "position", rows, columns: positionTexts, cells };
  }
  // Of heads: the median over positions. Layers may have different numbers of heads.
  const cells = keys.map((key) => transposed(unpackHeat(statistic, key)).map(medianOf));
  const most = Math.max(...cells.map((row) => row.length));
  const widest = keys[cells.findIndex((row) => row.length === most)];
  return { rowName: "layer", columnName: "head", rows, columns: headTexts(widest), cells };
}

function drawHeat(svg, view, range) {
  const longest = Math.max(...view.rows.map((name) => name.length));
  const [left, top, bottom, width] = [42 + 7.8 * longest, 4, 40, 1000];
  const cellH = Math.max(11, Math.min(32, 420 / view.rows.length));
  const cellW = (width - left) / view.columns.length;
  const height = top + cellH * view.rows.length;
  svg.setAttribute("viewBox", `0 0 ${width} ${height + bottom}`);
  const parts = [];
  view.cells.forEach((row, r) => row.forEach((value, c) => {
    if (value === null) return;
    const fill = cividis(shareOf(range, value));
    const place = { x: (left + c * cellW).toFixed(1), y: (top + r * cellH).toFixed(1) };
    parts.push(make("rect", { ...place, width: (cellW + 0.1).toFixed(1), height: (cellH - 1).toFixed(1), fill }));
  }));
  const everyRow = Math.ceil(13 / cellH);
  view.rows.forEach((name, r) => {
    if (r % everyRow) return;
    const y = top + (r + 0.5) * cellH + 4;
    parts.push(make("text", { x: left - 8, y, "text-anchor": "end" }, name));
  });
  const everyColumn = Math.ceil(view.columns.length / 12);
  view.columns.forEach((name, c) => {
    if (c % everyColumn) return;
    parts.push(make("text", { x: left + (c + 0.5) * cellW, y: height + 16, "text-anchor": "middle" }, name));
  });
  const across = view.columnName === "position" ? "tokens read so far" : "head";
  parts.push(make("text", { x: (left + width) / 2, y: height + 35, "text-anchor": "middle" }, across));
  const upright = { x: 0, y: 0, "text-anchor": "middle", transform: `translate(11 ${top + (height - top) / 2}) rotate(-90)` };
  parts.push(make("text", upright, view.rowName));
  const chosen = make("rect", { class: "chosen", width: cellW, height: cellH - 1, visibility: "hidden" });
  svg.replaceChildren(...parts, chosen);
  return { chosen, left, top, cellW, cellH, width };
}

function heatTable(table, view, title) {
  const head = make("tr", {}, make("th", { scope: "col" }, view.rowName),
    ...view.columns.map((name) => make("th", { scope: "col", class: "n" }, name)));
  const body = view.rows.map((name, r) => make("tr", {}, make("th", { scope: "row" }, name),
    ...view.cells[r].map((value) => make("td", { class: "n" }, value === null ? "" : short(value)))));
  table.replaceChildren(make("caption", {}, `${title}: ${view.rowName} by ${view.columnName}`),
    make("thead", {}, head), make("tbody", {}, ...body));
}

function heatFigure(figure) {
  const find = (selector) => figure.querySelector(selector);
  const names = figure.dataset.statistics.split(" ");
  const [svg, reading, details] = [find("svg"), find(".reading"), find("details")];
  const [pickStatistic, pickLayer] = [find(".heat-statistic"), find(".heat-layer")];
  let statistic = data.heat.statistics[names[0]];
  let view = null;
  let drawn = null;
  let at = null;

  const read = (row, column) => {
    at = [row, column];
    const value = view.cells[row]?.[column];
    drawn.chosen.setAttribute("visibility", "visible");
    drawn.chosen.setAttribute("x", drawn.left + column * drawn.cellW);
    drawn.chosen.setAttribute("y", drawn.top + row * drawn.cellH);
    reading.textContent = `${statistic.title}, ${view.rowName} ${view.rows[row]}, `
      + `${view.columnName} ${view.columns[column]}: ${short(value ?? null)}`;
  };

  const draw = () => {
    view = heatView(figure, statistic, pickLayer.value);
    const range = rangeOf(statistic, view.cells);
    drawn = drawHeat(svg, view, range);
    at = null;
    const heads = pickLayer.value !== "all" ? "" : view.columnName === "head"
      ? " A cell is the median over the positions." : " A cell is the mean over a layer's heads.";
    find("figcaption").textContent = statistic.how_to_read + heads;
    find(".low").textContent = short(range.low);
    find(".high").textContent = short(range.high);
    reading.textContent = "Point at a cell, or focus the map and use the arrow keys, to read it.";
    if (details.open) heatTable(find("table"), view, statistic.title);
  };

  const fillLayers = () => {
    const before = pickLayer.value || "all";
    const { layers } = data.heat;
    const keys = Object.keys(statistic.layers);
    pickLayer.replaceChildren(make("option", { value: "all" }, "all layers"),
      ...keys.map((key) => make("option", { value: key }, `layer ${layers[key].label} (${layers[key].mixer})`)));
    pickLayer.value = before === "all" || keys.includes(before) ? before : "all";
  };

  pickStatistic?.addEventListener("change", () => {
    statistic = data.heat.statistics[pickStatistic.value];
    fillLayers();
    draw();
  });
  pickLayer.addEventListener("change", draw);
  details.addEventListener("toggle", () => details.open && heatTable(find("table"), view, statistic.title));
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const scale = drawn.width / box.width;
    const column = Math.floor(((event.clientX - box.left) * scale - drawn.left) / drawn.cellW);
    const row = Math.floor(((event.clientY - box.top) * scale - drawn.top) / drawn.cellH);
    if (view.cells[row]?.[column] !== undefined) read(row, column);
  });
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    const [row, column] = at ?? [-step[0], -step[1]];
    const newRow = Math.min(view.rows.length - 1, Math.max(0, row + step[0]));
    read(newRow, Math.min(view.cells[newRow].length - 1, Math.max(0, column + step[1])));
  });
  const ramp = CIVIDIS.map((_, i) => cividis(i / (CIVIDIS.length - 1)));
  find(".ramp").style.background = `linear-gradient(90deg, ${ramp.join(", ")})`;
  fillLayers();
  draw();
}

document.querySelectorAll("figure.heat").forEach(heatFigure);
