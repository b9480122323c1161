// The page as a whole: light and dark, printing, and the start of everything else.

function startTheme() {
  const root = document.documentElement, button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : system.matches;
  function show() {
    button.textContent = dark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Change to ${dark() ? "light" : "dark"} colours`);
    button.setAttribute("aria-pressed", String(dark()));
  }
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    show();
  });
  system.addEventListener("change", show);
  show();
}

// What is closed on the screen is open on paper, and closed again after.
function startPrinting() {
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = Array.from(document.querySelectorAll("details.group:not([open])"));
    for (const group of opened) group.open = true;
  });
  addEventListener("afterprint", () => {
    for (const group of opened) group.open = false;
  });
}

startTheme();
startPrinting();
startTables();
if (typeof startPlots === "function") startPlots();
