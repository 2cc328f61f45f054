{
  const { rows, lengths } = data.stack;
  const list = byId("stack-rows");
  const panel = byId("layer-details");
  let length = lengths[0];
  let chosen = 0;

  /** Bytes that a cached layer has of a sequence. */
  const bytesOf = (layer) => {
    if (layer.kind === "state") return layer.bytes_per_sequence;
    return layer.bytes_per_token * (layer.window ? Math.min(length, layer.window.size) : length);
  };
  const totalOf = (row) => row.cached.reduce((sum, layer) => sum + bytesOf(layer), 0);

  const badges = (row) => {
    const kinds = [...new Map(row.cached.map((layer) => [layer.kind, layer.letter]))];
    const shown = kinds.length ? kinds : [["none", "–"]];
    return make("span", { class: "badges", "aria-hidden": "true" },
      ...shown.map(([kind, letter]) => make("span", { class: `badge ${kind}` }, letter)));
  };

  const buttons = rows.map((row, number) => {
    const button = make("button", { type: "button" },
      make("span", { class: "number" }, row.label),
      badges(row),
      make("span", { class: "made" }, row.modules.join(" + ")),
      make("span", { class: "bar", "aria-hidden": "true" },
        ...row.cached.map((layer) => make("span", { class: `seg ${layer.kind}` }))),
      make("span", { class: "bytes" }));
    button.addEventListener("click", () => choose(number));
    button.addEventListener("focus", () => choose(number));
    list.append(make("li", {}, button));
    return button;
  });

  const draw = () => {
    const most = Math.max(1, ...rows.map(totalOf));
    rows.forEach((row, number) => {
      const total = totalOf(row);
      const button = buttons[number];
      button.querySelectorAll(".seg").forEach((segment, place) => {
        segment.style.width = `${(100 * bytesOf(row.cached[place])) / most}%`;
      });
      const text = row.cached.length ? size(total) : "";
      button.querySelector(".bytes").textContent = text;
      const kinds = row.cached.map((layer) => layer.kind).join(" and ");
      const holds = row.cached.length ? `${kinds}, ${text} at ${comma(length)} tokens` : "caches nothing";
      button.setAttribute("aria-label", `Layer ${row.label}: ${row.modules.join(", ")}; ${holds}`);
    });
  };

  const pairs = (entries) => make("dl", {}, ...entries.flatMap(([name, value]) =>
    [make("dt", {}, name), make("dd", {}, String(value))]));

  const describe = (layer) => {
    const state = layer.kind === "state";
    const entries = [
      ["mixer", layer.mixer],
      ["group", layer.group],
      ["page of", state ? "a sequence" : `${comma(layer.page_size)} tokens`],
      ["kernel block", state ? "the page" : `${comma(layer.kernel_block_size)} tokens`],
      ["bytes a page", comma(layer.bytes_per_page)],
    ];
    if (!state) entries.push(["bytes a token", comma(layer.bytes_per_token)]);
    if (layer.window) entries.push(["window", `${comma(layer.window.size)} tokens`]);
    if (state || layer.window) entries.push(["bytes a sequence", comma(layer.bytes_per_sequence)]);
    entries.push([`at ${comma(length)} tokens`, size(bytesOf(layer))]);
    const tensors = layer.states.map((one) =>
      make("li", {}, make("code", {}, `${one.name}  ${one.shape.join("×")}  ${one.dtype}`)));
    return [
      make("h3", {}, layer.name),
      pairs(entries),
      make("p", { class: "eyebrow" }, state ? "Tensors in a page" : "Tensors in a kernel block"),
      make("ul", {}, ...tensors),
    ];
  };

  const details = () => {
    const row = rows[chosen];
    const parts = row.cached.flatMap(describe);
    if (!parts.length) parts.push(make("h3", {}, `Layer ${row.label}`), make("p", {}, "Caches nothing."));
    const more = [["made of", row.modules.join(" + ")]];
    if (row.parameters !== null) {
      more.push(["parameters", comma(row.parameters)], ["weights", size(row.parameter_bytes)]);
    }
    panel.replaceChildren(...parts, make("p", { class: "eyebrow" }, "The layer"), pairs(more));
  };

  // One stop for the tab key; arrows go from layer to layer.
  const choose = (number) => {
    chosen = number;
    buttons.forEach((button, place) => {
      button.tabIndex = place === chosen ? 0 : -1;
      button.setAttribute("aria-pressed", String(place === chosen));
    });
    details();
  };
  list.addEventListener("keydown", (event) => {
    const last = rows.length - 1;
    const to = { ArrowDown: chosen + 1, ArrowUp: chosen - 1, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    buttons[Math.min(last, Math.max(0, to))].focus();
  });
  byId("stack-lengths").addEventListener("change", (event) => {
    length = lengths[Number(event.target.value)];
    draw();
    details();
  });
  const mostKinds = Math.max(...rows.map((row) => new Set(row.cached.map((layer) => layer.kind)).size));
  list.style.setProperty("--badges", `${Math.max(1, mostKinds) * 23 - 3}px`);
  draw();
  choose(0);
}
