{
  const { lengths, curves, labels } = data.memory;
  const chart = byId("memory-chart");
  const slider = byId("memory-slider");
  const cursor = byId("memory-cursor");
  const left = Number(chart.dataset.left);
  const right = Number(chart.dataset.right);
  const low = Math.log2(lengths[0]);
  const high = Math.max(low + 1, Math.log2(lengths.at(-1)));
  const placeOf = (length) => left + ((Math.log2(length) - low) / (high - low)) * (right - left);

  const draw = () => {
    const number = Number(slider.value);
    const at = placeOf(lengths[number]);
    cursor.setAttribute("x1", at);
    cursor.setAttribute("x2", at);
    const parts = Object.keys(curves).filter((name) => name !== "total" && name !== "compared");
    const of = parts.map((name) => `${labels[name].replace("of it: ", "")} ${size(curves[name][number])}`);
    let text = `At ${comma(lengths[number])} tokens this model takes ${size(curves.total[number])}`;
    text += of.length ? ` (${of.join(", ")})` : "";
    if (curves.compared) {
      const times = curves.compared[number] / curves.total[number];
      text += `; full attention everywhere ${size(curves.compared[number])}, `;
      text += `${times.toFixed(times < 10 ? 2 : 0)} times as much`;
    }
    byId("memory-reading").textContent = `${text}.`;
    slider.setAttribute("aria-valuetext", `${comma(lengths[number])} tokens`);
  };

  // A pointer over the chart moves the slider to the nearest length.
  chart.addEventListener("pointermove", (event) => {
    const box = chart.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * chart.viewBox.baseVal.width;
    const distances = lengths.map((length) => Math.abs(placeOf(length) - at));
    slider.value = String(distances.indexOf(Math.min(...distances)));
    draw();
  });
  slider.addEventListener("input", draw);
  draw();
}
