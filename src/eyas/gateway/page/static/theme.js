// A classic script in the head, so that the first paint has the chosen colours already.
const THEMES = ["auto", "light", "dark"];
function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("eyas.theme", theme);
}
setTheme(THEMES.includes(localStorage.getItem("eyas.theme")) ? localStorage.getItem("eyas.theme") : "auto");
addEventListener("DOMContentLoaded", () => {
  const button = document.getElementById("theme");
  const show = () => (button.ariaLabel = button.title = `Colours: ${document.documentElement.dataset.theme}`);
  button.onclick = () => {
    setTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]);
    show();
  };
  show();
});
