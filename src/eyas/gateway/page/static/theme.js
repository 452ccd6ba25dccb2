// A classic script in the head, so that the first paint has the chosen colours already.
const THEMES = ["auto", "light", "dark"];
const { dataset } = document.documentElement;
let kept = null;
try {
  kept = localStorage.getItem("eyas.theme");
} catch {} // no store
function setTheme(theme) {
  dataset.theme = theme;
  try {
    localStorage.setItem("eyas.theme", theme);
  } catch {} // no store
}
setTheme(THEMES.includes(kept) ? kept : "auto");
addEventListener("DOMContentLoaded", () => {
  const button = document.getElementById("theme");
  const show = () => (button.ariaLabel = button.title = `Colours: ${dataset.theme}`);
  button.onclick = () => {
    setTheme(THEMES[(THEMES.indexOf(dataset.theme) + 1) % THEMES.length]);
    show();
  };
  show();
});
