{
  // Pictures and controls that a screen reader has no name for.
  unnamed() {
    const given = (e) => e.getAttribute("aria-label") || e.getAttribute("aria-labelledby");
    const named = (e) => given(e) || e.labels?.length || e.textContent.trim();
    const pictures = [...document.querySelectorAll("img, svg, canvas")];
    const controls = [...document.querySelectorAll("button, select, input, summary, a")];
    const wrong = [
      ...pictures.filter((e) => e.getAttribute("role") !== "img" || !given(e)),
      ...controls.filter((e) => !named(e)),
    ];
    return wrong.map((e) => e.outerHTML.slice(0, 90));
  },

  // Ids that are there twice, and those that something points to and that are not there.
  brokenReferences() {
    const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
    const used = ["aria-labelledby", "aria-describedby", "for"].flatMap((name) =>
      [...document.querySelectorAll(`[${name}]`)].flatMap((e) => e.getAttribute(name).split(" ")));
    const linked = [...document.querySelectorAll("a[href^='#']")].map((e) => e.hash.slice(1));
    return [
      ...ids.filter((id, i) => ids.indexOf(id) !== i),
      ...[...used, ...linked].filter((id) => !ids.includes(id)),
    ];
  },

  // How many texts were looked at, and those with a contrast below 4.5 (WCAG 2.2, 1.4.3).
  lowContrasts() {
    for (const e of document.querySelectorAll("details")) e.open = true;
    const parse = (text) => (text.match(/[\d.]+/g) ?? []).map(Number);
    const linear = (c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
    const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
    const behind = (e) => {
      for (let at = e; at; at = at.parentElement) {
        const colour = parse(getComputedStyle(at).backgroundColor);
        if (colour.length === 3 || colour[3] > 0.99) return colour;
      }
      return [255, 255, 255];
    };
    const isText = (node) => node.nodeType === Node.TEXT_NODE && node.textContent.trim();
    const shown = (e) => e.getClientRects().length && !["SCRIPT", "STYLE", "NOSCRIPT"].includes(e.tagName);
    const texts = [...document.querySelectorAll("body *")].filter((e) =>
      shown(e) && [...e.childNodes].some(isText));
    const low = texts.filter((e) => {
      const style = getComputedStyle(e);
      const ink = parse(e instanceof SVGElement ? style.fill : style.color);
      const [dim, bright] = [luminance(ink), luminance(behind(e))].sort((a, b) => a - b);
      return (bright + 0.05) / (dim + 0.05) < 4.5;
    });
    return [texts.length, low.map((e) => e.outerHTML.slice(0, 90))];
  },
}
