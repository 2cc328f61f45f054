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
    const parts = Object.entries(curves).map(([name, line]) => `${labels[name]} ${size(line[number])}`);
    let text = `At ${comma(lengths[number])} tokens: ${parts.join(", ")}.`;
    if (curves.compared && curves.total[number] > 0) {
      const times = curves.compared[number] / curves.total[number];
      text += times >= 1
        ? ` Full attention would take ${times.toFixed(1)} times as much.`
        : ` Full attention would still take less, ${times.toFixed(2)} times as much.`;
    }
    byId("memory-reading").textContent = text;
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
