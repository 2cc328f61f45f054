{
  const root = document.documentElement;
  const button = byId("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");

  const show = (dark) => {
    root.dataset.theme = dark ? "dark" : "light";
    button.textContent = dark ? "Light" : "Dark";
    button.setAttribute("aria-label", `Switch to ${dark ? "light" : "dark"} colours`);
    for (const listener of themeListeners) listener();
  };

  let chosen = null;
  const wanted = () => (chosen === null ? system.matches : chosen);
  button.addEventListener("click", () => {
    chosen = !wanted();
    show(chosen);
  });
  system.addEventListener("change", () => show(wanted()));
  // Paper is white.
  addEventListener("beforeprint", () => show(false));
  addEventListener("afterprint", () => show(wanted()));
  show(wanted());
}
