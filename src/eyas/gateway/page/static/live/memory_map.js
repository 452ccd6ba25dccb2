// The map of KV pages by owner: cells in the order of owners, which is not that of addresses.
import { $, format, h } from "../dom.js";

const CELL = 13; // pixels
const ROWS = 4;

export class MemoryMap {
  /** `seats` are the cards of requests, whose numbers and colours the map has. */
  constructor(seats) {
    this.seats = seats;
    this.owners = {};
  }

  draw(message) {
    for (const [name, group] of Object.entries(message.pages)) {
      if (message.step !== undefined || message.running === 0) this.owners[name] = group.owners;
      const runs = this.runs(group, this.owners[name] ?? []);
      let map = $(`memory-${name}`);
      if (!map) {
        map = h("figure", { id: `memory-${name}` }, h("figcaption", {}), h("canvas", { role: "img" }));
        $("memory").append(map);
      }
      const free = group.total - group.used - group.idle;
      const counts = `${format(group.used)} pages held · ${format(group.idle)} idle · ${format(free)} free`;
      const text = `${name} layers · ${counts}`;
      map.firstChild.textContent = text;
      map.lastChild.ariaLabel = text;
      drawCells(map.lastChild, runs, group.total);
    }
  }

  /** Returns [pages, seat number or "other", "idle", "free"] in drawing order, which is not by address. */
  runs({ total, used, idle }, owners) {
    const seatOf = (id, choice) => this.seats.findIndex((one) => one.key === `${id}/${choice}`);
    const held = owners.map(([id, choice, pages]) => [pages, seatOf(id, choice)]);
    const claimed = held.reduce((sum, [pages]) => sum + pages, 0);
    const scale = claimed > used ? used / claimed : 1; // shared pages are counted for each owner
    const known = held.map(([pages, seat]) => [pages * scale, seat < 0 ? "other" : seat]);
    known.sort((a, b) => (a[1] === "other") - (b[1] === "other") || a[1] - b[1]);
    return [...known, [Math.max(used - claimed, 0), "other"], [idle, "idle"], [total - used - idle, "free"]];
  }
}

function drawCells(canvas, runs, pages) {
  const width = canvas.clientWidth;
  if (!width) return;
  const colour = (name) => {
    canvas.style.color = `var(${name})`; // makes the browser resolve light-dark()
    return getComputedStyle(canvas).color;
  };
  const columns = Math.round(width / CELL);
  const size = width / columns;
  const rows = Math.min(ROWS, Math.ceil(pages / columns));
  const cells = Math.min(pages, rows * columns);
  canvas.style.height = `${rows * size}px`;
  const ratio = devicePixelRatio;
  Object.assign(canvas, { width: width * ratio, height: rows * size * ratio });
  const draw = canvas.getContext("2d");
  draw.scale(ratio, ratio);
  draw.font = "bold 8px system-ui, sans-serif";
  draw.textAlign = "center";
  draw.textBaseline = "middle";
  // Every owner gets at least one cell, however small its share.
  const counts = runs.map(([count]) => (count > 0 ? Math.max(Math.round((count * cells) / pages), 1) : 0));
  counts[counts.length - 1] = Math.max(cells - counts.slice(0, -1).reduce((a, b) => a + b, 0), 0);
  let at = 0;
  runs.forEach(([, owner], n) => {
    for (let i = 0; i < counts[n] && at < cells; i++, at++) {
      const [x, y] = [(at % columns) * size, Math.floor(at / columns) * size];
      const isFilled = owner !== "free" && owner !== "idle";
      const name = owner === "other" ? "--muted" : `--seat-${owner % 8}`;
      draw.fillStyle = draw.strokeStyle = colour(isFilled ? name : "--cell");
      if (isFilled) draw.fillRect(x, y, size - 2, size - 2);
      else draw.strokeRect(x + 0.5, y + 0.5, size - 3, size - 3);
      if (owner === "idle") {
        draw.beginPath();
        draw.moveTo(x + 1, y + size - 3);
        draw.lineTo(x + size - 3, y + 1);
        draw.stroke();
      }
      if (isFilled && owner !== "other" && i === 0) {
        draw.fillStyle = colour("--on-seat");
        draw.fillText(owner + 1, x + size / 2 - 1, y + size / 2 - 0.5);
      }
    }
  });
}
