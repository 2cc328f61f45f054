if (data.map) {
  const { frames, groups, slabs, sequences } = data.map;
  const CACHED = -2;
  const SHARED = -1;
  // Okabe and Ito's colours, and the ink that can be read on each.
  const COLOURS = [
    ["#e69f00", "#000"], ["#56b4e9", "#000"], ["#009e73", "#000"], ["#f0e442", "#000"],
    ["#0072b2", "#fff"], ["#d55e00", "#000"], ["#cc79a7", "#000"],
  ];
  const letters = sequences.map((_, number) => String.fromCharCode(97 + (number % 26)));
  const colourOf = (number) => COLOURS[number % COLOURS.length];
  const canvas = byId("map-canvas");
  const slider = byId("map-slider");
  const play = byId("map-play");
  const text = byId("map-text");
  let timer = null;

  /** Slabs at every frame, `[group, [code, count, ...]]`; those that didn't change are the same. */
  const states = [];
  for (const frame of frames) {
    const slabsNow = states.length ? [...states.at(-1)] : slabs.map(() => [-1, []]);
    for (const [place, group, runs] of frame.changed) slabsNow[place] = [group, runs];
    states.push(slabsNow);
  }

  const columns = (width) => (width < 560 ? 1 : slabs.length <= 4 ? 2 : slabs.length <= 12 ? 3 : 5);

  /** Cells in a line, so that they are about square and the last line is as full as can be. */
  const cellsAcross = (count, shape) => {
    const square = Math.sqrt(count * shape);
    let best = [Infinity, 1];
    for (let n = Math.max(1, Math.floor(square * 0.7)); n <= Math.min(count, Math.ceil(square * 1.4)); n += 1) {
      const empty = Math.ceil(count / n) * n - count;
      const badness = empty / count + 0.3 * Math.abs(Math.log(n / square));
      if (badness < best[0]) best = [badness, n];
    }
    return best[1];
  };

  const drawCell = (pen, code, x, y, w, h, stripes) => {
    const gap = Math.min(1, w / 6);
    const [left, top, width, height] = [x + gap / 2, y + gap / 2, w - gap, h - gap];
    let ink = null;
    let letter = "";
    if (code >= 0) {
      [pen.fillStyle, ink] = colourOf(code);
      letter = letters[code];
    } else if (code === SHARED) {
      pen.fillStyle = colour("shared");
      ink = colour("shared-ink");
      letter = "+";
    } else pen.fillStyle = code === CACHED ? stripes : colour("free");
    pen.fillRect(left, top, width, height);
    if (letter && w >= 11 && h >= 11) {
      pen.fillStyle = ink;
      pen.font = `600 ${Math.min(12, Math.floor(h * 0.75), Math.floor(w * 0.75))}px system-ui, sans-serif`;
      pen.textAlign = "center";
      pen.textBaseline = "middle";
      pen.fillText(letter, x + w / 2, y + h / 2 + 0.5);
    }
  };

  const drawSlab = (pen, [group, runs], slab, x, y, w, h, stripes) => {
    pen.fillStyle = colour("soft");
    pen.font = "13px system-ui, sans-serif";
    pen.textAlign = "left";
    pen.textBaseline = "alphabetic";
    const owner = group < 0 ? "free" : groups[group].name;
    pen.fillText(`slab ${slab} · ${owner}`, x, y + 12);
    const [top, height] = [y + 19, h - 19];
    if (group < 0) {
      pen.strokeStyle = colour("line");
      pen.strokeRect(x + 0.5, top + 0.5, w - 1, height - 1);
      return;
    }
    const count = groups[group].pages_per_slab;
    const across = cellsAcross(count, w / height);
    const cellW = w / across;
    const cellH = height / Math.ceil(count / across);
    const padding = (cellW * groups[group].padding_percent) / 100;
    let page = 0;
    for (let run = 0; run < runs.length; run += 2) {
      for (let n = 0; n < runs[run + 1]; n += 1, page += 1) {
        const left = x + (page % across) * cellW;
        const upper = top + Math.floor(page / across) * cellH;
        drawCell(pen, runs[run], left, upper, cellW, cellH, stripes);
        if (padding >= 0.5) {
          pen.fillStyle = colour("mark");
          pen.fillRect(left + cellW - padding, upper, padding, cellH - 1);
        }
      }
    }
  };

  const stripesOf = (pen, ratio) => {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6 * ratio;
    const on = tile.getContext("2d");
    on.scale(ratio, ratio);
    on.fillStyle = colour("free");
    on.fillRect(0, 0, 6, 6);
    on.strokeStyle = colour("cached");
    on.lineWidth = 2.4;
    for (const shift of [-6, 0, 6]) {
      on.beginPath();
      on.moveTo(shift - 1, 7);
      on.lineTo(shift + 7, -1);
      on.stroke();
    }
    const pattern = pen.createPattern(tile, "repeat");
    pattern.setTransform(new DOMMatrix().scale(1 / ratio));
    return pattern;
  };

  const draw = () => {
    const number = Number(slider.value);
    const width = canvas.clientWidth || 960;
    const ratio = Math.max(1, devicePixelRatio || 1);
    const across = Math.min(columns(width), slabs.length || 1);
    const gap = 22;
    const slabW = (width - gap * (across - 1)) / across;
    const slabH = 19 + Math.min(150, slabW * 0.42);
    const lines = Math.ceil(slabs.length / across);
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(lines * (slabH + gap) * ratio);
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const stripes = stripesOf(pen, ratio);
    states[number].forEach((state, place) => {
      const x = (place % across) * (slabW + gap);
      const y = Math.floor(place / across) * (slabH + gap);
      drawSlab(pen, state, slabs[place], x, y, slabW, slabH, stripes);
    });
  };

  const tell = () => {
    const number = Number(slider.value);
    const frame = frames[number];
    const running = `${frame.running} running with ${comma(frame.tokens)} tokens`;
    byId("map-step").textContent = `${number} of ${frames.length - 1}`;
    slider.setAttribute("aria-valuetext", `step ${number} of ${frames.length - 1}`);
    const scene = frame.scene ? `${frame.scene}. ` : "";
    text.textContent = `${scene}${frame.text} Now ${running}.`;
    const said = groups.map((group, place) => {
      const { own, shared, cached, free } = frame.counts[place];
      return `${group.name}: ${own} pages of one sequence, ${shared} shared, ${cached} cached, ${free} free`;
    });
    canvas.setAttribute("aria-label", `Map of the pool's pages at step ${number}. ${said.join("; ")}.`);
    byId("map-table").replaceChildren(...groups.map((group, place) => {
      const { own, shared, cached, free } = frame.counts[place];
      const numbers = [own, shared, cached, free, group.page_stride, group.padding_bytes];
      return make("tr", {}, make("th", { scope: "row" }, group.name),
        ...numbers.map((n) => make("td", { class: "n" }, comma(n))));
    }));
  };

  const show = () => {
    draw();
    tell();
  };
  const stop = () => {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
    text.setAttribute("aria-live", "polite");
  };
  play.addEventListener("click", () => {
    if (timer !== null) {
      stop();
      return;
    }
    if (Number(slider.value) === frames.length - 1) slider.value = "0";
    play.textContent = "Pause";
    // Read aloud, a running text would never end.
    text.setAttribute("aria-live", "off");
    timer = setInterval(() => {
      slider.value = String(Number(slider.value) + 1);
      show();
      if (Number(slider.value) === frames.length - 1) stop();
    }, 450);
  });
  slider.addEventListener("input", () => {
    stop();
    show();
  });

  const legend = byId("map-legend");
  sequences.forEach((name, number) => {
    const swatch = make("span", { class: "swatch own", "aria-hidden": "true" }, letters[number]);
    [swatch.style.background, swatch.style.color] = colourOf(number);
    legend.append(make("li", {}, swatch, name));
  });
  for (const [kind, letter, words] of [
    ["shared", "+", "shared by several"], ["cached", "", "cached, held by none"],
    ["free", "", "free"], ["padding", "", "padding of a page"],
  ]) {
    legend.append(make("li", {}, make("span", { class: `swatch ${kind}`, "aria-hidden": "true" }, letter), words));
  }

  themeListeners.push(draw);
  addEventListener("resize", draw);
  show();
}
