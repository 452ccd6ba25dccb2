// Comfort only: without it the page shows all there is, and the run is readable in its source.
"use strict";
const data = document.getElementById("run");
const kept = document.getElementById("pasteable");
document.getElementById("actions").hidden = false;
document.getElementById("save").addEventListener("click", () => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([data.textContent], { type: "application/json" }));
  link.download = "eyas-bench-endpoint.json";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
});
document.getElementById("copy").addEventListener("click", async (event) => {
  const button = event.currentTarget;
  try {
    await navigator.clipboard.writeText(kept.textContent);
    button.textContent = "Copied";
  } catch {
    kept.closest("details").open = true;
    getSelection().selectAllChildren(kept);
    button.textContent = "Selected: copy it with the keyboard";
  }
});
